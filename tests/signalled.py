"""Processes that send a signal to themselves at a moment that no clock decides: some events after a condition holds.

An event is a call or return of a function, so the moment depends on neither the speed nor the load of the machine.

    python tests/signalled.py SIGNAL PATTERN BYTES EVENTS ARGUMENTS…

runs faenet-calc with ARGUMENTS and signals it EVENTS events after the files that match PATTERN have BYTES bytes.
"""

import glob
import os
import signal
import sys
from collections.abc import Callable

CHECK_EVERY = 100  # events between two looks at the condition


def size(pattern: str) -> int:
    """Total size of the files that match a pattern."""
    return sum(os.path.getsize(path) for path in glob.glob(pattern))


def signal_after(number: int, ready: Callable[[], bool], events: int) -> None:
    """Send a signal to this process as soon as its main thread has had ``events`` events after ``ready()``."""
    seen, left, reached = 0, events, False

    def count(*_: object) -> None:
        nonlocal seen, left, reached
        if reached:
            left -= 1
        else:
            seen += 1
            reached = seen % CHECK_EVERY == 0 and ready()
        if reached and left <= 0:
            sys.setprofile(None)
            os.kill(os.getpid(), number)

    sys.setprofile(count)


def killed(work: Callable[[], object], ready: Callable[[], bool], events: int) -> None:
    """Do the work in a copy of this process that is killed before it is finished."""
    child = os.fork()
    if child == 0:
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        signal_after(signal.SIGKILL, ready, events)
        try:
            work()
        finally:
            os._exit(0)
    assert os.WIFSIGNALED(os.waitpid(child, 0)[1]), "the run was over before it was killed"


if __name__ == "__main__":
    from faenet_calc.cli import main

    signal.signal(signal.SIGINT, signal.default_int_handler)  # ignored by children of a shell's background jobs
    name, pattern, n_bytes, events, *arguments = sys.argv[1:]
    signal_after(signal.Signals[name], lambda: size(pattern) >= int(n_bytes), int(events))
    main(arguments, prog_name="faenet-calc")

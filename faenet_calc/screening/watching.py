"""Progress of a screening, read from its journals: all processes write them, on this machine and on others."""

import logging
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from faenet_calc.errors import counted
from faenet_calc.progress import progress_bar
from faenet_calc.screening.store import ScreenStore

log = logging.getLogger(__name__)

_INTERVAL_S = 0.5  # between two looks at the journals


@contextmanager
def watched(folder: Path, keys: set[str], *, shown: bool) -> Iterator[None]:
    """Draw a bar of the finished configurations, and log each one, while the block runs.

    Args:
        folder: Of the screening.
        keys: Configurations that this run is responsible for, including those that are finished.
        shown: Whether to draw the bar.
    """
    store = ScreenStore(folder)  # of its own, because it is read in a thread
    known, over = store.finished() & keys, threading.Event()
    log.info("%s, %d of them finished before", counted(len(keys), "configuration"), len(known))
    # Batches finish in bursts: the mean rate over the whole run (smoothing=0) gives the steadiest remaining time.
    with progress_bar(
        shown=shown, desc="screen", unit="configurations", total=len(keys), initial=len(known), smoothing=0
    ) as bar:

        def look() -> None:
            nonlocal known
            with suppress(OSError):  # another process may be replacing a file
                before, known = known, store.finished() & keys
                bar.update(len(known) - len(before))
                bar.refresh()  # time passes also where nothing is finished
                for number, key in enumerate(sorted(known - before), start=len(before) + 1):
                    log.info("finished %s (%d of %d)", key, number, len(keys))

        def keep_looking() -> None:
            while not over.wait(_INTERVAL_S):
                look()

        thread = threading.Thread(target=keep_looking, name="watch-journals", daemon=True)
        thread.start()
        try:
            yield
        finally:
            over.set()
            thread.join()
            look()

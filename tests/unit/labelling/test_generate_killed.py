"""Workers of a label run end with it."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path


def children_of(pid):
    """Processes whose parent is ``pid``, from /proc."""
    found = []
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = stat.read_text().rpartition(")")[2].split()
        except (FileNotFoundError, ProcessLookupError):
            continue
        if int(fields[1]) == pid and fields[0] != "Z":
            found.append(int(stat.parent.name))
    return found


def alive(pid):
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


def wait_until(condition, seconds=60):
    end = time.monotonic() + seconds
    while not condition() and time.monotonic() < end:
        time.sleep(0.1)
    return condition()


def test_workers_end_when_their_run_is_killed(tmp_path, repository):
    arguments = ["data", "generate", str(repository / "examples/recipes/emt.yaml"), "-o", str(tmp_path), "-j", "2"]
    run = subprocess.Popen([sys.executable, "-m", "faenet_calc", *arguments], stderr=subprocess.DEVNULL)
    journal = tmp_path / "journal.jsonl"
    try:
        assert wait_until(lambda: journal.exists() and len(journal.read_text().splitlines()) > 1)
        workers = children_of(run.pid)
        assert len(workers) >= 2 and all(alive(worker) for worker in workers)
    finally:
        os.kill(run.pid, signal.SIGKILL)
        run.wait()
    assert wait_until(lambda: not any(alive(worker) for worker in workers), 20)

"""Killed label runs: their workers end with them, and resuming loses and doubles nothing."""

import json
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from ase.io import read
from small_recipe import SMALL, recipe

from faenet_calc.labelling import generate
from faenet_calc.labelling.labels import fingerprint

KILLS = 12


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


def wait_until(condition, seconds=600):
    end = time.monotonic() + seconds
    while not condition() and time.monotonic() < end:
        time.sleep(0.002)
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
    assert wait_until(lambda: not any(alive(worker) for worker in workers))


# Each copy is killed a random number of events after it has written a random number of bytes.
KILLER = """
import random, sys
from pathlib import Path
from small_recipe import recipe
from faenet_calc.labelling import generate
from signalled import killed, size

out, n_bytes, kills = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
labels = out + "/labels.extxyz"
dice = random.Random(7)
for _ in range(kills):
    goal = size(labels) + dice.randrange(n_bytes)
    killed(lambda: generate(recipe(tasks=24), Path(out)), lambda: size(labels) >= goal, dice.randrange(20000))
"""


def test_a_run_that_is_killed_again_and_again_ends_with_the_same_labels(tmp_path):
    whole, killed = tmp_path / "whole", tmp_path / "killed"
    expected = generate(recipe(tasks=24), whole)
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path)), "OMP_NUM_THREADS": "1"}
    n_bytes = expected.file.stat().st_size // (4 * KILLS)
    arguments = [sys.executable, "-c", KILLER, str(killed), str(n_bytes), str(KILLS)]
    subprocess.run(arguments, env=environment, check=True)
    assert len((killed / "journal.jsonl").read_text().splitlines()) > 1, "some tasks were finished between the kills"
    assert generate(recipe(tasks=24), killed) == type(expected)(**{**vars(expected), "file": killed / "labels.extxyz"})
    assert (killed / "labels.extxyz").read_bytes() == (whole / "labels.extxyz").read_bytes()


@pytest.mark.slow
def test_two_workers_that_are_killed_again_and_again_end_with_the_same_labels(tmp_path):
    rng = random.Random(11)
    (tmp_path / "recipe.yaml").write_text(json.dumps({**SMALL, "tasks": 60}))
    expected = generate(recipe(tasks=60), tmp_path / "whole")
    out = tmp_path / "killed"
    arguments = ["data", "generate", str(tmp_path / "recipe.yaml"), "-o", str(out), "-j", "2", "-q"]
    command = [sys.executable, "-m", "faenet_calc", *arguments]
    killed = 0
    for _ in range(KILLS):
        run = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        journal, before = out / "journal.jsonl", _lines(out / "journal.jsonl")
        wait_until(lambda: run.poll() is not None or _lines(journal) > before)  # noqa: B023 (used at once)
        time.sleep(rng.uniform(0, 0.02))
        os.kill(run.pid, signal.SIGKILL)
        killed += run.wait() == -signal.SIGKILL
    assert killed >= 10
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    found, wanted = read(out / "labels.extxyz", ":"), read(expected.file, ":")
    assert len(found) == len({fingerprint(atoms) for atoms in found}) == len(wanted)
    assert {fingerprint(atoms) for atoms in found} == {fingerprint(atoms) for atoms in wanted}


def _lines(path):
    return path.read_text().count("\n") if path.exists() else 0

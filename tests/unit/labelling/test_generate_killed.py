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


# One process forks runs and kills them, so that a run does not have to import everything again.
KILLER = """
import os, random, signal, sys, time
from pathlib import Path
from small_recipe import recipe
from faenet_calc.labelling import generate

out, longest, kills = Path(sys.argv[1]), float(sys.argv[2]), int(sys.argv[3])
rng = random.Random(7)
for _ in range(kills):
    run = os.fork()
    if run == 0:
        generate(recipe(tasks=16), out)
        os._exit(0)
    time.sleep(rng.uniform(0, longest))
    os.kill(run, signal.SIGKILL)
    print(os.waitstatus_to_exitcode(os.waitpid(run, 0)[1]), flush=True)
"""


def test_a_run_that_is_killed_again_and_again_ends_with_the_same_labels(tmp_path):
    whole, killed = tmp_path / "whole", tmp_path / "killed"
    begin = time.monotonic()
    expected = generate(recipe(tasks=16), whole)
    longest = (time.monotonic() - begin) / 5
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path)), "OMP_NUM_THREADS": "1"}
    arguments = [sys.executable, "-c", KILLER, str(killed), str(longest), str(KILLS)]
    codes = subprocess.run(arguments, env=environment, capture_output=True, text=True, check=True).stdout.split()
    assert codes.count(str(-signal.SIGKILL)) >= 10, "the runs were killed, not finished"
    assert len((killed / "journal.jsonl").read_text().splitlines()) > 1, "some tasks were finished between the kills"
    assert generate(recipe(tasks=16), killed) == type(expected)(**{**vars(expected), "file": killed / "labels.extxyz"})
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
        time.sleep(rng.uniform(0, 0.3))
        os.kill(run.pid, signal.SIGKILL)
        killed += run.wait() == -signal.SIGKILL
    assert killed >= 10
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    found, wanted = read(out / "labels.extxyz", ":"), read(expected.file, ":")
    assert len(found) == len({fingerprint(atoms) for atoms in found}) == len(wanted)
    assert {fingerprint(atoms) for atoms in found} == {fingerprint(atoms) for atoms in wanted}


def _lines(path):
    return path.read_text().count("\n") if path.exists() else 0

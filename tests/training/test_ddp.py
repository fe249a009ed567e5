"""Two processes give the losses of one process with the doubled batch; metrics are those of the whole set."""

import csv
import json
import os
import subprocess
import sys

import pytest
from small_set import SMALL, write_small_set


def run(folder, data, *, processes, batch_size, more=()):
    options = [*SMALL, "run.max_epochs=4", f"optim.batch_size={batch_size}", "run.log_every=1", *more]
    command = [sys.executable, "-m", "faenet_calc"]
    if processes > 1:
        command = [
            sys.executable, "-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={processes}",
            "-m", "faenet_calc",
        ]  # fmt: skip
    arguments = ["train", str(data), "-o", str(folder), "--json", *(f"--set={option}" for option in options)]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "FAENET_CALC_CACHE": str(folder.parent / "cache")}
    done = subprocess.run([*command, *arguments], env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    printed = [line for line in done.stdout.splitlines() if line.startswith("{")]
    assert len(printed) == 1, "one process speaks"
    with (folder / "steps.csv").open() as stream:
        return [float(row["loss"]) for row in csv.DictReader(stream)], json.loads(printed[0])


@pytest.mark.slow
def test_two_processes_are_one_with_the_doubled_batch(tmp_path):
    data = write_small_set(tmp_path / "small.extxyz", 13)
    more = ("data.val_fraction=0.25",)
    one, alone = run(tmp_path / "one", data, processes=1, batch_size=4, more=more)
    two, pair = run(tmp_path / "two", data, processes=2, batch_size=2, more=more)
    assert len(one) == len(two) == 12
    assert two == pytest.approx(one, rel=1e-4)
    assert two != one[::-1]
    assert pair["best"]["forces_mae"] == pytest.approx(alone["best"]["forces_mae"], rel=1e-4)
    assert pair["best"]["energy_mae"] == pytest.approx(alone["best"]["energy_mae"], rel=1e-3)

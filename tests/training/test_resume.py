"""A run that is killed at any moment and resumed ends with exactly the weights of one that was never interrupted."""

import itertools
import os
import subprocess
import sys

import pytest
import torch
from small_set import SMALL, write_small_set

from faenet_calc.errors import InputError
from faenet_calc.potential.checkpoint import load_potential
from faenet_calc.training.config_file import config_to_mapping, read_config, resumed_config
from faenet_calc.training.loop import Run, train
from faenet_calc.training.state import load_state

EPOCHS = 60


def arguments(data, folder):
    options = [*SMALL, f"run.max_epochs={EPOCHS}", "optim.batch_size=2", "run.save_every_steps=5", "run.threads=1"]
    return ["train", str(data), "-o", str(folder), *(f"--set={option}" for option in options)]


def environment(cache):
    return {**os.environ, "OMP_NUM_THREADS": "1", "FAENET_CALC_CACHE": str(cache)}


def final(folder):
    _, tensors, _ = load_state(folder, torch.device("cpu"))
    return {f"{part}.{name}": value for part in ("model", "average") for name, value in tensors[part].items()}


def steps(folder):
    """Steps in the resume file of a run, 0 without one."""
    if not (folder / "state.pt").exists():
        return 0
    return load_state(folder, torch.device("cpu"))[0].step


# Every third copy is killed while it starts or soon after, the others after they have written a resume file.
KILLER = """
import os, random, sys
from pathlib import Path
sys.path[:0] = sys.argv[1].split(os.pathsep)
from faenet_calc.cli import main
from signalled import killed
from test_resume import steps
folder, *arguments = sys.argv[2:]
state, dice = folder + "/state.pt", random.Random(7)

def saved():
    return os.stat(state).st_mtime_ns if os.path.exists(state) else 0

for number in range(12):
    before = saved()
    ready = (lambda: True) if number % 3 == 2 else (lambda: saved() > before)
    killed(lambda: main(arguments), ready, dice.randrange(100_000))
    print(steps(Path(folder)))
"""


@pytest.mark.slow
def test_killed_at_twelve_random_moments_and_resumed(tmp_path):
    data = write_small_set(tmp_path / "small.extxyz")
    command = [sys.executable, "-m", "faenet_calc"]
    whole, broken = tmp_path / "whole", tmp_path / "broken"
    subprocess.run([*command, *arguments(data, whole)], check=True, env=environment(tmp_path), capture_output=True)
    resuming = [*arguments(data, broken), "--resume", "auto"]
    killer = [sys.executable, "-c", KILLER, os.pathsep.join(filter(None, sys.path)), str(broken), *resuming]
    done = subprocess.run(killer, check=True, env=environment(tmp_path), stdout=subprocess.PIPE, text=True)
    progress = [int(line) for line in done.stdout.splitlines()[:12]]
    assert progress == sorted(progress), "a kill lost steps that were saved"
    assert len(set(progress)) > 6
    subprocess.run([*command, *resuming], check=True, env=environment(tmp_path), capture_output=True)
    expected, found = final(whole), final(broken)
    assert expected.keys() == found.keys()
    assert all(torch.equal(expected[name], found[name]) for name in expected)
    first, second = (load_potential(f / "best.safetensors", device="cpu").state_dict() for f in (whole, broken))
    assert all(torch.equal(first[name], second[name]) for name in first)
    assert columns(whole / "steps.csv") == columns(broken / "steps.csv")
    assert {path.name for path in broken.iterdir()} == {path.name for path in whole.iterdir()}


def columns(path):
    """Step and loss of the log: what does not depend on the clock."""
    rows = [line.split(",") for line in path.read_text().splitlines()]
    kept = [rows[0].index(name) for name in ("step", "epoch", "lr", "grad_norm", "loss")]
    return [[row[k] for k in kept] for row in rows]


def test_a_job_limit_interrupts_and_the_next_job_goes_on(tmp_path, monkeypatch):
    monkeypatch.setenv("FAENET_CALC_CACHE", str(tmp_path / "cache"))
    data = write_small_set(tmp_path / "small.extxyz")

    def settings(folder):
        given = [f"data.train={[str(data)]}", f"run.out_dir={folder}", *SMALL, "optim.batch_size=2", "run.max_epochs=6"]
        return read_config("", given)

    whole = train(settings(tmp_path / "whole"))
    ticks = map(float, itertools.count())
    monkeypatch.setattr(Run, "clock", staticmethod(lambda: next(ticks)))  # every step takes one second
    first = train(settings(tmp_path / "parts"), job_limit_s=4)
    assert first.finished == "interrupted" and first.state.step == 3 < whole.state.step
    second = train(settings(tmp_path / "parts"), resume=True)
    assert second.finished == "epochs"
    expected, found = final(tmp_path / "whole"), final(tmp_path / "parts")
    assert all(torch.equal(expected[name], found[name]) for name in expected)


def test_other_settings_are_refused_on_resume(tmp_path, monkeypatch):
    monkeypatch.setenv("FAENET_CALC_CACHE", str(tmp_path / "cache"))
    data = write_small_set(tmp_path / "small.extxyz")
    given = [f"data.train={[str(data)]}", f"run.out_dir={tmp_path / 'run'}", *SMALL, "run.max_epochs=1"]
    train(read_config("", given))
    with pytest.raises(InputError, match=r"optim\.lr"):
        train(read_config("", [*given, "optim.lr=0.01"]), resume=True)
    longer = train(read_config("", [*given, "run.max_epochs=2"]), resume=True)
    assert longer.state.epoch == 2


def test_runs_of_a_version_without_a_setting_can_be_resumed():
    config = read_config("", ["data.train=[a.extxyz]"])
    stored = {"asked": config_to_mapping(config), "resolved": config_to_mapping(config)}
    del stored["asked"]["loss"]["rotation"]
    assert resumed_config(config, stored, source="state.pt") == config
    other = read_config("", ["data.train=[a.extxyz]", "loss.rotation=1.0"])
    with pytest.raises(InputError, match=r"loss\.rotation: 0\.0 → 1\.0"):
        resumed_config(other, stored, source="state.pt")

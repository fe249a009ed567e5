"""SchNet behind our interface obeys periodicity, learns, stops in time and comes back from its file."""

import argparse
import itertools
import json
import time
from functools import partial

import numpy as np
import pytest
import torch
from ase.build import bulk
from experiment import QUIET, NetworkRun, schnet_like
from labelled_slabs import words, write_slabs
from peer_schnet import LR, main, parser, settings
from peers.schnet import SchNetPotential, SchNetSize, load, open_model, save

from faenet_calc import FAENetCalculator
from faenet_calc.errors import InputError
from faenet_calc.potential.config import NormalizationConfig
from faenet_calc.testing.laws import force_deviation, stress_deviation
from faenet_calc.training.assessment import assess
from faenet_calc.training.config_file import read_config

TINY = SchNetSize(hidden_channels=16, num_filters=16, num_interactions=2, num_gaussians=12)


@pytest.fixture
def potential():
    torch.manual_seed(1)
    normalization = NormalizationConfig(scale=0.5, references={"Cu": -3.0, "O": -4.0})
    made = SchNetPotential(TINY, cutoff=4.0, normalization=normalization, trained_elements=(8, 29))
    return made.double().eval().requires_grad_(False)


@pytest.fixture
def crystal():
    atoms = bulk("Cu", cubic=True)
    atoms.rattle(0.1, seed=2)
    return atoms


def test_images_are_neighbours(potential, crystal):
    energy = float(potential.predict(crystal).energy[0])
    assert float(potential.predict(crystal * (2, 1, 3)).energy[0]) == pytest.approx(6 * energy, abs=1e-9)
    moved = crystal.copy()
    moved.positions[0] += 2 * moved.cell[0]
    assert float(potential.predict(moved).energy[0]) == pytest.approx(energy, abs=1e-9)
    moved.pbc = False
    assert abs(float(potential.predict(moved).energy[0]) - energy) > 1e-3


def test_forces_and_stress_are_derivatives(potential, crystal):
    assert force_deviation(potential, crystal) < 1e-6
    assert stress_deviation(potential, crystal) < 1e-6
    assert float(potential.predict(crystal).forces.abs().max()) > 1e-3


def test_references_and_scale_are_ours(potential, crystal):
    network = potential.predict(crystal).energy - 4 * -3.0
    bare = SchNetPotential(TINY, cutoff=4.0, normalization=NormalizationConfig())
    bare.model.load_state_dict(potential.model.state_dict())
    assert float(network[0]) == pytest.approx(0.5 * float(bare.double().predict(crystal).energy[0]))


def test_it_comes_back_from_its_file(potential, crystal, tmp_path, repository):
    single = potential.float()
    save(single, tmp_path / "schnet.safetensors")
    again = load(tmp_path / "schnet.safetensors", "cpu")
    assert torch.equal(again.predict(crystal).energy, single.predict(crystal).energy)
    assert again.config == single.config and again.size == TINY
    assert isinstance(open_model(str(tmp_path / "schnet.safetensors"), "cpu"), SchNetPotential)
    ours = open_model(str(repository / "tests" / "data" / "emt-copper.safetensors"), "cpu")
    assert not isinstance(ours, SchNetPotential)


def test_it_is_an_ase_calculator_too(potential, crystal):
    crystal.calc = FAENetCalculator(potential)
    assert crystal.get_potential_energy() == pytest.approx(float(potential.predict(crystal).energy[0]))
    assert np.abs(crystal.get_forces().sum(axis=0)).max() < 1e-9


@pytest.fixture
def files(tmp_path, monkeypatch):
    monkeypatch.setenv("FAENET_CALC_CACHE", str(tmp_path / "cache"))
    kinds = ["none", "O"]
    return [
        str(write_slabs(tmp_path / f"{name}.extxyz", [words(name, kinds[k % 2]) for k in range(n)], seed=n))
        for name, n in (("train", 8), ("val", 4), ("test", 6))
    ]


@pytest.fixture
def started(files, tmp_path):
    changes = [f"data.{name}=[{path}]" for name, path in zip(("train", "val"), files, strict=False)]
    speed = ["optim.lr=5e-3", "optim.batch_size=4", "optim.warmup_steps=1", "run.validate_every=10"]
    where = [f"run.out_dir={tmp_path}", "run.time_limit_s=1.5", *QUIET]
    config = read_config("", [*changes, *speed, *where, "model.cutoff=4"])
    return NetworkRun(config, peer=partial(schnet_like, size=TINY))


def test_steps_lower_the_loss(started):
    train = started.prepared.train

    def loss() -> float:
        return assess(started.potential, train.dataset, train.indices, loss=started.loss).metrics["loss"]

    assert isinstance(started.potential, SchNetPotential) and started.potential.size == TINY
    before = loss()
    for _ in range(40):
        started.step(started.make(np.arange(len(train)), 0))
    assert loss() < 0.7 * before


def test_a_run_stops_in_time_with_its_best_weights(started, monkeypatch):
    ticks = (0.01 * number for number in itertools.count())
    monkeypatch.setattr(started, "clock", lambda: next(ticks))  # every step takes 0.01 s
    result = started.loop(0.0, None)
    assert result.finished == "time limit"
    assert 1.4 < started.state.elapsed_s <= 1.6  # of 1.5
    history = started.state.history
    losses = [row["loss"] for row in history]
    assert history[int(np.argmin(losses))]["step"] == started.state.best_step <= started.state.step
    val = started.prepared.val
    found = assess(started.best(), val.dataset, val.indices, loss=started.loss).metrics["loss"]
    assert found == pytest.approx(min(losses), rel=1e-5)


def test_the_clock_of_a_run_is_cpu_time_and_ends_it(started, monkeypatch):
    assert started.clock is time.process_time
    times = iter([0.0, 0.5, 0.9, *([2.0] * 9)])
    monkeypatch.setattr(started, "clock", lambda: next(times))
    started.loop(0.0, None)
    assert started.state.step == 3


def test_the_command(files, tmp_path, monkeypatch, capsys, repository):
    out, ours = tmp_path / "out", str(repository / "tests" / "data" / "emt-copper.safetensors")
    sizes = ["--hidden", "16", "--filters", "16", "--interactions", "1", "--gaussians", "8", "--cutoff", "4"]
    monkeypatch.setattr("sys.argv", ["x", *files, "--time-limit", "1", "--out", str(out), *sizes, "--beside", ours])
    main()
    assert "| all | 6 | 2 | PyG SchNet |" in capsys.readouterr().out
    rows = [json.loads(line) for line in (out / "errors.jsonl").read_text().splitlines()]
    assert {row["model"] for row in rows} == {"PyG SchNet", "data", "mean predictor"}
    described = json.loads((out / "training.json").read_text())
    assert described["structures"] == {"train": 8, "val": 4, "test": 6} and described["budget_s"] == 1.0
    assert isinstance(open_model(str(out / "schnet.safetensors"), "cpu"), SchNetPotential)


def test_settings_of_one_of_our_runs_are_taken(repository):
    path = repository / "pretrained" / "co2-ni100" / "train.yaml"
    config = settings(parser().parse_args(["--config", str(path), "--out", "x"]))
    assert (config.data.test_fraction, config.data.split, config.run.time_limit_s) == (0.1, "auto", 840.0)
    assert (config.optim.lr, config.optim.ema_decay) == (LR, 0.995)


@pytest.mark.parametrize("given", [["a.xyz", "b.xyz"], []])
def test_data_must_be_named(given):
    with pytest.raises(InputError, match="TRAIN VAL TEST"):
        settings(argparse.Namespace(**{**vars(parser().parse_args(["--out", "x"])), "sets": given}))

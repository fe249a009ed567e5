"""The loop end to end on a small set: what it leaves behind, its options, and the command line."""

import csv
import dataclasses
import itertools
import json
import math
import re
from typing import ClassVar

import numpy as np
import pytest
import torch
from ase.io import read, write
from click.testing import CliRunner
from small_set import SMALL, write_small_set

from faenet_calc.cli import main
from faenet_calc.data.dataset import open_dataset
from faenet_calc.errors import InputError
from faenet_calc.potential.checkpoint import load_potential, read_metadata
from faenet_calc.training import loop
from faenet_calc.training.config import OptimConfig
from faenet_calc.training.config_file import read_config
from faenet_calc.training.loop import Run, train
from faenet_calc.training.loss import Loss
from faenet_calc.training.lr_finder import find_rate
from faenet_calc.training.schedule import Plateau, Schedule, average_weights


@pytest.fixture
def data(tmp_path, monkeypatch):
    monkeypatch.setenv("FAENET_CALC_CACHE", str(tmp_path / "cache"))
    return write_small_set(tmp_path / "small.extxyz")


def settings(data, folder, *more):
    given = [f"data.train={[str(data)]}", f"run.out_dir={folder}", *SMALL, "optim.batch_size=4", *more]
    return read_config("", given)


def test_a_run_learns_and_leaves_a_checkpoint(data, tmp_path, monkeypatch):
    monkeypatch.setattr("faenet_calc.training.loop.MIN_STRUCTURES", 1)
    config = settings(data, tmp_path / "run", "run.max_epochs=30", "optim.lr=5e-3", "run.validate_every=10")
    result = train(config)
    assert result.finished == "epochs" and result.state.step == 30 * 3
    losses = [row["train_loss"] for row in result.state.history]
    assert len(losses) == 3 and losses[-1] < 0.5 * losses[0]
    potential = load_potential(result.checkpoint, device="cpu")
    assert potential.config.trained_elements == (8, 29, 46)
    assert potential.config.normalization.references.keys() == {"O", "Cu", "Pd"}
    domain, train_part = potential.config.domain, result.parts["train"]
    assert potential.uncertainty is not None and domain.n_structures == len(train_part)
    assert domain.uncertainty > 0 and domain.lowest_energy < domain.highest_energy
    stored = read_metadata(result.checkpoint)["extra"]["training"]
    assert stored["config"]["optim"]["lr"] == 5e-3
    assert stored["validation"]["loss"] == result.state.best
    assert read_config((tmp_path / "run" / "config.yaml").read_text()) == result.config
    with (tmp_path / "run" / "validation.csv").open() as stream:
        assert [int(row["step"]) for row in csv.DictReader(stream)] == [30, 60, 90]


@pytest.mark.parametrize(
    "more",
    [
        ("frames.kind=none",),
        ("frames.kind=augment3d",),
        ("frames.kind=pca3d", "frames.training=all"),
        ("model.forces=direct", "loss.conservation=0.5"),
        ("loss.forces=0", "model.forces=none", "loss.energy_kind=mse"),
        ("optim.schedule=plateau", "optim.plateau_patience=0", "optim.ema_decay=0"),
        ("optim.accumulate=2", "loss.free_atoms_only=true", "optim.grad_clip=null"),
        ("model.preset=paper-s2ef", "model.decoder.channels=16", "run.max_epochs=2", "model.energy_weighting=final"),
    ],
)
def test_options_run(data, tmp_path, more):
    result = train(settings(data, tmp_path / "run", "run.max_epochs=2", "data.val_fraction=0.25", *more))
    assert result.finished == "epochs"
    assert all(np.isfinite(row["loss"]) for row in result.state.history)


class InfiniteOnce(Loss):
    """A loss that is infinite in some steps."""

    at: ClassVar[set[int]] = {3}
    taken: ClassVar[int] = 0

    def total(self, terms):
        InfiniteOnce.taken += 1
        return super().total(terms) * (math.inf if InfiniteOnce.taken in self.at else 1.0)


def test_a_step_without_a_finite_gradient_is_skipped(data, tmp_path, monkeypatch):
    monkeypatch.setattr(loop, "Loss", InfiniteOnce)
    monkeypatch.setattr(InfiniteOnce, "taken", 0)
    result = train(settings(data, tmp_path / "run", "run.max_epochs=2"))
    assert result.state.skipped == 1 and result.state.skipped_in_a_row == 0
    assert np.isfinite(result.state.history[-1]["loss"])


def test_the_search_of_a_rate_ends_at_the_first_step_without_a_finite_gradient(data, tmp_path, monkeypatch):
    monkeypatch.setattr(loop, "Loss", InfiniteOnce)
    monkeypatch.setattr(InfiniteOnce, "taken", 0)
    monkeypatch.setattr(InfiniteOnce, "at", {12})
    found = find_rate(settings(data, tmp_path / "run"))
    assert len(found.losses) == 11 and all(np.isfinite(found.losses)) and min(found.losses) > 0


def test_a_run_without_finite_gradients_stops_with_a_message(data, tmp_path, monkeypatch):
    monkeypatch.setattr(loop, "Loss", InfiniteOnce)
    monkeypatch.setattr(InfiniteOnce, "taken", 0)
    monkeypatch.setattr(InfiniteOnce, "at", set(range(5, 100)))
    with pytest.raises(RuntimeError, match=r"gradient of step 14 .* 9 steps before it; lower optim\.lr"):
        train(settings(data, tmp_path / "run", "run.max_epochs=6"))


def test_the_same_seed_gives_the_same_weights_and_another_does_not(data, tmp_path):
    def weights(name, seed):
        result = train(settings(data, tmp_path / name, "run.max_epochs=2", f"run.seed={seed}"))
        return load_potential(result.checkpoint, device="cpu").state_dict()

    first, again, other = weights("a", 1), weights("b", 1), weights("c", 2)
    assert all(torch.equal(first[name], again[name]) for name in first)
    assert any(not torch.equal(first[name], other[name]) for name in first)


def test_accumulation_is_one_larger_batch(data, tmp_path):
    whole = train(settings(data, tmp_path / "a", "run.max_epochs=3", "optim.batch_size=4", "run.dtype=float64"))
    parts = train(
        settings(
            data, tmp_path / "b", "run.max_epochs=3", "optim.batch_size=2", "optim.accumulate=2", "run.dtype=float64"
        )
    )
    assert parts.state.history[-1]["loss"] == pytest.approx(whole.state.history[-1]["loss"], rel=1e-6)


def test_a_time_limit_ends_a_run_with_its_learning_rate_annealed(data, tmp_path, monkeypatch):
    ticks = map(float, itertools.count())
    monkeypatch.setattr(Run, "clock", staticmethod(lambda: next(ticks)))  # every step takes one second
    result = train(settings(data, tmp_path / "run", "run.time_limit_s=60"))
    assert result.finished == "time limit" and result.state.step == 59  # 3 % of the limit are for the last validation
    assert result.state.history[-1]["lr"] < 0.1 * result.config.optim.lr
    assert result.checkpoint.is_file()


def test_the_time_limit_does_not_count_the_preparation_of_the_data(data, tmp_path, monkeypatch):
    """The first use of large files takes minutes; the limit of a job counts it, the length of the training does not."""
    ticks = map(float, itertools.count())
    monkeypatch.setattr(Run, "clock", staticmethod(lambda: next(ticks)))

    class Slow(Run):
        def prepare(self, config, **reading):
            for _ in range(1000):
                self.clock()
            return super().prepare(config, **reading)

    monkeypatch.setattr("faenet_calc.training.loop.Run", Slow)
    result = train(settings(data, tmp_path / "run", "run.time_limit_s=60"))
    assert result.finished == "time limit" and result.state.step == 59
    stopped = train(settings(data, tmp_path / "job", "run.time_limit_s=60"), job_limit_s=1010)
    assert stopped.finished == "interrupted" and stopped.state.step < 59


def test_an_interrupted_run_says_how_to_continue(data, tmp_path, capsys):
    train(settings(data, tmp_path / "run", "run.time_limit_s=60"), job_limit_s=0.001, progress=True)
    assert re.search(
        r"^interrupted after \d+ steps?, \d+ s; .*; --resume auto continues$", capsys.readouterr().err, re.M
    )


def test_a_finished_folder_is_not_overwritten_by_accident(data, tmp_path):
    config = settings(data, tmp_path / "run", "run.max_epochs=1")
    train(config)
    with pytest.raises(InputError, match="--resume auto"):
        train(config)
    assert train(config, overwrite=True).state.step == 3


def test_a_few_structures_describe_a_domain_without_an_uncertainty(data, tmp_path):
    result = train(settings(data, tmp_path / "run", "run.max_epochs=1"))
    potential = load_potential(result.checkpoint, device="cpu")
    assert potential.uncertainty is None
    domain = potential.config.domain
    assert domain.uncertainty is None and domain.n_structures == len(result.parts["train"].indices)
    assert domain.lowest_energy < domain.highest_energy and domain.shortest and domain.closed_directions


def test_early_stopping(data, tmp_path):
    more = ("run.max_epochs=50", "run.validate_every=1", "stop.patience=2", "optim.lr=1e-30", "optim.min_lr=0")
    result = train(settings(data, tmp_path / "run", *more, "optim.ema_decay=0"))
    assert result.finished == "early stopping" and result.state.epoch <= 10


def test_an_unknown_stop_metric_is_named(data, tmp_path):
    with pytest.raises(InputError, match="forces_mae"):
        train(settings(data, tmp_path / "run", "run.max_epochs=1", "stop.metric=force_error"))


def test_energies_alone_are_noticed(tmp_path, data):
    from ase.calculators.singlepoint import SinglePointCalculator
    from ase.io import read, write

    structures = read(data, ":")
    for atoms in structures:
        atoms.calc = SinglePointCalculator(atoms, energy=atoms.get_potential_energy())
    write(tmp_path / "energies.extxyz", structures)
    result = train(settings(tmp_path / "energies.extxyz", tmp_path / "run", "run.max_epochs=1"))
    assert result.config.model.forces == "none" and result.config.loss.forces == 0


def test_fine_tuning_starts_from_the_model_with_new_references(data, tmp_path):
    base = train(settings(data, tmp_path / "base", "run.max_epochs=20", "optim.lr=5e-3"))
    moved = write_small_set(tmp_path / "moved.extxyz", seed=5)
    from ase.calculators.singlepoint import SinglePointCalculator
    from ase.io import read, write

    structures = read(moved, ":")
    for atoms in structures:
        energy, forces = atoms.get_potential_energy() + 100 * len(atoms), atoms.get_forces(apply_constraint=False)
        atoms.calc = SinglePointCalculator(atoms, energy=energy, forces=forces)
    write(moved, structures)
    more = (f"finetune.checkpoint={base.checkpoint}", "finetune.freeze=[atom_embedding]")
    tuned = train(settings(moved, tmp_path / "tuned", "run.max_epochs=1", "optim.lr=1e-4", *more))
    assert tuned.state.history[-1]["energy_mae_per_atom"] < 1.0  # 100 eV/atom without the refitted references
    before, after = (load_potential(r.checkpoint, device="cpu") for r in (base, tuned))
    assert before.config.model == after.config.model
    old, new = before.state_dict(), after.state_dict()
    changed = {name for name in old if not torch.equal(old[name], new[name])}
    assert changed and not any("atom_embedding" in name for name in changed)
    replayed = settings(
        data, tmp_path / "replayed", "run.max_epochs=1", "optim.lr=1e-4", *more, f"finetune.replay=[{data}]"
    )
    assert np.isfinite(train(replayed).state.history[-1]["loss"])
    with pytest.raises(InputError, match="interaction_blocks"):
        train(settings(moved, tmp_path / "wrong", f"finetune.checkpoint={base.checkpoint}", "finetune.freeze=[emb]"))


def test_the_rate_finder_suggests_a_rate_between_its_ends(data, tmp_path):
    found = find_rate(settings(data, tmp_path / "run"))
    assert len(found.rates) == len(found.losses) > 5
    assert 1e-6 < found.suggested < 0.1
    assert not (tmp_path / "run").exists()


def test_train_and_evaluate_on_the_command_line(data, tmp_path):
    run = tmp_path / "run"
    options = [f"--set={setting}" for setting in SMALL if "report" not in setting]
    options += ["--set=run.max_epochs=2", "--set=run.validate_every=1"]
    arguments = ["train", str(data), "-o", str(run), "--json", *options]
    trained = CliRunner().invoke(main, arguments)
    assert trained.exit_code == 0, trained.output
    assert json.loads(trained.output)["finished"] == "epochs"
    page = (run / "report.html").read_text()
    titles = re.findall(r'<img alt="(.*?)" src="data:image/svg', page)
    assert {"Loss", "Learning rate", "Validation force MAE", "Energy per atom", "Force components"} <= set(titles)
    assert "Largest errors (validation)" in page and "http" not in page, "the page refers to other files"
    model, report = str(run / "best.safetensors"), str(tmp_path / "r.html")
    arguments = ["evaluate", "-m", model, str(data), "--json", "--report", report, "--symmetry", "2"]
    evaluated = CliRunner().invoke(main, arguments)
    assert evaluated.exit_code == 0, evaluated.output
    result = json.loads(evaluated.stdout)
    n_trained = load_potential(model).metadata["extra"]["training"]["n_train"]
    assert 0 < n_trained < 12 and result["n_structures"] == 12 and result["n_trained_on"] == n_trained
    assert f"trained on {n_trained} of these 12 structures" in evaluated.stderr
    assert result["energy_mae_per_atom"] > 0 and result["forces_mae"] > 0
    assert result["symmetry"]["rot_i"] < 1e-5
    again = CliRunner().invoke(main, arguments)
    assert again.exit_code == 2 and "--overwrite" in again.stderr
    write(tmp_path / "others.extxyz", read(data, ":")[:3])
    others = CliRunner().invoke(main, ["evaluate", "-m", model, str(tmp_path / "others.extxyz"), "--json"])
    assert json.loads(others.stdout)["n_trained_on"] == 0 and "trained on" not in others.stderr
    bad = CliRunner().invoke(main, ["train", str(data), "--set", "optim.lrr=1"])
    assert bad.exit_code == 2 and "did you mean 'lr'" in bad.stderr


def test_schedules():
    cosine = Schedule(config=OptimConfig(lr=1.0, min_lr=0.0), n_steps=100, time_limit_s=None, warmup_steps=10)
    assert cosine.rate(0, 0.0) == pytest.approx(0.1)
    assert cosine.rate(50, 0.0) == pytest.approx(0.5)
    assert cosine.rate(100, 0.0) == pytest.approx(0.0)
    timed = dataclasses.replace(cosine, time_limit_s=1000.0)
    assert timed.rate(50, 15.0) == cosine.rate(50, 0.0)  # a limit that does not bind changes nothing
    assert timed.rate(50, 1000.0) == pytest.approx(0.0)
    plateau = Plateau()
    config = OptimConfig(plateau_patience=1, plateau_factor=0.5)
    for improved in (True, False, False, False, False):
        plateau.update(improved, config)
    assert plateau.factor == 0.25


def test_averaged_weights_follow_the_trained_ones():
    model = torch.nn.Linear(1, 1)
    average = average_weights(model, 0.5)
    for _ in range(20):
        with torch.no_grad():
            model.weight.add_(1.0)
        average.update_parameters(model)
    # At constant speed 1 per step the average lags by d / (1 - d) = 1 step.
    assert float((model.weight - average.module.weight).detach()) == pytest.approx(1.0, rel=1e-3)


@pytest.mark.slow
def test_sixteen_structures_are_learned_by_heart(tmp_path):
    data = write_small_set(tmp_path / "sixteen.extxyz", 16)
    more = ("run.max_epochs=1500", "optim.lr=4e-3", "data.val_fraction=0", "run.validate_every=100")
    wide = (
        "model.hidden_channels=64",
        "model.filters=64",
        "frames.training=one",
        "optim.weight_decay=0",
        "loss.energy=5",
    )
    result = train(
        settings(data, tmp_path / "run", *more, *wide, "optim.batch_size=8", f"data.cache_dir={tmp_path / 'cache'}")
    )
    best = min(row["energy_mae_per_atom"] for row in result.state.history)
    forces = min(row["forces_mae"] for row in result.state.history)
    assert best < 1e-3 and forces < 5e-3
    assert len(open_dataset(data, cutoff=4.0, cache_dir=tmp_path / "cache")) == 16

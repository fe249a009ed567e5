"""The benchmark of fine-tuning, on relaxations of EMT and with a tiny model."""

import json
import lzma
import sys
from argparse import Namespace

import ase.io
import finetune_curve as benchmark
import numpy as np
import pytest
from ase.build import add_adsorbate, fcc111
from ase.calculators.calculator import CalculationFailed
from ase.calculators.emt import EMT
from ase.calculators.singlepoint import SinglePointCalculator
from ase.constraints import FixAtoms
from ase.optimize import BFGS, FIRE

from faenet_calc import FAENetCalculator, build_potential
from faenet_calc.potential.checkpoint import save_potential


def snapshots(symbol, sid, name, optimizer):
    """A relaxation as the data set has it: raw forces, a column of fixed atoms, sid, run and step."""
    atoms = fcc111(symbol, (1, 1, 3), vacuum=6.0, periodic=True)
    add_adsorbate(atoms, "O", 1.7, "fcc")
    fixed = atoms.get_tags() == 3
    atoms.rattle(0.05, seed=1)
    atoms.set_constraint(FixAtoms(mask=fixed))
    atoms.calc = EMT()
    found = []
    for step, _ in enumerate(optimizer(atoms, logfile=None).irun(fmax=0.02, steps=40)):
        copy = atoms.copy()
        copy.set_constraint()
        copy.info = {"sid": sid, "run": name, "step": step}
        copy.set_array("fixed", fixed.astype(int))
        forces = atoms.get_forces(apply_constraint=False)
        copy.calc = SinglePointCalculator(copy, energy=atoms.get_potential_energy(), forces=forces)
        found.append(copy)
    return found


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    folder = tmp_path_factory.mktemp("data")
    everything = []
    for symbol, sid in (("Cu", 11), ("Pd", 12)):
        for name, optimizer in (("vasp", FIRE), ("bfgs", BFGS)):
            everything += snapshots(symbol, sid, name, optimizer)
    np.random.default_rng(0).shuffle(everything)
    ase.io.write(folder / "all.extxyz", everything)
    path = folder / "all.extxyz.xz"
    path.write_bytes(lzma.compress((folder / "all.extxyz").read_bytes()))
    return path


@pytest.fixture(scope="module")
def start(tmp_path_factory):
    path = tmp_path_factory.mktemp("start") / "tiny.safetensors"
    size = {"hidden_channels": 64, "filters": 16, "interactions": 1, "gaussians": 8, "cutoff": 4.0}
    save_potential(build_potential("modern-s", seed=0, trained_elements=(8, 29), **size), path)
    return path


def test_systems_are_read_in_order(data):
    systems = benchmark.read_systems(data)
    assert sorted(systems) == [11, 12]
    for runs in systems.values():
        assert set(runs) == {"vasp", "bfgs"}
        for run in runs.values():
            assert [atoms.info["step"] for atoms in run] == list(range(len(run)))
            assert run[0].constraints[0].get_indices().tolist() == [0]
            assert np.abs(run[0].get_forces(apply_constraint=False)[0]).max() > 0
    assert benchmark.by_familiarity(systems, {"Pd", "O"}) == [12, 11]
    assert benchmark.by_familiarity(systems, {"Cu", "O"}) == [11, 12]


def test_training_and_test_snapshots_are_apart_and_the_minimum_is_not_trained_on(data):
    runs = benchmark.read_systems(data)[11]
    last = len(runs["vasp"]) - 1
    for count in (2, 5, 50):
        used = benchmark.chosen_steps(runs["vasp"], count)
        assert used[0] == 0
        assert used[-1] <= 0.9 * last < last
        assert len(used) == min(count, len(set(used)))
        parts = benchmark.rest(runs, used, 40)
        assert not {atoms.info["step"] for atoms in parts["same_run"]} & set(used)
        assert {atoms.info["run"] for atoms in parts["same_run"]} == {"vasp"}
        assert {atoms.info["run"] for atoms in parts["other_runs"]} == {"bfgs"}
    assert len(benchmark.rest(runs, [0], 3)["same_run"]) == 3


def test_errors_and_distances_count_free_atoms(data):
    run = benchmark.read_systems(data)[11]["vasp"][:3]
    energies = [atoms.get_potential_energy() + 4.0 for atoms in run]
    forces = [atoms.get_forces(apply_constraint=False) for atoms in run]
    for one in forces:
        one[0] += 10.0  # the fixed atom
        one[1, 0] += 0.9
    found = benchmark.errors(run, energies, forces, offset=False)
    assert found["energy_mae_meV_per_atom"] == pytest.approx(1000)
    assert found["forces_mae_eV_per_A"] == pytest.approx(0.1)
    assert benchmark.errors(run, energies, forces, offset=True)["energy_mae_meV_per_atom"] == pytest.approx(0, abs=1e-9)
    moved = run[0].copy()
    moved.positions[0] += 5.0
    moved.positions[1, 2] += 0.3
    moved.positions[2] += moved.cell[0]  # an image
    assert benchmark.rmsd(run[0], moved) == pytest.approx(0.3 / np.sqrt(3))


def test_the_minimum_of_the_reference_itself(data):
    run = benchmark.read_systems(data)[11]["bfgs"]
    found = benchmark.relaxation(EMT(), run, offset=False)
    assert found["rmsd_A"] < 0.05 < found["start_rmsd_A"]
    assert abs(found["minimum_energy_error_eV"]) < 0.01
    assert abs(found["gained_energy_error_eV"]) < 0.01


def test_scratch_has_the_shape_of_the_start_but_not_its_weights(data, start):
    run = benchmark.read_systems(data)[11]["vasp"]
    settings = Namespace(steps=2, finetune_lr=3e-3, scratch_lr=5e-3)
    tuned, fresh = (
        benchmark.trained_calculator(str(start), way, run[:4], settings, seed=0)[0] for way in ("fine-tuned", "scratch")
    )
    shapes = [[tuple(p.shape) for p in calc.predictor.committee.members[0].parameters()] for calc in (tuned, fresh)]
    assert shapes[0] == shapes[1]
    assert isinstance(tuned, FAENetCalculator)


def test_replayed_forces_change_the_fine_tuned_model(data, start, tmp_path, monkeypatch):
    monkeypatch.setenv("FAENET_CALC_CACHE", str(tmp_path / "cache"))
    run = benchmark.read_systems(data)[12]["vasp"]
    ase.io.write(tmp_path / "earlier.extxyz", benchmark.read_systems(data)[11]["vasp"])
    settings = Namespace(steps=2, finetune_lr=3e-3, scratch_lr=5e-3, replay=[str(tmp_path / "earlier.extxyz")])
    forces = [
        benchmark.trained_calculator(str(start), way, run[:4], settings, seed=0)[0].get_property("forces", run[0])
        for way in ("fine-tuned", benchmark.REPLAYED, "fine-tuned")
    ]
    assert np.abs(forces[0] - forces[2]).max() < 1e-6 < np.abs(forces[0] - forces[1]).max()


def test_the_whole_command_and_going_on(data, start, tmp_path, monkeypatch, capsys):
    out = tmp_path / "curve.jsonl"
    words = ["--start", start, "--data", data, "-o", out, "--systems", 1, "--counts", 3, "--steps", 4, "--test", 4]
    words += ["--seeds", 2]
    monkeypatch.setattr(sys, "argv", ["finetune_curve.py", *map(str, words)])
    monkeypatch.setattr(benchmark, "RELAX_STEPS", 3)
    benchmark.main()
    rows = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    points = [row for row in rows if not row.get("summary")]
    assert [(row["way"], row["n"]) for row in points] == [
        ("nothing", 0),
        ("fine-tuned", 0),
        ("fine-tuned", 3),
        ("scratch", 3),
        ("fine-tuned", 3),
        ("scratch", 3),
    ]
    assert [row["seed"] for row in points] == [0, 0, 0, 0, 1, 1]
    for one, other in zip(points[2:4], points[4:], strict=True):
        assert one["same_run"] != other["same_run"]
    assert {row["sid"] for row in points} == {11}
    assert points[2]["training_steps"] == points[3]["training_steps"] == 4
    assert "minimum_energy_error_eV" in points[3]["minimum"]
    assert len([row for row in rows if row.get("summary")]) == 4
    benchmark.main()
    again = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert again == rows[len(points) :]
    assert [path.name for path in tmp_path.iterdir()] == ["curve.jsonl"]


class Broken(EMT):
    """A model that cannot say anything."""

    def predict(self, structures):
        raise CalculationFailed(f"{len(structures)} structures, no finite energy")


def test_a_model_that_fails_is_counted_and_ends_nothing(data):
    runs = benchmark.read_systems(data)[11]
    broken, nothing = (benchmark.measured(calc, runs, [0], 4, offset=True) for calc in (Broken(), None))
    assert "no finite energy" in broken["failed"]
    rows = [{"way": "x", "asked": 0, **row} for row in (broken, nothing, nothing)]
    (found,) = benchmark.summary(rows)
    assert (found["points"], found["failed"]) == (3, 1)
    assert found["same_run.forces_mae_eV_per_A"] == nothing["same_run"]["forces_mae_eV_per_A"] > 0

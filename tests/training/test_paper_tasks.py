"""The tasks of the paper from ordinary files: IS2RE from relaxations, and scalar properties with their units."""

import json

import numpy as np
import pytest
from ase.build import add_adsorbate, fcc111, molecule
from ase.calculators.emt import EMT
from ase.calculators.singlepoint import SinglePointCalculator
from ase.constraints import FixAtoms
from ase.io import read, write
from ase.optimize import BFGS
from click.testing import CliRunner

from faenet_calc.cli import main

SMALL = (
    "model.hidden_channels=48", "model.filters=32", "model.interactions=2", "model.gaussians=16",
    "model.atoms.tag_channels=8", "model.atoms.group_period_channels=4", "model.atoms.properties=none",
    "run.tensorboard=false", "run.report=false", "run.device=cpu", "run.max_epochs=60", "optim.batch_size=4",
    "optim.warmup_steps=5", "data.val_fraction=0",
)  # fmt: skip
MOLECULES = ("CH4", "NH3", "H2O", "C2H6", "C2H4", "C2H2", "CH3OH", "H2CO", "HCN", "CO2", "N2H4", "C6H6")


def run(*arguments):
    found = CliRunner().invoke(main, [str(word) for word in arguments])
    assert found.exit_code == 0, found.stderr
    return found.stdout


def train_and_evaluate(folder, data, preset, *settings, options=()):
    words = [word for setting in (*SMALL, f"model.preset={preset}", *settings) for word in ("--set", setting)]
    run("train", data, "-o", folder / "run", *words)
    printed = run("evaluate", "-m", folder / "run" / "best.safetensors", data, "--json", "--symmetry", 0, *options)
    return json.loads(printed)


def spread(values):
    """Mean absolute error of the mean predictor."""
    return np.abs(np.array(values) - np.mean(values)).mean()


@pytest.fixture
def relaxations(tmp_path, monkeypatch):
    """Twelve short relaxations in one file, snapshots in no order."""
    monkeypatch.setenv("FAENET_CALC_CACHE", str(tmp_path / "cache"))
    random, snapshots = np.random.default_rng(0), []
    for sid in range(12):
        atoms = fcc111(("Cu", "Pd", "Pt")[sid % 3], (1, 1 + sid // 3 % 2, 3), vacuum=7.0)
        add_adsorbate(atoms, ("O", "H")[sid % 2], 1.5, "fcc")
        atoms.pbc = True
        atoms.rattle(0.1, rng=random)
        atoms.set_constraint(FixAtoms(mask=atoms.get_tags() == 3))
        atoms.calc = EMT()

        def keep(step=0, sid=sid, atoms=atoms):
            copy = atoms.copy()
            copy.info = {"sid": sid, "step": sum(one.info["sid"] == sid for one in snapshots)}
            results = {"energy": atoms.get_potential_energy(), "forces": atoms.get_forces(apply_constraint=False)}
            copy.calc = SinglePointCalculator(copy, **results)
            snapshots.append(copy)

        optimizer = BFGS(atoms, logfile=None)
        optimizer.attach(keep)
        optimizer.run(fmax=0.05, steps=4 if sid else 30)
    path = tmp_path / "relaxations.extxyz"
    write(path, [snapshots[n] for n in random.permutation(len(snapshots))])
    return path, snapshots


def test_is2re_pairs_the_first_structure_with_the_last_energy(relaxations, tmp_path):
    path, snapshots = relaxations
    out = tmp_path / "is2re.extxyz"
    assert "12 structures" in run("data", "is2re", path, "-o", out)
    for atoms in read(out, ":"):
        mine = [one for one in snapshots if one.info["sid"] == atoms.info["sid"]]
        assert np.allclose(atoms.positions, mine[0].positions, atol=1e-6)
        assert atoms.calc.results["energy"] == pytest.approx(mine[-1].calc.results["energy"], abs=1e-6)
        assert atoms.info["initial_energy"] == pytest.approx(mine[0].calc.results["energy"], abs=1e-6)
        assert atoms.calc.results["energy"] < atoms.info["initial_energy"]
        assert "forces" not in atoms.calc.results
        assert len(atoms.constraints) == 1 and atoms.info["n_snapshots"] == len(mine)


def test_is2re_leaves_out_what_is_not_relaxed(relaxations, tmp_path):
    path, snapshots = relaxations
    last = {atoms.info["sid"]: atoms for atoms in snapshots}
    relaxed = [sid for sid, atoms in last.items() if np.linalg.norm(atoms.get_forces(), axis=1).max() <= 0.05]
    assert 0 < len(relaxed) < 12
    run("data", "is2re", path, "-o", tmp_path / "relaxed.extxyz", "--fmax", 0.05)
    assert sorted(atoms.info["sid"] for atoms in read(tmp_path / "relaxed.extxyz", ":")) == sorted(relaxed)


def test_is2re_of_single_structures_is_refused(relaxations, tmp_path):
    _, snapshots = relaxations
    write(tmp_path / "first.extxyz", [one for one in snapshots if one.info["step"] == 0])
    found = CliRunner().invoke(
        main, ["data", "is2re", str(tmp_path / "first.extxyz"), "-o", str(tmp_path / "x.extxyz")]
    )
    assert found.exit_code == 2 and "more than one structure" in found.stderr


def test_relaxed_energies_are_learned_with_the_preset_of_the_paper(relaxations, tmp_path):
    data = tmp_path / "is2re.extxyz"
    run("data", "is2re", relaxations[0], "-o", data)
    found = train_and_evaluate(tmp_path, data, "paper-is2re")
    assert found["energy_mae"] < 0.3 * spread([atoms.calc.results["energy"] for atoms in read(data, ":")])
    assert "forces_mae" not in found and 0 <= found["energy_within"] <= 1
    assert found["structures_per_second"] > 0


def test_a_scalar_property_is_learned_and_reported_in_its_unit(tmp_path, monkeypatch):
    monkeypatch.setenv("FAENET_CALC_CACHE", str(tmp_path / "cache"))
    structures = [molecule(name) for name in MOLECULES]
    for atoms in structures:
        atoms.info["r2"] = float(((atoms.positions - atoms.positions.mean(axis=0)) ** 2).sum())
    data = tmp_path / "molecules.extxyz"
    write(data, structures)
    options, settings = ("--energy-key", "r2"), ("data.energy_key=r2", "energy.unit=Å²")
    found = train_and_evaluate(tmp_path, data, "paper-qm9", *settings, options=options)
    assert found["energy_mae"] < 0.3 * spread([atoms.info["r2"] for atoms in structures])
    model = tmp_path / "run" / "best.safetensors"
    printed = run("evaluate", "-m", model, data, "--symmetry", 0, *options)
    line = next(line for line in printed.splitlines() if "MAE" in line)
    assert line.split()[-1] == "Å²" and float(line.split()[-2]) == pytest.approx(found["energy_mae"], rel=1e-3)
    assert "meV" not in printed and "EwT" not in printed

"""Errors along relaxations: free atoms only, energy differences, untrained elements, collisions."""

import json

import ase.io
import dft_snapshots
import numpy as np
import pytest
from ase.build import bulk
from ase.calculators.singlepoint import SinglePointCalculator
from dft_snapshots import evaluate, read_systems, summarize

from faenet_calc import FAENetCalculator


@pytest.fixture(scope="module")
def calculator():
    return FAENetCalculator("copper-s", device="cpu", on_unknown_element="ignore")


def snapshots(calculator, element="Cu", force_error=0.0, energy_error=0.0):
    """Three snapshots labelled by the model, with an offset and known errors on the free atoms of the first."""
    found = []
    for step in range(3):
        atoms = bulk(element, "fcc", 3.61, cubic=True)
        atoms.rattle(0.05, seed=step)
        atoms.arrays["fixed"] = np.array([1, 1, 0, 0])
        results = calculator.predict([atoms])[0]
        forces = results["forces"] + [[9.0], [9.0], [force_error * (step == 0)], [0.0]]
        energy = results["energy"] + 100.0 + energy_error * (step == 0)
        atoms.calc = SinglePointCalculator(atoms, energy=energy, forces=forces)
        atoms.info.update(sid=7, run="vasp", step=step)
        found.append(atoms)
    return found


def test_only_free_atoms_and_energy_differences_count(calculator):
    exact = evaluate(calculator, snapshots(calculator), 3)
    assert exact["forces_mae_eV_A"] == exact["energy_change_mae_eV"] == 0.0 and exact["untrained"] == []
    wrong = evaluate(calculator, snapshots(calculator, force_error=0.6, energy_error=-0.4), 3)
    assert wrong["forces_mae_eV_A"] == pytest.approx(0.1)  # one of six free atoms
    assert wrong["energy_change_mae_eV"] == pytest.approx(0.2)  # one of two differences


@pytest.mark.filterwarnings("ignore:.*outside the domain of the model")
def test_untrained_elements_are_refused(calculator):
    rows = [evaluate(calculator, snapshots(calculator, element), 2) for element in ("Cu", "Al")]
    assert [row["untrained"] for row in rows] == [[], ["Al"]]
    assert [(row["verdict"], row["systems"]) for row in summarize(rows)] == [("accepted", 1), ("refused", 1)]
    assert summarize(rows[:1])[1] == {"row": "summary", "verdict": "refused", "systems": 0}


def test_the_command_skips_collisions_and_other_runs(calculator, tmp_path, monkeypatch):
    made = snapshots(calculator)
    other, collision = snapshots(calculator)[0], snapshots(calculator, force_error=351.0)[0]
    other.info["run"] = "bfgs"
    ase.io.write(tmp_path / "a.extxyz", [made[2], other, collision, made[0], made[1]], format="extxyz")
    found = read_systems([tmp_path / "a.extxyz"])
    assert [atoms.info["step"] for atoms in found[7]] == [0, 1, 2]
    monkeypatch.setattr("sys.argv", ["x", "copper-s", "--data", str(tmp_path / "a.extxyz"), "-o", str(tmp_path)])
    dft_snapshots.main()
    rows = [json.loads(line) for line in (tmp_path / "copper-s-dft_snapshots.jsonl").read_text().splitlines()]
    assert [row["row"] for row in rows] == ["header", "system", "summary", "summary"]
    assert rows[1]["formula"] == "Cu4" and rows[2]["systems"] == 1

"""Forces and energies along DFT relaxations (OC20, RPBE), beside what the model says about its own domain.

    python benchmarks/dft_snapshots.py metals-m --data FILE… [--snapshots 3] [-o DIR]

FILE holds snapshots of relaxations (VASP, RPBE, settings of OC20) with `sid`, `run` and `step`, and `fixed` = 1 for
constrained atoms: oc20-trajectories (OC20, Chanussot et al., ACS Catal. 2021, CC BY 4.0) or oc20-relax (systems of the
FINETUNA study; evaluate only). Of the `vasp` run of each system, snapshots are taken evenly from start to end; those
with a force above 50 eV/Å (collisions) are skipped.

One row per system: `untrained` elements (with these, the calculator refuses the structure by default), force MAE on
free atoms against the mean force component (eV/Å), MAE of energy differences from the last snapshot against their mean
(eV), and the number of snapshots that the domain guard marks as outside, if the model has one. Systems with untrained
elements are evaluated with on_unknown_element="ignore" to show what the refusal prevents. The summary gives medians
over the systems that the calculator accepts and refuses.

With -o, the rows are written to DIR/MODEL-dft_snapshots.jsonl.
"""

import argparse
import warnings
from collections.abc import Sequence
from pathlib import Path

import ase.io
import numpy as np
import torch
from ase import Atoms
from rows import Row, Rows, model_words, rounded, show

from faenet_calc import FAENetCalculator
from faenet_calc.files import source_for_ase
from faenet_calc.memory import keep_freed_memory

LARGEST_FORCE = 50.0
RUN = "vasp"


def read_systems(files: Sequence[Path]) -> dict[int, list[Atoms]]:
    """System id → snapshots of its vasp run ordered by step, without collisions."""
    found: dict[int, list[Atoms]] = {}
    for file in files:
        for atoms in ase.io.read(source_for_ase(file, "extxyz"), ":", format="extxyz"):
            if atoms.info["run"] == RUN and np.abs(atoms.get_forces()).max() < LARGEST_FORCE:
                found.setdefault(int(atoms.info["sid"]), []).append(atoms)
    return {sid: sorted(snapshots, key=lambda atoms: int(atoms.info["step"])) for sid, snapshots in found.items()}


def evaluate(calculator: FAENetCalculator, snapshots: Sequence[Atoms], count: int) -> Row:
    """Errors on ``count`` snapshots taken evenly, the last one included."""
    chosen = [snapshots[index] for index in np.unique(np.linspace(0, len(snapshots) - 1, count).astype(int))]
    results = calculator.predict(chosen)
    free = [~atoms.arrays["fixed"].astype(bool) for atoms in chosen]
    labels = np.concatenate([atoms.get_forces()[mask] for atoms, mask in zip(chosen, free, strict=True)])
    forces = np.concatenate([result["forces"][mask] for result, mask in zip(results, free, strict=True)])
    dft = np.array([atoms.get_potential_energy() for atoms in chosen])
    model = np.array([float(result["energy"]) for result in results])
    row: Row = {
        "formula": chosen[0].get_chemical_formula(),
        "untrained": sorted(set(chosen[0].get_chemical_symbols()) - set(calculator.trained_elements)),
        "snapshots": len(chosen),
        "forces_mae_eV_A": float(np.abs(forces - labels).mean()),
        "mean_force_eV_A": float(np.abs(labels).mean()),
        "energy_change_mae_eV": float(np.abs((model - model[-1]) - (dft - dft[-1]))[:-1].mean()),
        "mean_energy_change_eV": float(np.abs(dft - dft[-1])[:-1].mean()),
    }
    if all("domain" in result for result in results):
        row["outside"] = sum(result["domain"] == "outside" for result in results)
    return rounded(row)


def summarize(rows: Sequence[Row]) -> list[Row]:
    """Medians over the systems that the calculator accepts, and over those it refuses."""
    found = []
    for verdict in ("accepted", "refused"):
        members = [row for row in rows if bool(row["untrained"]) == (verdict == "refused")]
        medians = {
            key: float(np.median([row[key] for row in members]))
            for key in ("forces_mae_eV_A", "mean_force_eV_A", "energy_change_mae_eV", "mean_energy_change_eV")
            if members
        }
        found.append({"row": "summary", "verdict": verdict, "systems": len(members), **rounded(medians)})
    return found


def main() -> None:
    """Evaluate each model on all systems."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("models", nargs="+", metavar="MODEL", help="shipped name or checkpoint")
    parser.add_argument("--data", type=Path, nargs="+", required=True, help="files of snapshots")
    parser.add_argument("--snapshots", type=int, default=3, help="snapshots of each system, at least 2")
    parser.add_argument("-o", "--out", type=Path, help="folder for the rows")
    parser.add_argument("--threads", type=int, default=1)
    arguments = parser.parse_args()
    if arguments.snapshots < 2:
        parser.error(f"--snapshots {arguments.snapshots}: expected at least 2, because energies are differences")
    torch.set_num_threads(arguments.threads)
    keep_freed_memory()
    warnings.filterwarnings("ignore", category=UserWarning)
    systems = read_systems(arguments.data)
    for model in arguments.models:
        calculator = FAENetCalculator(model, device="cpu", on_unknown_element="ignore")
        path = None if arguments.out is None else arguments.out / f"{model}-dft_snapshots.jsonl"
        if path is not None:
            path.unlink(missing_ok=True)
        rows = Rows(path, {"row": "header", **model_words(model), "snapshots": arguments.snapshots})
        for sid, snapshots in systems.items():
            row = {"row": "system", "sid": sid, **evaluate(calculator, snapshots, arguments.snapshots)}
            rows.append(row)
            show(row)
        for row in summarize(rows.of("system")):
            rows.append(row)
            show(row)


if __name__ == "__main__":
    main()

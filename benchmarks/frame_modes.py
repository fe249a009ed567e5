"""What do fewer frames cost in accuracy, and what do they save?

    python benchmarks/frame_modes.py metals-m [--data labels.extxyz] [--limit 150] [--frames all pair one]

For the validation set of datasets/metals-v1 (or every n-th structure of it), each frame mode against the labels and
against all frames; one row per mode:

forces_mae              (meV/Å) against the labels.
energy_mae_per_atom     (meV) against the labels.
forces_from_all         (meV/Å) mean absolute difference from the forces of mode `all`.
energy_from_all         (meV/atom) mean absolute difference from the energy of mode `all`.
cpu_ms                  CPU time per structure for energy and forces with one thread, graph included; median.
"""

import argparse
import time
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
from ase import Atoms
from heldout_errors import VALIDATION
from numpy.typing import NDArray
from rows import Row, model_words, rounded, show

from faenet_calc import load_potential
from faenet_calc.data.formats import Record, read_records
from faenet_calc.frames.config import FrameMode
from faenet_calc.potential.potential import Potential

Floats = NDArray[np.float64]


def predicted(potential: Potential, atoms: Atoms, frames: FrameMode) -> tuple[float, Floats, float]:
    """Energy per atom (eV), forces [n_atoms, 3] (eV/Å) and CPU time (s)."""
    start = time.process_time()
    found = potential.predict(atoms, ("energy", "forces"), frames=frames)
    spent = time.process_time() - start
    assert found.forces is not None
    return float(found.energy[0]) / len(atoms), found.forces.double().numpy(), spent


def compare(potential: Potential, records: Sequence[Record], modes: Sequence[FrameMode]) -> dict[str, Row]:
    """The values described above, by mode; modes take turns on each structure."""
    found: dict[str, list[tuple[float, ...]]] = {mode: [] for mode in modes}
    for record in records:
        atoms, labels = record.atoms, record.results
        energy, forces, _ = predicted(potential, atoms, "all")
        for mode in modes:
            one_energy, one_forces, spent = predicted(potential, atoms, mode)
            found[mode].append(
                (
                    1e3 * np.abs(one_forces - labels["forces"]).mean(),
                    1e3 * abs(one_energy - labels["energy"] / len(atoms)),
                    1e3 * np.abs(one_forces - forces).mean(),
                    1e3 * abs(one_energy - energy),
                    1e3 * spent,
                )
            )
    names = ("forces_mae", "energy_mae_per_atom", "forces_from_all", "energy_from_all")
    return {
        mode: {
            "n_structures": len(values),
            **dict(zip(names, np.mean(values, axis=0).tolist(), strict=False)),
            "cpu_ms": float(np.median(np.array(values)[:, -1])),
        }
        for mode, values in found.items()
    }


def main() -> None:
    """A row per model and mode."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("models", nargs="+", metavar="MODEL")
    parser.add_argument("--data", type=Path, default=VALIDATION)
    parser.add_argument("--limit", type=int, default=150, help="maximum number of structures, evenly spread")
    parser.add_argument("--frames", nargs="+", choices=["one", "pair", "all", "exact"], default=["all", "pair", "one"])
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    records = [record for record in read_records(arguments.data) if {"energy", "forces"} <= record.results.keys()]
    if not records:
        raise SystemExit(f"no structure of {arguments.data} has energy and forces; label them first")
    if arguments.limit < len(records):
        records = [records[i] for i in np.linspace(0, len(records) - 1, arguments.limit).astype(int)]
    for name in arguments.models:
        rows = compare(load_potential(name, device="cpu"), records, arguments.frames)
        for mode, row in rows.items():
            show({"benchmark": "frame_modes", **model_words(name), "frames": mode, **rounded(row, 3)})


if __name__ == "__main__":
    main()

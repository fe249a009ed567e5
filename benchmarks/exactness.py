"""Exactness of symmetries and derivatives with random weights, and agreement with the original FAENet code.

    python benchmarks/exactness.py [--golden tests/golden/data]

Largest deviations over a set of structures in float64 (`modern` network, random weights scaled to forces of about 1
eV/Å); the same with the paper's frames; float32 against float64; imported weights against outputs of the original
code.
Rows are JSON.
"""

import argparse
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from ase import Atoms
from ase.build import molecule

from faenet_calc import build_potential, load_upstream
from faenet_calc.potential.potential import Potential
from faenet_calc.testing import laws
from faenet_calc.testing.laws import Deviation

SMALL = {"hidden_channels": 64, "filters": 48, "interactions": 2, "gaussians": 16, "mean_neighbors": 40.0}


def row(case: str, **values: float) -> None:
    """Print one result."""
    rounded = {name: float(f"{value:.2e}") for name, value in values.items()}
    print(json.dumps({"benchmark": "exactness", "case": case, **rounded}), flush=True)


def worst(potential: Potential, law: Callable[..., Deviation], structures: dict[str, Atoms]) -> dict[str, float]:
    """Largest deviation over structures."""
    found = [law(potential, atoms) for atoms in structures.values()]
    return {
        "energy_eV_per_atom": max(one.energy_per_atom for one in found),
        "forces_eV_per_A": max(one.forces for one in found),
    }


def bent(name: str, size: float) -> Atoms:
    """Molecule displaced slightly from its symmetric geometry."""
    atoms = molecule(name)
    atoms.positions += np.random.default_rng(0).normal(scale=size, size=atoms.positions.shape)
    return atoms


def surface() -> None:
    """Symmetries of the `modern` network and of the same network with the paper's frames."""
    structures = laws.structures()
    crystals = {name: atoms for name, atoms in structures.items() if atoms.pbc.any()}
    modern = laws.scaled(build_potential("modern-s", seed=1, dtype="float64", **SMALL), 10.0)
    paper = laws.scaled(build_potential("modern-s", seed=1, dtype="float64", frames={"kind": "pca3d"}, **SMALL), 10.0)
    symmetries = {
        "rotation": laws.rotation_deviation,
        "reflection": laws.reflection_deviation,
        "translation": laws.translation_deviation,
        "periodic images, shift and wrap": laws.wrapping_deviation,
        "permutation": laws.permutation_deviation,
    }
    for name, law in symmetries.items():
        row(name, **worst(modern, law, structures))
        row(f"{name}, paper's frames", **worst(paper, law, structures))
    for repeat in ((2, 1, 1), (2, 3, 1)):

        def supercell(potential: Potential, atoms: Atoms, repeat: Any = repeat) -> Deviation:
            return laws.supercell_deviation(potential, atoms, repeat)

        row(f"supercell {repeat}", **worst(modern, supercell, crystals))
    apart = laws.separation_deviation(modern, molecule("H2O"), molecule("CH3OH"))
    row("two molecules 15 Å apart", energy_eV_per_atom=apart.energy_per_atom, forces_eV_per_A=apart.forces)
    single = build_potential("modern-s", seed=1, **SMALL)
    batch = laws.batch_deviation(single, (list(structures.values()) * 3)[:32])
    row("batch of 32, float32", energy_eV_per_atom=batch.energy_per_atom, forces_eV_per_A=batch.forces)
    derivatives(modern, structures, crystals)
    narrow = [(single.predict(a), laws.in_float64(single).predict(a), len(a)) for a in structures.values()]
    row(
        "float32 against float64",
        energy_eV_per_atom=max(float((a.energy - b.energy).abs()) / n for a, b, n in narrow),
        forces_eV_per_A=max(float((a.forces - b.forces).abs().max()) for a, b, _ in narrow),
    )


def derivatives(modern: Potential, structures: dict[str, Atoms], crystals: dict[str, Atoms]) -> None:
    """Forces and stress against central differences."""
    near = {name: bent(name, 1e-5) for name in ("CH4", "C6H6", "NH3")} | {"CO2": bent("CO2", 1e-4)}
    edge = {"pair": Atoms("CuOCu", [[0, 0, 0], [1.8, 0.4, 0], [5.0 - 5e-5, 0, 0]])}
    for name, chosen in (("structures", structures), ("near degeneracy", near), ("neighbour at the cutoff", edge)):
        found = max(laws.force_deviation(modern, atoms) for atoms in chosen.values())
        row(f"forces against central differences, {name}", forces_eV_per_A=found)
    found = max(laws.stress_deviation(modern, atoms) for atoms in crystals.values())
    row("stress against central differences", stress_eV_per_A3=found)


def golden_cases(folder: Path) -> Iterator[tuple[str, dict[str, np.ndarray], Atoms]]:
    """Stored cases of the original code with their structures."""
    for path in sorted(folder.glob("*__*.npz")):
        inputs = np.load(folder / f"input_{path.stem.split('__')[1]}.npz")
        atoms = Atoms(inputs["atomic_numbers"], inputs["pos"].astype(float), tags=inputs["tags"])
        if "cell" in inputs:
            atoms.set_cell(inputs["cell"][0].astype(float))
            atoms.pbc = True
        yield path.stem, dict(np.load(path)), atoms


def golden(folder: Path) -> None:
    """Compare imported weights with outputs of the original code."""
    relative, energy, forces, count = 0.0, 0.0, 0.0, 0
    for _, stored, atoms in golden_cases(folder):
        weights = {key[3:]: value for key, value in stored.items() if key.startswith("sd/")}
        for mode in ("none", "3D_all", "3D_se3-all", "2D_all", "2D_se3-all"):
            averaging, method = ("", "") if mode == "none" else mode.split("_")
            config = json.loads(str(stored["__config__"]))
            potential = load_upstream(config, weights, frame_averaging=averaging, fa_method=method)
            found = potential.predict(atoms)
            expected = float(stored[f"out/energy_{mode}"][0])
            difference = abs(float(found.energy[0]) - expected)
            relative, energy = max(relative, difference / abs(expected)), max(energy, difference)
            forces = max(forces, float(np.abs(found.forces.numpy() - stored[f"out/forces_{mode}"]).max()))
            count += 1
    row(f"upstream's outputs, {count} cases, float32", relative_energy=relative, energy_eV=energy, forces=forces)


def main() -> None:
    """Print all rows."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--golden", type=Path, default=Path(__file__).parents[1] / "tests" / "golden" / "data")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    surface()
    golden(arguments.golden)


if __name__ == "__main__":
    main()

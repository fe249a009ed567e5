"""How much does a prediction depend on the description of the cell? One structure should have one energy.

    python benchmarks/cell_description.py metals-m [--frames all pair exact] [--metals Cu Au Pt] [--json]

Every row compares two descriptions of the same structure for each frame mode:

slab, meV/atom          O on the (111) surface with its vacuum along a or b instead of c, cell vectors with other signs,
                        swapped or replaced in-plane vectors, a (√3×√3)R30° supercell. Largest over the metals.
bulk, meV/atom          rattled 2×2×2 supercells of the primitive cell with other lattice vectors; the perfect crystal
                        in its primitive and in its cubic cell. Largest over the metals.
cubic metals, c/a - 1   longest over shortest edge of the cubic cell after relaxing it with fmax 0.005 eV/Å.
molecule, meV           in a box of 14 Å, and out of reach above a (111) surface, minus the free one.

Rows that are zero are exact for the frame mode; the others are learned.
"""

import argparse
from collections.abc import Callable, Iterator, Sequence

import numpy as np
import torch
from ase import Atoms
from ase.build import add_adsorbate, bulk, fcc111, make_supercell, molecule
from numpy.typing import ArrayLike
from rows import Row, model_words, show

from faenet_calc import FAENetCalculator, load_potential, relax
from faenet_calc.frames.config import FrameMode
from faenet_calc.potential.potential import Potential

MOLECULES = ("H2", "O2", "N2", "CO", "CO2", "H2O", "NH3", "CH4", "C2H4", "CH3OH", "C6H6")
MODES: tuple[FrameMode, ...] = ("all", "pair", "exact")


def described(atoms: Atoms, matrix: ArrayLike) -> Atoms:
    """The same structure with the lattice vectors ``matrix @ cell``; for integer matrices of determinant ±1."""
    changed = atoms.copy()
    changed.set_cell(np.asarray(matrix, dtype=float) @ atoms.cell.array, scale_atoms=False)
    return changed


def slab_with_oxygen(metal: str) -> Atoms:
    """O on fcc(111), periodic in three directions."""
    slab = fcc111(metal, (2, 2, 3), vacuum=8.0)
    add_adsorbate(slab, "O", 1.2, "fcc")
    slab.rattle(0.05, seed=0)
    slab.pbc = True
    return slab


def slab_descriptions(slab: Atoms) -> dict[str, Atoms]:
    """Other descriptions of a slab whose vacuum lies along c."""
    return {
        "slab, vacuum along a": described(slab, [[0, 0, 1], [1, 0, 0], [0, 1, 0]]),
        "slab, vacuum along b": described(slab, [[0, 1, 0], [0, 0, 1], [1, 0, 0]]),
        "slab, signs of a and c": described(slab, np.diag([-1, 1, -1])),
        "slab, a and b swapped": described(slab, [[0, 1, 0], [1, 0, 0], [0, 0, 1]]),
        "slab, a + b for b": described(slab, [[1, 0, 0], [1, 1, 0], [0, 0, 1]]),
        "slab, a + b for a": described(slab, [[1, 1, 0], [0, 1, 0], [0, 0, 1]]),
        "slab, (√3×√3)R30°": make_supercell(slab, [[1, 1, 0], [-1, 2, 0], [0, 0, 1]]),
    }


def bulk_descriptions(metal: str) -> dict[str, tuple[Atoms, Atoms]]:
    """Pairs of descriptions of a crystal."""
    crystal = bulk(metal) * (2, 2, 2)
    crystal.rattle(0.05, seed=0)
    return {
        "bulk, cyclic order of vectors": (crystal, described(crystal, [[0, 1, 0], [0, 0, 1], [1, 0, 0]])),
        "bulk, a and c swapped": (crystal, described(crystal, [[0, 0, 1], [0, 1, 0], [1, 0, 0]])),
        "bulk, a + b for a": (crystal, described(crystal, [[1, 1, 0], [0, 1, 0], [0, 0, 1]])),
        "bulk, primitive and cubic": (bulk(metal), bulk(metal, cubic=True)),
    }


def per_atom_difference(potential: Potential, first: Atoms, second: Atoms, frames: FrameMode) -> float:
    """(meV/atom) absolute difference of two energies per atom."""
    energies = [energy(potential, atoms, frames) / len(atoms) for atoms in (first, second)]
    return 1e3 * abs(energies[0] - energies[1])


def energy(potential: Potential, atoms: Atoms, frames: FrameMode) -> float:
    """(eV)."""
    return float(potential.predict(atoms, ("energy",), frames=frames).energy[0])


def tetragonality(calc: FAENetCalculator, metal: str) -> float:
    """Longest over shortest edge of the relaxed cubic cell, minus one."""
    lengths = relax(bulk(metal, cubic=True), calc, fmax=0.005, relax_cell=True).atoms.cell.lengths()
    return float(lengths.max() / lengths.min() - 1)


def molecule_differences(
    potential: Potential, name: str, slab: Atoms, frames: FrameMode
) -> Iterator[tuple[str, float]]:
    """(meV) energy in a box and far above a slab, minus that of the free molecule."""
    free = molecule(name)
    alone = energy(potential, free, frames)
    boxed = molecule(name, cell=[14.0, 14.0, 14.0], pbc=True)
    yield "in a box", 1e3 * (energy(potential, boxed, frames) - alone)
    reach = potential.cutoff + 1.0
    free.positions += slab.cell.array[:2].sum(axis=0) / 2 - free.positions.mean(axis=0)
    free.positions[:, 2] += slab.positions[:, 2].max() + reach - free.positions[:, 2].min()
    both = slab + free
    both.cell[2, 2] = np.ptp(both.positions[:, 2]) + reach
    yield "above a slab", 1e3 * (energy(potential, both, frames) - energy(potential, slab, frames) - alone)


def comparisons(potential: Potential, metals: Sequence[str], modes: Sequence[FrameMode]) -> Iterator[Row]:
    """A row per comparison, with a value for each frame mode."""
    known = {*map(int, potential.config.trained_elements)}

    def trained(atoms: Atoms) -> bool:
        return not known or known.issuperset(atoms.numbers)

    def row(case: str, unit: str, value: Callable[[FrameMode], float]) -> Row:
        return {"case": case, "unit": unit, **{mode: float(f"{value(mode):.3g}") for mode in modes}}

    slabs = [slab for slab in map(slab_with_oxygen, metals) if trained(slab)]
    crystals = [metal for metal in metals if trained(bulk(metal))]
    pairs: dict[str, list[tuple[Atoms, Atoms]]] = {}
    for slab in slabs:
        for case, other in slab_descriptions(slab).items():
            pairs.setdefault(case, []).append((slab, other))
    for metal in crystals:
        for case, pair in bulk_descriptions(metal).items():
            pairs.setdefault(case, []).append(pair)
    for case, found in pairs.items():
        yield row(
            case,
            "meV/atom",
            lambda mode, found=found: max(per_atom_difference(potential, *pair, mode) for pair in found),
        )
    for metal in crystals:
        calculators = {mode: FAENetCalculator(potential, frames=mode) for mode in modes}
        yield row(
            f"{metal}, c/a - 1", "", lambda mode, metal=metal, found=calculators: tetragonality(found[mode], metal)
        )
    clean = fcc111(metals[0], (4, 4, 3), vacuum=8.0)
    for name in MOLECULES if trained(clean) else ():
        if not trained(molecule(name)):
            continue
        values = {mode: dict(molecule_differences(potential, name, clean, mode)) for mode in modes}
        for place in next(iter(values.values())):
            yield row(f"{name} {place}", "meV", lambda mode, place=place, found=values: found[mode][place])


def table(rows: Sequence[Row], modes: Sequence[str]) -> str:
    """Markdown."""
    lines = [f"| | unit | {' | '.join(modes)} |", "|---|---|" + "---|" * len(modes)]
    lines += [f"| {row['case']} | {row['unit']} | {' | '.join(f'{row[mode]:.3g}' for mode in modes)} |" for row in rows]
    return "\n".join(lines)


def main() -> None:
    """Print the table of every model."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("models", nargs="+", metavar="MODEL")
    parser.add_argument("--frames", nargs="+", choices=["one", *MODES], default=list(MODES))
    parser.add_argument(
        "--metals", nargs="+", default=["Cu", "Au", "Pt"], help="fcc metals; the first one is the surface"
    )
    parser.add_argument("--json", action="store_true", help="print rows as JSON instead of a table")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    for name in arguments.models:
        words = {"benchmark": "cell_description", **model_words(name)}
        found = comparisons(load_potential(name, device="cpu", dtype="float64"), arguments.metals, arguments.frames)
        if arguments.json:
            for one in found:
                show({**words, **one})
        else:
            print(f"{name} ({words['weights']})", table(list(found), arguments.frames), sep="\n\n")


if __name__ == "__main__":
    main()

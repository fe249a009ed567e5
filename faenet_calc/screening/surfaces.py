"""Slabs for screening: built from bulk crystals and Miller indices, or read from files and brought to a standard form.

In the standard form the surface normal is +z, the first two cell vectors span the surface, the third is parallel to z
and not periodic, tags are 0 (sub-surface) and 1 (surface), and the lower half of the slab is fixed.
"""

from dataclasses import dataclass

import numpy as np
from ase import Atoms
from ase.build import bulk as build_bulk
from ase.calculators.calculator import Calculator
from ase.constraints import FixAtoms
from ase.geometry import minkowski_reduce
from numpy.typing import NDArray

from faenet_calc import elements
from faenet_calc.errors import InputError, counted
from faenet_calc.graphs.tags import ADSORBATE, infer_tags
from faenet_calc.simulate.relax import relax


@dataclass(frozen=True, kw_only=True, eq=False)
class Slab:
    """A clean slab in the standard form.

    Attributes:
        name: Used in keys and tables, e.g. ``Cu(111)``.
        atoms: The structure, with tags and constraints.
        source: Where it comes from: a file, or the bulk crystal and its Miller index.
    """

    name: str
    atoms: Atoms
    source: str


def relaxed_bulk(bulk: str | Atoms, calculator: Calculator, *, progress: bool = False) -> Atoms:
    """The bulk crystal at the equilibrium volume of the calculator.

    Args:
        bulk: Chemical symbol of an element with a reference structure in ASE, or a crystal.
        calculator: Provides energies and stress.
        progress: Show a progress bar on stderr.

    Raises:
        InputError: If there is no such element, ASE has no reference structure of it, or the relaxation fails.
    """
    crystal = _reference_crystal(bulk) if isinstance(bulk, str) else bulk.copy()
    title = f"bulk {crystal.symbols}" if progress else False
    result = relax(crystal, calculator, relax_cell=True, optimizer="BFGS", fmax=0.01, steps=200, progress=title)
    if result.error is not None or not result.converged:
        reason = result.error or f"largest force {result.fmax:.3f} eV/Å after {counted(result.n_steps, 'step')}"
        raise InputError(f"bulk {crystal.symbols}: the cell relaxation did not converge ({reason})")
    return result.atoms


def _reference_crystal(symbol: str) -> Atoms:
    """The crystal that ASE knows as the reference structure of an element."""
    try:
        elements.atomic_number(symbol)
    except InputError as error:
        hint = "" if "did you mean" in str(error) else "; other crystals are read from structure files"
        raise InputError(f"bulk: {error}{hint}") from error
    try:
        return build_bulk(symbol)
    except (ValueError, KeyError, RuntimeError) as error:
        raise InputError(f"bulk: ASE has no reference crystal of {symbol}; give a structure file instead") from error


def cut_slab(
    bulk: Atoms,
    miller: tuple[int, int, int],
    *,
    layers_A: float = 7.0,
    vacuum_A: float = 15.0,
    min_width_A: float = 5.0,
    name: str | None = None,
) -> list[Slab]:
    """All distinct terminations of a surface, cut with pymatgen's SlabGenerator.

    Args:
        bulk: Primitive or conventional crystal.
        miller: Miller index with respect to the conventional cell.
        layers_A: Minimum thickness of the slab (Å).
        vacuum_A: Vacuum between periodic images (Å).
        min_width_A: The slab is repeated until both in-plane cell heights reach this length (Å).
        name: Prefix of the names; None for the formula.
    """
    from pymatgen.core.surface import SlabGenerator
    from pymatgen.io.ase import AseAtomsAdaptor
    from pymatgen.symmetry.analyzer import SpacegroupAnalyzer

    structure = AseAtomsAdaptor.get_structure(Atoms(bulk.numbers, positions=bulk.positions, cell=bulk.cell, pbc=True))
    conventional = SpacegroupAnalyzer(structure).get_conventional_standard_structure()
    generator = SlabGenerator(
        conventional,
        miller,
        min_slab_size=layers_A,
        min_vacuum_size=vacuum_A,
        center_slab=True,
        primitive=True,
    )
    index = "".join(str(i) if i >= 0 else f"-{-i}" for i in miller)
    label = f"{name or bulk.symbols.formula.reduce()[0]}({index})"
    cuts = generator.get_slabs()
    if not cuts:
        raise InputError(f"{label}: pymatgen finds no slab; increase layers_A={layers_A} Å")
    slabs = []
    for number, cut in enumerate(cuts):
        termination = "" if len(cuts) == 1 else f"-{chr(ord('a') + number)}"
        atoms = standard_slab(AseAtomsAdaptor.get_atoms(cut, msonable=False), min_width_A=min_width_A)
        slabs.append(Slab(name=f"{label}{termination}", atoms=atoms, source=f"{bulk.symbols} cut along {miller}"))
    return slabs


def standard_slab(atoms: Atoms, *, min_width_A: float = 0.0) -> Atoms:
    """A slab in the standard form of this module.

    Existing FixAtoms constraints are kept; without any, all atoms in the lower half are fixed.

    Args:
        atoms: A clean slab with its vacuum along any cell vector.
        min_width_A: Repeat the cell in the plane until both heights reach this length (Å).

    Raises:
        InputError: If the structure has no vacuum layer, or carries an adsorbate.
    """
    slab = _vacuum_last(atoms)
    tags = infer_tags(slab)
    if (tags == ADSORBATE).any():
        found = counted(int((tags == ADSORBATE).sum()), "atom looks", "atoms look")
        raise InputError(f"{atoms.symbols}: {found} like an adsorbate; screening needs clean slabs")
    slab.set_tags(tags)
    if not slab.constraints:
        heights = slab.positions[:, 2]
        slab.set_constraint(FixAtoms(mask=heights < (heights.min() + heights.max()) / 2 - 1e-3))
    return slab.repeat((*_repeats(slab.cell.array, min_width_A), 1))


def _vacuum_last(atoms: Atoms) -> Atoms:
    """The slab with its vacuum along the third cell vector, +z, not cut by the cell boundary."""
    gaps = [_gap(atoms, axis) for axis in range(3)]
    axis = int(np.argmax([size for _, size in gaps]))
    start, size = gaps[axis]
    if size < 5.0:
        raise InputError(f"{atoms.symbols}: the widest gap is {size:.1f} Å; a slab needs at least 5 Å of vacuum")
    order = [(axis + 1) % 3, (axis + 2) % 3, axis]
    fractional = atoms.cell.complete().scaled_positions(atoms.positions)[:, order]
    if np.isfinite(start):
        fractional[:, 2] = (fractional[:, 2] - start) % 1.0
    cell = atoms.cell.complete().array[order]
    positions = fractional @ cell
    cell, _ = minkowski_reduce(cell, pbc=(True, True, False))
    if np.linalg.det(cell) < 0:
        cell[[0, 1]] = cell[[1, 0]]
    slab = Atoms(atoms.numbers, positions=positions, cell=cell, pbc=(True, True, False))
    slab.set_constraint([constraint for constraint in atoms.constraints if isinstance(constraint, FixAtoms)])
    standard, _ = slab.cell.standard_form()
    slab.set_cell(standard, scale_atoms=True)
    positions = slab.positions.copy()
    slab.set_cell([*standard[:2], [0.0, 0.0, standard[2, 2]]], scale_atoms=False)
    slab.positions = positions
    slab.wrap()
    thickness = float(np.ptp(positions[:, 2]))
    slab.cell[2, 2] = thickness + max(float(size) if np.isfinite(size) else 15.0, 10.0)
    slab.positions[:, 2] += (slab.cell[2, 2] - thickness) / 2 - positions[:, 2].min()
    return slab


def _gap(atoms: Atoms, axis: int) -> tuple[float, float]:
    """Fractional end and size (Å) of the widest empty range along an axis; infinite without periodicity."""
    if not atoms.pbc[axis]:
        return np.nan, np.inf
    cell = atoms.cell.array
    others = np.cross(cell[(axis + 1) % 3], cell[(axis + 2) % 3])
    height = abs(np.linalg.det(cell)) / np.linalg.norm(others)
    fraction = np.sort(atoms.cell.scaled_positions(atoms.positions)[:, axis] % 1.0)
    gaps = np.diff(fraction, append=fraction[0] + 1.0)
    widest = int(np.argmax(gaps))
    return float(fraction[(widest + 1) % len(fraction)]), float(gaps[widest] * height)


def _repeats(cell: NDArray[np.float64], min_width_A: float) -> tuple[int, int]:
    """How often to repeat the two in-plane vectors so that both heights of the cell reach a width."""
    a, b = cell[:2]
    area = np.linalg.norm(np.cross(a, b))
    along_a, along_b = (max(1, int(np.ceil(min_width_A * np.linalg.norm(v) / area - 1e-6))) for v in (b, a))
    return along_a, along_b

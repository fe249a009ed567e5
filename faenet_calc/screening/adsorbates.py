"""Adsorbates by name or from a file, with their binding atoms, ready to be placed on a surface."""

from dataclasses import dataclass
from pathlib import Path

import numpy as np
from ase import Atoms
from ase.build import molecule
from ase.collections import g2
from ase.data import chemical_symbols

from faenet_calc.errors import InputError, did_you_mean
from faenet_calc.graphs.reading import read_structures
from faenet_calc.graphs.tags import ADSORBATE


@dataclass(frozen=True, kw_only=True, eq=False)
class Adsorbate:
    """A molecule or fragment that binds through one or two of its atoms.

    Attributes:
        name: Used in keys and tables, e.g. ``CO``.
        molecule: The free molecule as given, without cell.
        atoms: The molecule with its binding atom at the origin and the rest above (+z).
        binding: Indices of the binding atom (monodentate) and, if any, of the second one (bidentate).
    """

    name: str
    molecule: Atoms
    atoms: Atoms
    binding: tuple[int, ...]

    @property
    def is_axial(self) -> bool:
        """Whether a rotation about the surface normal leaves the upright orientation unchanged."""
        return bool((np.linalg.norm(self.atoms.positions[:, :2], axis=1) < 0.05).all())

    def upright(self) -> Atoms:
        """Monodentate: the binding atom below, the rest above it."""
        return self.atoms.copy()

    def bidentate(self) -> Atoms | None:
        """Both binding atoms along x, centered at the origin, the rest above; None for a monodentate adsorbate."""
        if len(self.binding) < 2:
            return None
        atoms = self.atoms.copy()
        first, second = self.binding
        atoms.positions -= atoms.positions[[first, second]].mean(axis=0)
        atoms.rotate(atoms.positions[second] - atoms.positions[first], "x")
        rest = np.delete(atoms.positions, [first, second], axis=0)
        if len(rest):
            _, y, z = rest.mean(axis=0)
            if np.hypot(y, z) > 0.05:
                atoms.rotate(90.0 - float(np.degrees(np.arctan2(z, y))), "x")
        return atoms


@dataclass(frozen=True)
class _Source:
    """A molecule of ASE's g2 collection, its binding atoms there, and the atoms to remove from it."""

    molecule: str
    binding: tuple[int, ...]
    removed: tuple[int, ...] = ()


_NAMED = {
    "CO": _Source("CO", (1,)),
    "NO": _Source("NO", (0,)),
    "OH": _Source("OH", (0,)),
    "CH2": _Source("CH2_s1A1d", (0,)),
    "CHO": _Source("HCO", (0, 1)),
    "CH2O": _Source("H2CO", (0, 1)),
    "CH3O": _Source("CH3O", (1,)),
    "COOH": _Source("HCOOH", (1, 0), (4,)),
    "HCOO": _Source("HCOOH", (0, 2), (3,)),
    "CH3OH": _Source("CH3OH", (1,)),
    "CH3CH2OH": _Source("CH3CH2OH", (2,)),
    "CH3NH2": _Source("H3CNH2", (1,)),
    "CH2OH": _Source("H2COH", (0,)),
    "CH3CH2O": _Source("CH3CH2O", (2,)),
    "CH3CO": _Source("CH3CO", (1, 5)),
    "CH2CO": _Source("H2CCO", (1, 0)),
    "CH3C": _Source("C2H6", (1,), (5, 6, 7)),
    "C2H3": _Source("C2H3", (1, 0)),
    "C2H5": _Source("C2H5", (1,)),
    "CCH": _Source("CCH", (1, 0)),
    "CH3CN": _Source("CH3CN", (2, 1)),
    "CH3NH": _Source("H3CNH2", (1,), (3,)),
    "H2S": _Source("SH2", (0,)),
    "O2": _Source("O2", (0, 1)),
    "N2": _Source("N2", (0, 1)),
    "H2": _Source("H2", (0, 1)),
    "CO2": _Source("CO2", (0, 1)),
    "C2H2": _Source("C2H2", (0, 1)),
    "C2H4": _Source("C2H4", (0, 1)),
    "N2H4": _Source("N2H4", (0, 1)),
    "H2O2": _Source("H2O2", (0, 1)),
}


def adsorbate(name: str, binding: tuple[int, ...] | None = None) -> Adsorbate:
    """An adsorbate by name or from a file.

    Args:
        name: A chemical symbol (single atom), a radical such as OH, CHO, COOH, CH3 or NH2, a molecule of ASE's g2
            collection, or the path of a structure file.
        binding: Indices of the one or two atoms that bind to the surface; required for a file with several atoms, where
            None takes the first atom only if it is the only one.

    Raises:
        InputError: For an unknown name or indices that do not exist.
    """
    if Path(name).suffix and Path(name).is_file():
        return _from_file(Path(name), binding)
    if name in _NAMED:
        source = _NAMED[name]
        atoms = molecule(source.molecule)
        kept = [index for index in range(len(atoms)) if index not in source.removed]
        bound = tuple(kept.index(index) for index in source.binding)
        return _prepared(name, atoms[kept], bound if binding is None else binding)
    if name in chemical_symbols[1:]:
        return _prepared(name, Atoms(name), (0,))
    if name in g2.names:
        return _prepared(name, molecule(name), (0,) if binding is None else binding)
    hint = did_you_mean(name, [*_NAMED, *chemical_symbols[1:], *g2.names]) or f". Examples: {', '.join(sorted(_NAMED))}"
    raise InputError(
        f"adsorbate {name!r} is not a chemical symbol, a molecule of ASE's g2 collection or a structure file{hint}"
    )


def _from_file(path: Path, binding: tuple[int, ...] | None) -> Adsorbate:
    structures = read_structures([str(path)])
    if len(structures) != 1:
        raise InputError(f"{path} holds {len(structures)} structures, expected one adsorbate")
    atoms = structures[0].atoms
    if binding is None and len(atoms) > 1:
        raise InputError(
            f"{path} has {len(atoms)} atoms; say which one or two bind to the surface, e.g. {path}:0 or {path}:0,1"
        )
    return _prepared(path.stem, atoms, binding or (0,))


def _prepared(name: str, atoms: Atoms, binding: tuple[int, ...]) -> Adsorbate:
    exist = all(0 <= index < len(atoms) for index in binding)
    if not 1 <= len(binding) <= 2 or not exist or len(set(binding)) < len(binding):
        raise InputError(
            f"adsorbate {name}: binding atoms {binding}, expected one or two different indices below {len(atoms)}"
        )
    free = Atoms(atoms.numbers, positions=atoms.positions, tags=[ADSORBATE] * len(atoms))
    raised = free.copy()
    raised.positions -= raised.positions[binding[0]]
    others = np.delete(raised.positions, binding[0], axis=0)
    if len(others):
        up = others.mean(axis=0)
        if np.linalg.norm(up) < 0.2:  # the binding atom is the center (CH4, CO2): every direction is as good
            up = others[0]
        raised.rotate(up, "z")
    return Adsorbate(name=name, molecule=free, atoms=raised, binding=tuple(binding))

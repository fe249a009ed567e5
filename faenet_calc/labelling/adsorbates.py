"""Adsorbates and gas molecules by name: geometry, binding atom and orientation."""

import numpy as np
from ase import Atoms
from ase.build import molecule
from numpy.typing import NDArray

# name → (ASE g2 molecule, index of the binding atom, atoms removed from the molecule)
_SOURCES: dict[str, tuple[str, int, tuple[int, ...]]] = {
    "H": ("H", 0, ()),
    "C": ("C", 0, ()),
    "N": ("N", 0, ()),
    "O": ("O", 0, ()),
    "CO": ("CO", 1, ()),
    "NO": ("NO", 0, ()),
    "OH": ("OH", 0, ()),
    "H2O": ("H2O", 0, ()),
    "CH": ("CH", 0, ()),
    "CH2": ("CH2_s1A1d", 0, ()),
    "CH3": ("CH3", 0, ()),
    "NH": ("NH", 0, ()),
    "NH2": ("NH2", 0, ()),
    "NH3": ("NH3", 0, ()),
    "CHO": ("HCO", 0, ()),
    "CH2O": ("H2CO", 0, ()),
    "CH3O": ("CH3O", 1, ()),
    "COOH": ("HCOOH", 1, (4,)),
    "HCOO": ("HCOOH", 0, (3,)),
    "O2": ("O2", 0, ()),
    "N2": ("N2", 0, ()),
    "H2": ("H2", 0, ()),
    "CO2": ("CO2", 0, ()),
    "CH4": ("CH4", 0, ()),
    "CH3OH": ("CH3OH", 1, ()),
    "HCOOH": ("HCOOH", 0, ()),
    "H2O2": ("H2O2", 0, ()),
    "HCN": ("HCN", 0, ()),
    "C2H2": ("C2H2", 0, ()),
    "C2H4": ("C2H4", 0, ()),
    "C2H6": ("C2H6", 0, ()),
    "C6H6": ("C6H6", 0, ()),
    "CH3CHO": ("CH3CHO", 0, ()),
    "CH3CH2OH": ("CH3CH2OH", 2, ()),
    "CH3NH2": ("H3CNH2", 1, ()),
    "N2H4": ("N2H4", 0, ()),
    "N2O": ("N2O", 0, ()),
    "NO2": ("NO2", 0, ()),
}
ADSORBATES = tuple(_SOURCES)
GAS = tuple(name for name in _SOURCES if len(name) > 1)


def gas_molecule(name: str) -> Atoms:
    """The molecule of ASE's g2 collection without the removed atoms; no cell, tag 2."""
    source, _, removed = _SOURCES[name]
    atoms = Atoms(source) if len(source) == 1 else molecule(source)
    del atoms[list(removed)]
    return Atoms(atoms.numbers, positions=atoms.positions, tags=[2] * len(atoms))


def upright(name: str) -> Atoms:
    """The adsorbate with its binding atom first and at the origin, and the other atoms above it (+z)."""
    _, binding, removed = _SOURCES[name]
    atoms = gas_molecule(name)
    binding -= sum(index < binding for index in removed)
    order = [binding, *(index for index in range(len(atoms)) if index != binding)]
    atoms = atoms[order]
    atoms.positions -= atoms.positions[0]
    if len(atoms) > 1:
        up = atoms.positions[1:].mean(axis=0)
        if np.linalg.norm(up) < 0.2:  # the binding atom is the center (CH4, CO2): any direction can be up
            up = atoms.positions[1]
        atoms.rotate(up, "z")
    return atoms


def random_rotation(rng: np.random.Generator) -> NDArray[np.float64]:
    """A uniformly random rotation matrix [3, 3], from a uniformly random unit quaternion."""
    w, x, y, z = (q := rng.normal(size=4)) / np.linalg.norm(q)
    return np.array(
        [
            [1 - 2 * (y * y + z * z), 2 * (x * y - z * w), 2 * (x * z + y * w)],
            [2 * (x * y + z * w), 1 - 2 * (x * x + z * z), 2 * (y * z - x * w)],
            [2 * (x * z - y * w), 2 * (y * z + x * w), 1 - 2 * (x * x + y * y)],
        ]
    )

"""Adsorbates and gas molecules by name: geometry, binding atom and orientation."""

import re

import numpy as np
from ase import Atoms
from ase.data import chemical_symbols
from numpy.typing import NDArray

from faenet_calc.screening.adsorbates import adsorbate

ADSORBATES = (
    "H", "C", "N", "O", "CO", "NO", "OH", "H2O", "CH", "CH2", "CH3", "NH", "NH2", "NH3", "CHO", "CH2O", "CH3O", "COOH",
    "HCOO", "O2", "N2", "H2", "CO2", "CH4", "CH3OH", "HCOOH", "H2O2", "HCN", "C2H2", "C2H4", "C2H6", "C6H6", "CH3CHO",
    "CH3CH2OH", "CH3NH2", "N2H4", "N2O", "NO2", "CN", "CH3CN", "CH3NH", "CCH", "CH3C", "C2H3", "C2H5", "CH3CO", "CH2CO",
    "CH2OH", "CH3CH2O", "S", "SH", "H2S", "SO2", "Cl", "HCl",
)  # fmt: skip
GAS = tuple(name for name in ADSORBATES if name not in chemical_symbols)


SUBSURFACE = "_sub"
"""Ending of the name of an atom below the surface, e.g. ``O_sub``."""


def species(name: str) -> tuple[str, ...]:
    """The adsorbates of one cell: ``2CO+O`` is CO, CO and O; empty for an empty name."""
    found: list[str] = []
    for part in name.split("+") if name else ():
        count, one = re.fullmatch(r"(\d*)(.*)", part).groups()  # type: ignore[union-attr]
        found += [one] * int(count or 1)
    return tuple(found)


def is_known(name: str) -> bool:
    """Whether all adsorbates of one cell are known by name; only single atoms can be below the surface."""
    bare = [one.removesuffix(SUBSURFACE) for one in species(name)]
    below = [one for one in species(name) if one.endswith(SUBSURFACE)]
    return (
        bool(bare)
        and set(bare) <= set(ADSORBATES)
        and all(one[: -len(SUBSURFACE)] in chemical_symbols for one in below)
    )


def gas_molecule(name: str, box_A: float = 0.0) -> Atoms:
    """The free molecule with tag 2, without a cell or in a periodic cubic box with this edge (Å)."""
    molecule = adsorbate(name).molecule.copy()
    if box_A:
        molecule.set_cell([box_A] * 3)
        molecule.pbc = True
    return molecule


def upright(name: str) -> Atoms:
    """The adsorbate with its binding atom first and at the origin, and the other atoms above it (+z)."""
    one = adsorbate(name)
    order = [one.binding[0], *(index for index in range(len(one.atoms)) if index != one.binding[0])]
    return one.upright()[order]


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

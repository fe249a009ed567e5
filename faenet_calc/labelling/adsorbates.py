"""Adsorbates and gas molecules by name: geometry, binding atom and orientation."""

import numpy as np
from ase import Atoms
from numpy.typing import NDArray

from faenet_calc.screening.adsorbates import adsorbate

ADSORBATES = (
    "H", "C", "N", "O", "CO", "NO", "OH", "H2O", "CH", "CH2", "CH3", "NH", "NH2", "NH3", "CHO", "CH2O", "CH3O", "COOH",
    "HCOO", "O2", "N2", "H2", "CO2", "CH4", "CH3OH", "HCOOH", "H2O2", "HCN", "C2H2", "C2H4", "C2H6", "C6H6", "CH3CHO",
    "CH3CH2OH", "CH3NH2", "N2H4", "N2O", "NO2",
)  # fmt: skip
GAS = tuple(name for name in ADSORBATES if len(name) > 1)


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

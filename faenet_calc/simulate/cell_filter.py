"""Relaxation of the cell: which components are free, and ASE's filter with a checked matrix logarithm."""

import warnings
from collections.abc import Sequence
from typing import Any

import numpy as np
from ase import Atoms
from ase.filters import FrechetCellFilter
from numpy.typing import NDArray
from scipy.linalg import expm, logm

from faenet_calc.errors import InputError, warn_user
from faenet_calc.graphs.tags import empty_directions
from faenet_calc.units import GPA

_LOGARITHM_TOLERANCE = 1e-8  # relative error of exp(log F); 1e-8 of a cell vector is far below any force criterion


def cell_target(atoms: Atoms, relax_cell: bool | Sequence[bool], pressure_gpa: float) -> Any:
    """What an optimizer moves: the atoms, or a filter that moves the cell as well.

    Args:
        atoms: With a calculator.
        relax_cell: False, True for the periodic directions, or six flags (xx, yy, zz, yz, xz, xy).
        pressure_gpa: External pressure (GPa).
    """
    if isinstance(relax_cell, bool | np.bool_):
        if not relax_cell:
            if pressure_gpa:
                raise InputError(f"pressure_GPa={pressure_gpa} has no effect without relax_cell=True")
            return atoms
        mask = _periodic_components(atoms)
        if atoms.cell.rank == 3 and (empty := empty_directions(atoms)):
            words = " and ".join("abc"[axis] for axis in empty)
            warn_user(
                f"the cell is relaxed although it has vacuum along {words}, where it is periodic: a slab keeps the "
                "lattice constant of its bulk crystal. To relax some components only, set atoms.pbc=False along the "
                "vacuum, or relax_cell to six flags"
            )
    else:
        mask = [bool(flag) for flag in relax_cell]
        if len(mask) != 6:
            raise InputError(f"relax_cell has {len(mask)} flags, expected True, False or six (xx, yy, zz, yz, xz, xy)")
    if not atoms.pbc.any() or atoms.cell.rank < 3:
        raise InputError("relax_cell needs a periodic structure with three cell vectors")
    return CellFilter(atoms, mask=mask, scalar_pressure=pressure_gpa * GPA)


class CellFilter(FrechetCellFilter):
    """ASE's Fréchet cell filter without scipy's warning about rounding errors of the matrix logarithm.

    scipy warns from a relative error of 2e-13, which cells reach regularly and no relaxation notices. Errors that
    matter are raised.
    """

    def __init__(self, atoms: Atoms, *, mask: Sequence[bool], scalar_pressure: float) -> None:
        super().__init__(atoms, mask=mask, scalar_pressure=scalar_pressure)
        self.logm = matrix_logarithm


def matrix_logarithm(deformation: NDArray[np.float64]) -> NDArray[np.float64]:
    """Real logarithm of a deformation gradient [3, 3].

    Raises:
        ArithmeticError: The deformation has no accurate real logarithm.
    """
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "logm result may be inaccurate", RuntimeWarning)
        logarithm = logm(deformation)
    error = np.linalg.norm(expm(logarithm) - deformation) / np.linalg.norm(deformation)
    if np.iscomplexobj(logarithm) or not error < _LOGARITHM_TOLERANCE:
        raise ArithmeticError(
            f"the cell was deformed by {np.array2string(deformation, precision=3, separator=', ')}, which has no "
            "accurate logarithm; start from a cell closer to the minimum or reduce the step (maxstep)"
        )
    return np.asarray(logarithm)


def _periodic_components(atoms: Atoms) -> list[bool]:
    """Six flags that free the cell in the periodic directions only."""
    if atoms.pbc.all():
        return [True] * 6
    # Cartesian axes along which the periodic cell vectors have components, and the other cell vectors.
    periodic = np.abs(atoms.cell.array[atoms.pbc]).max(axis=0, initial=0.0) > 1e-6
    others = np.abs(atoms.cell.array[~atoms.pbc]).max(axis=0, initial=0.0) > 1e-6
    if (periodic & others).any():
        raise InputError(
            f"relax_cell=True with pbc {atoms.pbc.tolist()} needs non-periodic cell vectors that are orthogonal to the "
            "periodic ones and along Cartesian axes; give six flags (xx, yy, zz, yz, xz, xy) instead"
        )
    x, y, z = (bool(flag) for flag in periodic)
    return [x, y, z, y and z, x and z, x and y]

"""Labels of a structure: its energy, forces and stress.

Forces are raw: the stored results are used instead of ASE's ``get_forces()``, which sets those on constrained atoms to
zero. If a file was written with such zeros, the fixed atoms have no force label (NaN).
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from ase.constraints import FixAtoms, FixCartesian
from numpy.typing import NDArray

from faenet_calc.data.formats import Record
from faenet_calc.errors import InputError

Floats = NDArray[np.float64]
Mask = NDArray[np.bool_]


@dataclass(frozen=True, kw_only=True, eq=False)
class Labels:
    """Labels of one structure.

    Attributes:
        energy: Energy (eV), or the scalar of the given name, or None.
        forces: [n_atoms, 3] (eV/Å), NaN for atoms without a label, or None.
        stress: [3, 3] (eV/Å³, ASE's sign), or None.
        free: [n_atoms], False for constrained atoms.
        n_zeroed: Number of fixed atoms whose forces were exactly zero and are now NaN.
    """

    energy: float | None
    forces: Floats | None
    stress: Floats | None
    free: Mask
    n_zeroed: int = 0

    @property
    def present(self) -> list[str]:
        """Names of the labels that the structure has."""
        return [name for name in ("energy", "forces", "stress") if getattr(self, name) is not None]


def labels_of(record: Record, *, energy_key: str | None = None, forces_key: str | None = None) -> Labels:
    """Extract the labels of one record.

    Args:
        energy_key: Name of the per-structure scalar to learn; by default the calculator's energy.
        forces_key: Name of the per-atom array with forces; by default the calculator's forces.

    Raises:
        InputError: A label has a wrong shape or is not a number.
    """
    free = free_atoms(record)
    forces = raw_forces(record, forces_key)
    zeroed = zeroed_atoms(forces, free) if forces is not None else np.zeros_like(free)
    if forces is not None and zeroed.any():
        forces = np.where(zeroed[:, None], np.nan, forces)
    return Labels(
        energy=_energy(record, energy_key or "energy"),
        forces=forces,
        stress=_stress(record),
        free=free,
        n_zeroed=int(zeroed.sum()),
    )


def need_named(n_labels: Mapping[str, int], example: Record, *, energy_key: str | None, forces_key: str | None) -> None:
    """Raise an InputError if no structure has the energy or forces that were asked for by name.

    Args:
        n_labels: Label → number of structures that have it.
        example: A structure whose names are listed in the message.
        energy_key: Name of the energy, or None.
        forces_key: Name of the forces, or None.
    """
    for name, key in (("energy", energy_key), ("forces", forces_key)):
        if key and not n_labels[name]:
            available = scalar_keys(example) if name == "energy" else sorted(example.atoms.arrays)
            raise InputError(
                f"no structure has {name} under {key!r}; {example} has {', '.join(available) or 'nothing'}"
            )


def free_atoms(record: Record) -> Mask:
    """[n_atoms] atoms that are free to move: not in FixAtoms (or FixCartesian along x, y and z) nor in ``fixed``."""
    free = np.ones(len(record.atoms), dtype=bool)
    for constraint in record.atoms.constraints:
        in_all_directions = isinstance(constraint, FixCartesian) and bool(np.all(constraint.mask))
        if isinstance(constraint, FixAtoms) or in_all_directions:
            free[constraint.index] = False
    if "fixed" in record.atoms.arrays:
        free &= ~record.atoms.arrays["fixed"].astype(bool)
    return free


def zeroed_atoms(forces: Floats, free: Mask) -> Mask:
    """[n_atoms] the fixed atoms if the forces on all of them are exactly zero while free atoms feel forces."""
    zero: Mask = np.all(forces == 0, axis=1)
    return ~free if zero[~free].all() and not zero[free].all() else np.zeros_like(free)


def _lookup(record: Record, key: str) -> Any:
    for place in (record.results, record.info, record.atoms.arrays):
        if key in place:
            return place[key]
    return None


def _energy(record: Record, key: str) -> float | None:
    value = _lookup(record, key)
    if value is None:
        return None
    try:
        number = np.asarray(value, dtype=np.float64)
    except (TypeError, ValueError):
        number = np.empty(0)
    if number.size != 1:
        raise InputError(f"{record}: {key} = {value!r}, expected one number")
    return float(number.ravel()[0])


def raw_forces(record: Record, forces_key: str | None = None) -> Floats | None:
    """[n_atoms, 3] (eV/Å) forces as they are in the file."""
    key = forces_key or "forces"
    value = _lookup(record, key)
    if value is None:
        return None
    forces = np.asarray(value, dtype=np.float64)
    if forces.shape != (len(record.atoms), 3):
        raise InputError(f"{record}: {key} has shape {forces.shape}, expected ({len(record.atoms)}, 3)")
    return forces


def _stress(record: Record) -> Floats | None:
    value = record.results.get("stress")
    if value is None:
        return None
    stress = np.asarray(value, dtype=np.float64)
    if stress.size == 6:
        xx, yy, zz, yz, xz, xy = stress.ravel()
        return np.array([[xx, xy, xz], [xy, yy, yz], [xz, yz, zz]])
    if stress.size != 9:
        raise InputError(f"{record}: stress has shape {stress.shape}, expected (6,) in Voigt order or (3, 3)")
    return stress.reshape(3, 3)


def scalar_keys(record: Record) -> list[str]:
    """Names of the per-structure numbers of a record, any of which may be used as energy."""
    said = {**record.info, **record.results}
    return sorted(name for name, value in said.items() if _is_number(value))


def _is_number(value: Any) -> bool:
    return (
        not isinstance(value, str | bool) and np.size(value) == 1 and np.issubdtype(np.asarray(value).dtype, np.number)
    )

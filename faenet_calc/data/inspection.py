"""Facts about single structures, from which the checks of a data set are computed.

A data set is read once, structure by structure; only the facts, which are small, are kept.
"""

import hashlib
import re
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from ase.data import covalent_radii
from ase.geometry import find_mic
from numpy.typing import NDArray

from faenet_calc.data.cache import unusable
from faenet_calc.data.formats import Record
from faenet_calc.data.labels import Labels, labels_of
from faenet_calc.errors import InputError
from faenet_calc.graphs.neighbors import neighbor_list

Floats = NDArray[np.float64]

_ENERGY_WORD = re.compile(
    r"energy|energies|toten|^e_?(tot|total|dft|ref|ads|form)|^(u0|etot|y_relaxed)$", re.IGNORECASE
)
_FORCES_WORD = re.compile(r"force|gradient|^grad|^dedx$", re.IGNORECASE)
_STRESS_WORD = re.compile(r"virial|stress", re.IGNORECASE)
_OWN_WORDS = {"energy", "forces", "stress", "free_energy", "energies", "stresses"}
LONGEST_STEP = 0.6  # Å, largest displacement of an atom over which forces predict a difference of energies
_SAME = 1e-3  # Å, geometries closer than this are equal
_RANGE = 1.0  # Å, decay length of the weight of a neighbor in the measure of asymmetry


@dataclass(frozen=True, kw_only=True, eq=False)
class Facts:
    """Facts about one structure.

    Attributes:
        name: Name in messages.
        source: The file.
        composition: [119] atoms of each atomic number.
        unusable: Why the structure has no graph, or "". If not empty, the fields below have their defaults.
        bad_label: Why the labels cannot be read, or "".
        not_finite: Names of labels with NaN or infinite values.
        energy: (eV) or NaN.
        free_energy: (eV) or NaN, where the file has both.
        has_forces: Whether there are forces.
        max_force: (eV/Å) length of the largest force, NaN without forces.
        net_force: (eV/Å) length of the sum of all forces, NaN if some are missing.
        net_torque: Torque of a molecule in units of the sum of |r| |F| over its atoms, NaN for periodic structures.
        asymmetry: Largest weighted sum of directions to the neighbors of an atom; near 0 if symmetry forbids forces.
        n_zeroed: Fixed atoms whose forces were set to zero.
        n_zeroed_unmarked: Atoms that are not marked as fixed, with forces of exactly zero that break ΣF = 0.
        closest: Smallest distance over the sum of covalent radii; inf without neighbors.
        closest_distance: (Å) smallest distance.
        n_isolated: Number of atoms without a neighbor within the cutoff.
        periodic: Number of periodic directions.
        has_cell: Whether any lattice vector is not zero.
        fingerprint: Equal for equal geometries (to 1 mÅ, any order of atoms).
        unread: Names that look like labels but are not read → which label they look like.
        has_stress: Whether there is a stress.
    """

    name: str
    source: str
    composition: NDArray[np.int64]
    unusable: str = ""
    bad_label: str = ""
    not_finite: tuple[str, ...] = ()
    energy: float = np.nan
    free_energy: float = np.nan
    has_forces: bool = False
    has_stress: bool = False
    max_force: float = np.nan
    net_force: float = np.nan
    net_torque: float = np.nan
    asymmetry: float = 0.0
    n_zeroed: int = 0
    n_zeroed_unmarked: int = 0
    closest: float = np.inf
    closest_distance: float = np.inf
    n_isolated: int = 0
    periodic: int = 0
    has_cell: bool = False
    fingerprint: str = ""
    unread: dict[str, str] = field(default_factory=dict)

    @property
    def n_atoms(self) -> int:
        """Number of atoms."""
        return int(self.composition.sum())


def inspect(record: Record, *, cutoff: float, energy_key: str | None, forces_key: str | None) -> Facts:
    """Collect the facts about one record."""
    atoms = record.atoms
    composition = np.bincount(np.clip(atoms.numbers, 0, 118), minlength=119)
    known: dict[str, Any] = {"name": str(record), "source": record.source, "composition": composition}
    known["unread"] = _unread(record, {energy_key or "energy", forces_key or "forces"})
    problem = unusable(record)
    if problem:
        return Facts(**known, unusable=problem)
    try:
        labels = labels_of(record, energy_key=energy_key, forces_key=forces_key)
    except InputError as error:
        return Facts(**known, bad_label=str(error))
    free_energy = record.results.get("free_energy")
    return Facts(
        **known,
        **_geometry(record, cutoff),
        **_forces(labels),
        net_torque=_net_torque(record, labels),
        not_finite=_not_finite(labels),
        energy=np.nan if labels.energy is None else labels.energy,
        free_energy=np.nan if energy_key is not None or free_energy is None else float(free_energy),
        has_stress=labels.stress is not None,
        n_zeroed=labels.n_zeroed,
        fingerprint=_fingerprint(record),
    )


def _geometry(record: Record, cutoff: float) -> dict[str, Any]:
    atoms = record.atoms
    edges = neighbor_list(atoms.positions, atoms.cell.array, atoms.pbc, cutoff)
    radii = covalent_radii[atoms.numbers]
    ratio = edges.distance / (radii[edges.centre] + radii[edges.neighbor])
    vector = atoms.positions[edges.neighbor] + edges.shift @ atoms.cell.array - atoms.positions[edges.centre]
    pull = np.zeros((len(atoms), 3))
    # Coincident atoms have no direction and are reported as overlapping.
    weight = np.exp(-edges.distance / _RANGE) / np.maximum(edges.distance, 1e-6)
    np.add.at(pull, edges.centre, weight[:, None] * vector)
    return {
        "asymmetry": float(np.linalg.norm(pull, axis=1).max(initial=0.0)),
        "closest": float(ratio.min(initial=np.inf)),
        "closest_distance": float(edges.distance.min(initial=np.inf)),
        "n_isolated": int((np.bincount(edges.centre, minlength=len(atoms)) == 0).sum()),
        "periodic": int(atoms.pbc.sum()),
        "has_cell": bool(atoms.cell.array.any()),
    }


def _forces(labels: Labels) -> dict[str, Any]:
    if labels.forces is None:
        return {}
    known = labels.forces[np.isfinite(labels.forces).all(axis=1)]
    lengths = np.linalg.norm(known, axis=1)
    net = float(np.linalg.norm(known.sum(axis=0))) if len(known) == len(labels.forces) else np.nan
    # Forces that vanish by symmetry add up to zero; those that remain after constraints removed some do not.
    vanished = int((lengths[labels.free] == 0).sum()) if len(known) == len(labels.forces) else 0
    removed = vanished >= 2 and vanished < len(known) and net > 0.01 and net > 0.02 * float(lengths.sum())
    return {
        "has_forces": True,
        "max_force": float(lengths.max(initial=0.0)),
        "net_force": net,
        "n_zeroed_unmarked": vanished if removed else 0,
    }


def _net_torque(record: Record, labels: Labels) -> float:
    if labels.forces is None or record.atoms.pbc.any() or not np.isfinite(labels.forces).all():
        return np.nan
    arms = record.atoms.positions - record.atoms.positions.mean(axis=0)
    scale = float((np.linalg.norm(arms, axis=1) * np.linalg.norm(labels.forces, axis=1)).sum())
    return float(np.linalg.norm(np.cross(arms, labels.forces).sum(axis=0))) / scale if scale > 0 else np.nan


def _not_finite(labels: Labels) -> tuple[str, ...]:
    bad = []
    if labels.energy is not None and not np.isfinite(labels.energy):
        bad.append("energy")
    if labels.forces is not None and int((~np.isfinite(labels.forces)).any(axis=1).sum()) > labels.n_zeroed:
        bad.append("forces")
    if labels.stress is not None and not np.isfinite(labels.stress).all():
        bad.append("stress")
    return tuple(bad)


def _unread(record: Record, read: set[str]) -> dict[str, str]:
    """Names of numbers that look like labels and are not read → "energy", "forces" or "stress"."""
    found = {}
    for name, value in {**record.info, **record.results}.items():
        if name in read or name in _OWN_WORDS or isinstance(value, str | bool):
            continue
        array = np.asarray(value)
        if array.dtype.kind in "fiu" and array.size == 1 and _ENERGY_WORD.search(name):
            found[name] = "energy"
        elif array.dtype.kind in "fiu" and array.size in (6, 9) and _STRESS_WORD.search(name):
            found[name] = "stress"
    for name, array in record.atoms.arrays.items():
        if name not in read and name not in _OWN_WORDS and array.shape[1:] == (3,) and _FORCES_WORD.search(name):
            found[name] = "forces"
    return found


def _fingerprint(record: Record) -> str:
    atoms = record.atoms
    rows = np.column_stack([atoms.numbers, np.rint(atoms.positions / _SAME)]).astype(np.int64)
    rows = rows[np.lexsort(rows.T)]
    cell = np.rint(atoms.cell.array / _SAME).astype(np.int64)
    return hashlib.sha256(rows.tobytes() + cell.tobytes() + atoms.pbc.tobytes()).hexdigest()


def system_key(record: Record) -> tuple[str, bytes, bytes, bytes]:
    """Equal for structures of one file with the same atoms in the same order and the same cell."""
    atoms = record.atoms
    cell = np.rint(np.nan_to_num(atoms.cell.array) / _SAME).astype(np.int64)
    return record.source, atoms.numbers.tobytes(), atoms.pbc.tobytes(), cell.tobytes()


def work_and_rise(before: Record, now: Record, *, energy_key: str | None, forces_key: str | None) -> Floats | None:
    """[3]: −ΣF·dx (eV) between two structures by their mean forces, the difference of their energies, and max |dx| (Å).

    Args:
        before: A structure.
        now: Another one with the same :func:`system_key`.
        energy_key: Name of the energy, see ``labels_of``.
        forces_key: Name of the forces.

    Returns:
        None for structures that are far apart or lack a label.
    """
    one, two = before.atoms, now.atoms
    if len(one) == 0 or unusable(before) or unusable(now):
        return None
    step = find_mic(two.positions - one.positions, one.cell, one.pbc)[0]
    length = float(np.linalg.norm(step, axis=1).max())
    if not 0 < length <= LONGEST_STEP:
        return None
    try:
        first, second = (labels_of(r, energy_key=energy_key, forces_key=forces_key) for r in (before, now))
    except InputError:
        return None
    if first.energy is None or second.energy is None or first.forces is None or second.forces is None:
        return None
    work = -0.5 * float(np.nansum((first.forces + second.forces) * step))
    rise = second.energy - first.energy
    return np.array([work, rise, length]) if np.isfinite(work) and np.isfinite(rise) else None

"""The IS2RE task of the Open Catalyst Project from relaxation trajectories: initial structure → relaxed energy."""

from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from ase import Atoms
from ase.calculators.singlepoint import SinglePointCalculator

from faenet_calc.data.export import Files, labelled_atoms, refuse_existing, writer
from faenet_calc.data.formats import Record, read_records
from faenet_calc.data.splits import TRAJECTORY_KEYS
from faenet_calc.errors import InputError
from faenet_calc.files import atomic_files


@dataclass(kw_only=True)
class _Trajectory:
    """First and last snapshot of a trajectory so far."""

    first: Record
    last: Record
    steps: list[int] = field(default_factory=list)


def write_relaxed_energies(
    files: Files,
    out: Path,
    *,
    energy_key: str | None = None,
    fmax: float | None = None,
    trust_pickle: bool = False,
    overwrite: bool = False,
    progress: bool = False,
) -> tuple[int, int]:
    """Write the first structure of every trajectory with the energy of its last one.

    Snapshots belong to a trajectory by the metadata keys of ``data split`` (``sid``, …) and ``run``, otherwise by their
    file. They are ordered by ``step`` if they have it. The first structure keeps its constraints, arrays and metadata;
    ``info`` also gets ``initial_energy`` (eV) and ``n_snapshots``.

    Args:
        files: Files with trajectories.
        out: File to write.
        energy_key: Name of the energy; by default the calculator's.
        fmax: Leave out trajectories whose last structure has a larger force (eV/Å) on a free atom.
        trust_pickle: As in :func:`read_records`.
        overwrite: Replace an existing file.
        progress: Show a progress bar.

    Returns:
        Number of structures written, and of trajectories left out by ``fmax``.
    """
    refuse_existing([out], overwrite=overwrite)
    found: dict[tuple[str, ...], _Trajectory] = {}
    for record in read_records(files, trust_pickle=trust_pickle, progress=progress):
        step = int(record.info.get("step", record.index))
        trajectory = found.setdefault(_name(record), _Trajectory(first=record, last=record))
        if trajectory.steps and step < min(trajectory.steps):
            trajectory.first = record
        if trajectory.steps and step > max(trajectory.steps):
            trajectory.last = record
        trajectory.steps.append(step)
    relaxed = [one for one in found.values() if len(one.steps) > 1]
    if not relaxed:
        raise InputError(
            f"{len(found)} trajectories were found, none with more than one structure; expected relaxations, whose "
            f"snapshots share one of the metadata keys {', '.join(TRAJECTORY_KEYS)} or a file"
        )
    kept = [one for one in relaxed if fmax is None or _largest_force(one.last) <= fmax]
    if not kept:
        raise InputError(f"no trajectory of {len(relaxed)} ends with forces below {fmax} eV/Å; use a larger limit")
    out.parent.mkdir(parents=True, exist_ok=True)
    with atomic_files([out]) as (temporary,), writer(temporary) as add:
        for one in kept:
            add(_task(one, energy_key))
    return len(kept), len(relaxed) - len(kept)


def _name(record: Record) -> tuple[str, ...]:
    key = next((key for key in TRAJECTORY_KEYS if key in record.info), None)
    name = record.source if key is None else f"{key} {record.info[key]}"
    return name, str(record.info.get("run", ""))


def _largest_force(record: Record) -> float:
    atoms = labelled_atoms(record)
    if "forces" not in atoms.calc.results:
        raise InputError(f"{record} has no forces, which a limit on them needs")
    forces = atoms.get_forces()  # ASE sets those on constrained atoms to zero
    if "fixed" in atoms.arrays:
        forces = forces[atoms.arrays["fixed"] == 0]
    return float(np.linalg.norm(forces, axis=1).max(initial=0.0))


def _task(trajectory: _Trajectory, energy_key: str | None) -> Atoms:
    start = labelled_atoms(trajectory.first, energy_key=energy_key)
    end = labelled_atoms(trajectory.last, energy_key=energy_key)
    for atoms, record in ((start, trajectory.first), (end, trajectory.last)):
        if "energy" not in atoms.calc.results:
            raise InputError(f"{record} has no energy; name it with --energy-key")
    if len(start) != len(end) or (start.numbers != end.numbers).any():
        raise InputError(f"{trajectory.first} and {trajectory.last} have different atoms, expected one trajectory")
    start.info |= {"initial_energy": start.calc.results["energy"], "n_snapshots": len(trajectory.steps)}
    start.calc = SinglePointCalculator(start, energy=end.calc.results["energy"])
    return start

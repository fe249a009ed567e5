"""Trajectories that survive a kill at any time and can be continued.

ASE appends a snapshot to a ``.traj`` file and counts it only when it is complete, so a killed process leaves a valid
file that lacks at most one snapshot. A full disk or a partial copy can truncate a counted snapshot; resuming from such
a file first rewrites its readable part atomically. The file of an earlier run is replaced only when the new run has
its first snapshot.
"""

from contextlib import ExitStack
from pathlib import Path
from types import TracebackType
from typing import Self

import numpy as np
from ase import Atoms
from ase.io.trajectory import TrajectoryReader, TrajectoryWriter

from faenet_calc.errors import InputError
from faenet_calc.files import write_atomically
from faenet_calc.graphs.writing import refuse_existing, reserved

STEP = "faenet_calc_step"
"""Key in ``atoms.info`` of a snapshot: the number of steps taken before it."""
PRERELAX_STEPS = "faenet_calc_prerelax_steps"
"""Key in ``atoms.info`` of a snapshot: the number of steps of the prerelaxation, which are not recorded."""


def read_snapshots(path: str | Path) -> list[Atoms]:
    """The readable snapshots of a trajectory that may be truncated."""
    reader = _open(Path(path))
    if reader is None:
        return []
    with reader:
        return [reader[n] for n in range(_count_readable(reader))]


class RunTrajectory:
    """Snapshots of one run, written as they come; a context manager that reserves the file for this process.

    Args:
        path: A .traj file; None keeps nothing.
        atoms: The structure of the run, which a trajectory to resume from must match.
        resume: Continue an existing trajectory.
        overwrite: Replace an existing trajectory, once the new run has its first snapshot.

    Attributes:
        path: The file, or None.
        last: The snapshot to continue from; None at the start of a run.
        n_done: Steps taken before it.
        n_prerelax: Steps of the prerelaxation, stored in every snapshot if there are any.
    """

    def __init__(self, path: str | Path | None, atoms: Atoms, *, resume: bool, overwrite: bool) -> None:
        self.path = None if path is None else Path(path)
        self.last: Atoms | None = None
        self.n_done = self.n_prerelax = 0
        self._atoms, self._resume = atoms, resume
        self._writer: TrajectoryWriter | None = None
        self._stack = ExitStack()
        if self.path is None:
            if resume:
                raise InputError("resume=True needs the trajectory to continue from; give trajectory=")
            return
        if self.path.suffix != ".traj":
            raise InputError(
                f"trajectory={str(path)!r}, expected a name that ends in .traj (ASE's format, which can be appended to "
                "safely); `ase convert run.traj run.extxyz` converts it to other formats"
            )
        if not resume:
            refuse_existing(self.path, overwrite=overwrite, hint="resume=True continues it, overwrite=True replaces it")

    def __enter__(self) -> Self:
        if self.path is not None:
            with self._stack:
                self._stack.enter_context(reserved(self.path))
                if self._resume and self.path.exists():
                    self._read_last(self.path)
                self._stack = self._stack.pop_all()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        with self._stack:
            if self._writer is not None:
                self._writer.close()

    def _read_last(self, path: Path) -> None:
        reader = _open(path)
        if reader is None:
            return
        with reader:
            n_readable = _count_readable(reader)
            if n_readable == 0:
                raise InputError(f"{path}: none of its {len(reader)} snapshots is readable; remove it to start again")
            last = reader[n_readable - 1]
            _check_same_system(path, self._atoms, last)
            if n_readable < len(reader):
                write_atomically(path, lambda temporary: _copy(reader, n_readable, temporary))
        self.last, self.n_done = last, int(last.info.get(STEP, n_readable - 1))
        self.n_prerelax = int(last.info.get(PRERELAX_STEPS, 0))

    def restore(self, atoms: Atoms) -> None:
        """Set the atoms to the last snapshot, bit for bit."""
        if self.last is None:
            return
        atoms.cell = self.last.cell
        atoms.positions = self.last.positions
        if self.last.has("momenta"):
            atoms.set_array("momenta", self.last.get_momenta(), float, (3,))

    def write(self, snapshot: Atoms, step: int) -> None:
        """Append a snapshot; the first one of a run replaces the file."""
        if self.path is None:
            return
        snapshot.info[STEP] = step
        if self.n_prerelax:
            snapshot.info[PRERELAX_STEPS] = self.n_prerelax
        if self._writer is None and self.last is None:
            write_atomically(self.path, lambda temporary: _copy([snapshot], 1, temporary))
            self._writer = TrajectoryWriter(self.path, mode="a")
        else:
            self._append(snapshot, self.path)
        del snapshot.info[STEP]
        snapshot.info.pop(PRERELAX_STEPS, None)

    def _append(self, snapshot: Atoms, path: Path) -> None:
        if self._writer is None:
            self._writer = TrajectoryWriter(path, mode="a")
        try:
            self._writer.write(snapshot)
        except BaseException:
            # Closing ASE's writer counts an interrupted snapshot as complete; closing the file leaves it uncounted.
            self._writer.backend.fd.close()
            self._writer = None
            raise


def _open(path: Path) -> TrajectoryReader | None:
    """A reader, or None for a file without any snapshot."""
    if path.stat().st_size < 56:  # bytes of the header
        return None
    try:
        reader = TrajectoryReader(path)
    except Exception as error:
        # Whatever error the bytes cause in the reader, the file is not a usable trajectory.
        if _is_empty(path):
            return None
        raise InputError(f"{path} is not a readable ASE trajectory ({error}); remove it to start again") from error
    if len(reader) == 0:
        reader.close()
        return None
    return reader


def _is_empty(path: Path) -> bool:
    header = path.read_bytes()[:40]
    return header.startswith(b"- of UlmASE-Trajectory") and int(np.frombuffer(header[32:40], "<i8")[0]) == 0


def _count_readable(reader: TrajectoryReader) -> int:
    """Number of snapshots up to the last readable one."""
    for n in range(len(reader), 0, -1):
        try:
            atoms = reader[n - 1]
        except Exception:  # a truncated snapshot fails wherever its bytes end
            continue
        if np.isfinite(atoms.positions).all():
            return n
    return 0


def _copy(snapshots: TrajectoryReader | list[Atoms], n: int, path: Path) -> None:
    with TrajectoryWriter(path, mode="w") as writer:
        for index in range(n):
            writer.write(snapshots[index])


def _check_same_system(path: Path, atoms: Atoms, snapshot: Atoms) -> None:
    if not (np.array_equal(atoms.numbers, snapshot.numbers) and np.array_equal(atoms.pbc, snapshot.pbc)):
        raise InputError(
            f"{path} is a trajectory of {snapshot.symbols} with pbc {snapshot.pbc.tolist()}, not of {atoms.symbols} "
            f"with pbc {atoms.pbc.tolist()} in this order of atoms; choose another trajectory or overwrite it"
        )

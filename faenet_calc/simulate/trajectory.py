"""The trajectory of a run: readable after a kill at any moment, and the place to go on from.

ASE appends a snapshot to a ``.traj`` file and counts it only once it is whole, so a killed process leaves a file that
is short by one snapshot but good. A full disk or a broken copy can still cut a counted snapshot; going on from such a
file first rewrites its good part, atomically.
"""

from pathlib import Path
from types import TracebackType

import numpy as np
from ase import Atoms
from ase.io.trajectory import TrajectoryReader, TrajectoryWriter

from faenet_calc.errors import InputError
from faenet_calc.files import write_atomically
from faenet_calc.graphs.writing import refuse_existing

STEP = "faenet_calc_step"
"""Key in ``atoms.info`` of a snapshot: the number of steps taken before it."""


def read_snapshots(path: str | Path) -> list[Atoms]:
    """The good snapshots of a trajectory that may be cut."""
    reader = _open(Path(path))
    if reader is None:
        return []
    with reader:
        return [reader[n] for n in range(_count_good(reader))]


class RunTrajectory:
    """Snapshots of one run, written as they come; a context manager.

    Attributes:
        path: None keeps nothing.
        last: The snapshot to go on from, None at the start of a run.
        n_done: Steps taken before it.
    """

    def __init__(self, path: str | Path | None, atoms: Atoms, *, resume: bool, overwrite: bool) -> None:
        self.path = None if path is None else Path(path)
        self.last: Atoms | None = None
        self.n_done = 0
        self._writer: TrajectoryWriter | None = None
        if self.path is None:
            if resume:
                raise InputError("resume=True needs the trajectory to go on from")
            return
        if self.path.suffix != ".traj":
            raise InputError(
                f"trajectory={str(path)!r}, expected a name that ends in .traj (ASE's format, which can be appended to "
                "safely); `ase convert run.traj run.extxyz` makes other formats"
            )
        if resume and self.path.exists():
            self._go_on(atoms)
        else:
            refuse_existing(
                self.path, overwrite=overwrite, hint="resume=True goes on from it and overwrite=True replaces it"
            )
            self.path.unlink(missing_ok=True)

    def _go_on(self, atoms: Atoms) -> None:
        assert self.path is not None
        reader = _open(self.path)
        if reader is None:
            self.path.unlink()
            return
        with reader:
            n_good = _count_good(reader)
            if n_good == 0:
                raise InputError(f"{self.path}: none of its {len(reader)} snapshots is whole; remove it to start again")
            last = reader[n_good - 1]
            _same_system(self.path, atoms, last)
            if n_good < len(reader):
                _rewrite(self.path, reader, n_good)
        self.last, self.n_done = last, int(last.info.get(STEP, n_good - 1))

    def __enter__(self) -> "RunTrajectory":
        if self.path is not None:
            self._writer = TrajectoryWriter(self.path, mode="a")
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._writer is not None:
            self._writer.close()

    def restore(self, atoms: Atoms) -> None:
        """Put the atoms where the last snapshot was, to the bit."""
        if self.last is None:
            return
        atoms.cell = self.last.cell
        atoms.positions = self.last.positions
        if self.last.has("momenta"):
            atoms.set_array("momenta", self.last.get_momenta(), float, (3,))

    def write(self, snapshot: Atoms, step: int) -> None:
        """Append a snapshot."""
        if self._writer is not None:
            snapshot.info[STEP] = step
            self._writer.write(snapshot)
            del snapshot.info[STEP]


def _open(path: Path) -> TrajectoryReader | None:
    """A reader, or None for a file that was made but never got its first snapshot."""
    if path.stat().st_size < 56:  # bytes of the file's header
        return None
    try:
        reader = TrajectoryReader(path)
    except Exception as error:
        # Whatever the bytes do to the reader, the file is not a trajectory that can be used.
        if _holds_nothing(path):
            return None
        raise InputError(f"{path} is not a readable ASE trajectory ({error}); remove it to start again") from error
    if len(reader) == 0:
        reader.close()
        return None
    return reader


def _holds_nothing(path: Path) -> bool:
    header = path.read_bytes()[:40]
    return header.startswith(b"- of UlmASE-Trajectory") and int(np.frombuffer(header[32:40], "<i8")[0]) == 0


def _count_good(reader: TrajectoryReader) -> int:
    """Snapshots up to the last one that can be read."""
    for n in range(len(reader), 0, -1):
        try:
            atoms = reader[n - 1]
        except Exception:  # a cut snapshot fails wherever its bytes end
            continue
        if np.isfinite(atoms.positions).all():
            return n
    return 0


def _rewrite(path: Path, reader: TrajectoryReader, n_good: int) -> None:
    def copy(temporary: Path) -> None:
        with TrajectoryWriter(temporary, mode="w") as writer:
            for n in range(n_good):
                writer.write(reader[n])

    write_atomically(path, copy)


def _same_system(path: Path, atoms: Atoms, snapshot: Atoms) -> None:
    if not (np.array_equal(atoms.numbers, snapshot.numbers) and np.array_equal(atoms.pbc, snapshot.pbc)):
        raise InputError(
            f"{path} is of {snapshot.symbols} with pbc {snapshot.pbc.tolist()}, not of {atoms.symbols} with pbc "
            f"{atoms.pbc.tolist()} in this order of atoms; choose another trajectory or overwrite it"
        )

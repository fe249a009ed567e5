"""Label files: extxyz text or an aselmdb database. Both are only appended to, and truncated after a crash."""

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal, Protocol

import ase.db
from ase import Atoms

from faenet_calc.data.formats import need_package
from faenet_calc.errors import InputError
from faenet_calc.labelling.labels import to_text

LabelFormat = Literal["extxyz", "aselmdb"]


class LabelFile(Protocol):
    """A file of labelled structures."""

    path: Path

    def append(self, structures: Sequence[Atoms]) -> int:
        """Append structures at once and return the new end of the file."""

    def cut(self, end: int, n_labels: int) -> None:
        """Remove everything beyond ``end``, which leaves ``n_labels`` structures.

        Raises:
            InputError: The file holds fewer.
        """


class TextFile:
    """``labels.extxyz``; its end is its size in bytes."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / "labels.extxyz"
        self.path.touch()

    def append(self, structures: Sequence[Atoms]) -> int:
        """See `LabelFile`."""
        append_text(self.path, "".join(map(to_text, structures)))
        return self.path.stat().st_size

    def cut(self, end: int, n_labels: int) -> None:
        """See `LabelFile`."""
        if self.path.stat().st_size < end:
            raise InputError(f"{self.path} is shorter than its journal says ({end} bytes); it was edited or damaged")
        os.truncate(self.path, end)


class DatabaseFile:
    """``labels.aselmdb``; its end is its highest id. The origin of a label is in ``data``."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / "labels.aselmdb"
        need_package("ase_db_backends", self.path, "ase-db-backends")

    def _connect(self) -> Any:
        # The folder is locked already, and a lock file of the database would survive a crash.
        return ase.db.connect(str(self.path), use_lock_file=False)

    def append(self, structures: Sequence[Atoms]) -> int:
        """See `LabelFile`; one transaction."""
        with self._connect() as database:
            for atoms in structures:
                database.write(atoms, data=atoms.info)
            return max(database.ids, default=0)

    def cut(self, end: int, n_labels: int) -> None:
        """See `LabelFile`."""
        with self._connect() as database:
            beyond = [number for number in database.ids if number > end]
            if len(database.ids) - len(beyond) != n_labels:
                raise InputError(
                    f"{self.path} has {len(database.ids) - len(beyond)} structures up to id {end}, its journal says "
                    f"{n_labels}; it was edited or damaged"
                )
            database.delete(beyond)


FILES: dict[str, type[TextFile] | type[DatabaseFile]] = {"extxyz": TextFile, "aselmdb": DatabaseFile}


def append_text(path: Path, text: str) -> None:
    """Append to a file and wait until it is on disk."""
    with path.open("a", encoding="utf-8", newline="\n") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())

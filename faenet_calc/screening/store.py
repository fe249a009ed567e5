"""The folder of a screening: what was asked for, what is finished, and the tables made from it.

| file | content |
|---|---|
| inputs.json | resolved inputs and their digest; a run is resumed only with equal inputs |
| references.json, references.traj | energies and structures of the relaxed clean slabs and gas molecules |
| journals/*.jsonl | one line per finished configuration, one file per process |
| initial/, trajectories/ | the placed structures and their relaxations, by key |
| results.csv, results.parquet, structures.db | the tables, rebuilt from the journals |
| report.html | the report |
"""

import csv
import hashlib
import io
import json
import os
import uuid
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ase import Atoms
from ase.db import connect
from ase.io import read, write

from faenet_calc.errors import InputError
from faenet_calc.files import atomic_files, write_atomically
from faenet_calc.screening.results import Row, finished_table
from faenet_calc.simulate.trajectory import read_snapshots

COLUMNS = (
    "key", "slab", "adsorbate", "coverage", "site", "final_site", "orientation", "adsorption_energy", "uncertainty",
    "most_stable_probability", "rank", "converged", "anomalies", "duplicate_of", "n_steps", "fmax", "energy", "wall_s",
    "error",
)  # fmt: skip
_DB_NAMES = {"key": "configuration", "energy": "total_energy", "fmax": "largest_force"}  # ASE reserves these words


class ScreenStore:
    """Reads and writes the folder of a screening.

    Attributes:
        folder: Where everything is.
    """

    def __init__(self, folder: str | Path) -> None:
        self.folder = Path(folder)
        self._journal: Path | None = None
        self._read: dict[Path, _ReadJournal] = {}

    def begin(self, inputs: Mapping[str, Any], *, resume: bool) -> None:
        """Create the folder, or check that it holds the same screening.

        Args:
            inputs: Resolved inputs, as JSON values.
            resume: Continue a screening that exists.

        Raises:
            InputError: The folder holds a screening and ``resume`` is not set, or one with other inputs.
        """
        digest = hashlib.sha256(json.dumps(inputs, sort_keys=True).encode()).hexdigest()
        path = self.folder / "inputs.json"
        if path.exists():
            stored = json.loads(path.read_text(encoding="utf-8"))
            if not resume:
                raise InputError(
                    f"{self.folder} holds a screening; continue it with resume=True (--resume on the command line) "
                    "or choose another folder"
                )
            if stored["sha256"] != digest:
                before = stored["inputs"]
                changed = sorted(key for key in {*inputs, *before} if inputs.get(key) != before.get(key))
                raise InputError(
                    f"{self.folder} was started with other inputs ({', '.join(changed)} differ); repeat the original "
                    "call with resume=True (--resume on the command line), or choose another folder"
                )
        elif self.folder.exists() and any(self.folder.iterdir()):
            raise InputError(f"{self.folder} is not empty and holds no screening; choose another folder")
        for name in ("journals", "trajectories", "initial"):
            (self.folder / name).mkdir(parents=True, exist_ok=True)
        if not path.exists():
            content = json.dumps({"sha256": digest, "inputs": inputs}, indent=1)
            write_atomically(path, content.encode())

    def exists(self) -> bool:
        """Whether the folder holds a screening, perhaps one that has only begun."""
        return (self.folder / "inputs.json").is_file()

    def inputs(self) -> dict[str, Any]:
        """The resolved inputs of the screening in this folder."""
        path = self.folder / "inputs.json"
        if not path.is_file():
            raise InputError(f"{self.folder} holds no screening: inputs.json is missing")
        stored: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))["inputs"]
        return stored

    def record(self, row: Row) -> None:
        """Append a finished configuration to this process's journal; it is on disk when this returns."""
        if self._journal is None:
            self._journal = self.folder / "journals" / f"{os.getpid()}-{uuid.uuid4().hex[:8]}.jsonl"
        with self._journal.open("a", encoding="utf-8") as stream:
            stream.write(json.dumps(row.to_json()) + "\n")
            stream.flush()
            os.fsync(stream.fileno())

    def rows(self) -> dict[str, Row]:
        """Key -> row of everything that is finished; a line cut by a kill is ignored, a key counts once."""
        found: dict[str, Row] = {}
        for journal in sorted((self.folder / "journals").glob("*.jsonl")):
            for row in _complete_rows(journal.read_bytes())[0]:
                found.setdefault(row.key, row)
        return found

    def finished(self) -> set[str]:
        """Keys of everything that is finished; reads only what was recorded since the last call."""
        known, self._read = self._read, {}
        for journal in sorted((self.folder / "journals").glob("*.jsonl")):
            self._read[journal] = known.get(journal, _ReadJournal()).continued(journal)
        return set[str]().union(*(read.keys for read in self._read.values()))

    def save_references(self, references: Mapping[str, Any], structures: Mapping[str, Mapping[str, Atoms]]) -> None:
        """Write the energies and the structures of slabs and gas molecules, by kind ("slabs" or "gas") and name."""
        named = []
        for kind, members in structures.items():
            for name, atoms in members.items():
                copy = atoms.copy()
                copy.info.update(kind=kind, name=name)
                named.append(copy)
        write_atomically(self.folder / "references.traj", lambda path: write(path, named, format="traj"))
        write_atomically(self.folder / "references.json", json.dumps(references, indent=1).encode())

    def references(self) -> dict[str, Any] | None:
        """The energies of slabs and gas molecules, or None before they are known."""
        path = self.folder / "references.json"
        return json.loads(path.read_text(encoding="utf-8")) if path.is_file() else None

    def reference_structures(self, kind: str) -> dict[str, Atoms]:
        """The relaxed structures of one kind ("slabs" or "gas"), by name."""
        found = read(self.folder / "references.traj", ":", format="traj")
        return {atoms.info["name"]: atoms for atoms in found if atoms.info["kind"] == kind}

    def trajectory(self, key: str) -> Path:
        """Where the relaxation of a configuration is recorded."""
        return self.folder / "trajectories" / f"{key}.traj"

    def relaxed(self, key: str) -> Atoms | None:
        """The last snapshot of a relaxation, or None if there is none."""
        path = self.trajectory(key)
        snapshots = read_snapshots(path) if path.exists() else []
        return snapshots[-1] if snapshots else None

    def write_tables(self) -> list[Row]:
        """Rebuild results.csv, results.parquet and structures.db from the journals; returns the table."""
        table = finished_table(self.rows().values())
        text = io.StringIO()
        writer = csv.DictWriter(text, fieldnames=COLUMNS, lineterminator="\n")
        writer.writeheader()
        writer.writerows(_cells(row) for row in table)
        write_atomically(self.folder / "results.csv", text.getvalue().encode())
        self._write_parquet(table)
        self._write_database(table)
        return table

    def _write_parquet(self, table: list[Row]) -> None:
        import pyarrow as pa
        from pyarrow import parquet

        columns = {name: [row.to_json()[name] for row in table] for name in COLUMNS}
        columns["anomalies"] = [list(row.anomalies) for row in table]
        buffer = io.BytesIO()
        parquet.write_table(pa.table(columns), buffer)
        write_atomically(self.folder / "results.parquet", buffer.getvalue())

    def _write_database(self, table: list[Row]) -> None:
        with atomic_files([self.folder / "structures.db"]) as (temporary,), connect(temporary, type="db") as database:
            for row in table:
                atoms = self.relaxed(row.key)
                if atoms is not None:
                    cells = {_DB_NAMES.get(name, name): value for name, value in _cells(row).items()}
                    database.write(atoms, key_value_pairs={k: v for k, v in cells.items() if v not in (None, "")})


@dataclass(frozen=True)
class _ReadJournal:
    """The part of a journal that was read.

    Attributes:
        end: Where it ends (bytes).
        keys: Of its configurations.
    """

    end: int = 0
    keys: frozenset[str] = frozenset()

    def continued(self, journal: Path) -> "_ReadJournal":
        """Read on to the last complete line; from the start if the journal has been replaced by a shorter one."""
        size = journal.stat().st_size
        if size == self.end:
            return self
        start = self if size > self.end else _ReadJournal()
        with journal.open("rb") as stream:
            stream.seek(start.end)
            rows, length = _complete_rows(stream.read())
        return _ReadJournal(start.end + length, start.keys.union(row.key for row in rows))


def _complete_rows(content: bytes) -> tuple[list[Row], int]:
    """The rows of a journal and the length of their lines (bytes); the last line may have been cut by a kill."""
    length, rows = content.rfind(b"\n") + 1, []
    for line in content[:length].splitlines():
        with suppress(json.JSONDecodeError, TypeError, KeyError):
            rows.append(Row.from_json(json.loads(line)))
    return rows, length


def _cells(row: Row) -> dict[str, Any]:
    values = row.to_json()
    cells = {name: values[name] for name in COLUMNS}
    cells["anomalies"] = " ".join(row.anomalies)
    return cells


def merged(folders: Iterable[Path], target: ScreenStore) -> None:
    """Copy the journals of other folders, e.g. of array jobs, into a store."""
    for folder in folders:
        for journal in sorted((folder / "journals").glob("*.jsonl")):
            write_atomically(target.folder / "journals" / f"{folder.name}-{journal.name}", journal.read_bytes())

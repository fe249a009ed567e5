"""Readers for all formats of labelled structures.

A record is one structure with all data of its file; ``labels.py`` decides which of them are labels. Values are not
checked here, and no constraint is applied to forces.
"""

import glob
import pickle
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import ase.io
import numpy as np
from ase import Atoms
from ase.io.formats import UnknownFileTypeError, filetype

from faenet_calc.data.manifest import is_manifest, shard_files, split_of
from faenet_calc.errors import InputError
from faenet_calc.files import plain_name, source_for_ase
from faenet_calc.progress import progress_bar

# Files that are found in a folder; others have to be named.
_FOLDER_SUFFIXES = (".extxyz", ".xyz", ".traj", ".db", ".aselmdb", ".lmdb", ".pwo")
_VASP_NAMES = ("vasprun.xml", "OUTCAR")  # the first one found in a folder is read: both hold the same run
_DATABASE_FORMATS = ("db", "json", "aselmdb")


@dataclass(frozen=True, kw_only=True, eq=False)
class Record:
    """One structure of a file.

    Attributes:
        atoms: The structure with its arrays and constraints.
        source: The file.
        index: Position in the file, from 0.
        results: Raw stored results of the calculator ("energy", "forces", "stress", …).
        info: All other per-structure data of the file.
    """

    atoms: Atoms
    source: str
    index: int
    results: Mapping[str, Any] = field(default_factory=dict)
    info: Mapping[str, Any] = field(default_factory=dict)

    def __str__(self) -> str:
        return f"{self.source} #{self.index} ({self.atoms.get_chemical_formula()})"


def find_files(names: str | Path | Iterable[str | Path]) -> list[Path]:
    """Existing files for names that may be files, folders (searched recursively) or patterns with ``*``.

    A ``manifest.yaml``, or a folder that has one, stands for its shards, ``FOLDER:train`` for those of one split; see
    :mod:`faenet_calc.data.manifest`.

    Raises:
        InputError: A name leads to no file.
    """
    given = [names] if isinstance(names, str | Path) else list(names)
    if not given:
        raise InputError("no data files were given; name at least one file or folder")
    found: list[Path] = []
    for name in given:
        path, split = split_of(str(name))
        if is_manifest(path):
            found += shard_files(path, split)
        elif path.is_dir():
            inside = sorted(_labelled_files(path))
            if not inside:
                raise InputError(
                    f"{path} is a folder without data files; looked for *{', *'.join(_FOLDER_SUFFIXES)} (also "
                    f"compressed) and {', '.join(_VASP_NAMES)}. Name other files themselves."
                )
            found += inside
        elif path.exists():
            found.append(path)
        else:
            matches = [Path(match) for match in sorted(glob.glob(str(name), recursive=True))]
            if not matches:
                raise InputError(f"{name} does not exist; expected a data file, a folder or a pattern")
            found += find_files(matches)
    return list(dict.fromkeys(found))


def _labelled_files(folder: Path) -> Iterator[Path]:
    for path in folder.rglob("*"):
        plain = plain_name(path)
        if not path.is_file() or any(part.startswith(".") for part in path.relative_to(folder).parts):
            continue
        if plain in _VASP_NAMES:
            better = _VASP_NAMES[: _VASP_NAMES.index(plain)]
            if not any(plain_name(other) in better for other in path.parent.iterdir()):
                yield path
        elif Path(plain).suffix in _FOLDER_SUFFIXES:
            yield path


def read_records(
    files: str | Path | Iterable[str | Path], *, trust_pickle: bool = False, progress: bool = False
) -> Iterator[Record]:
    """Read every structure of every file, in order.

    Args:
        files: Files, folders or patterns; see :func:`find_files`.
        trust_pickle: Read LMDB files of pickled objects. Unpickling runs code that the file contains.
        progress: Show a progress bar on stderr.
    """
    with progress_bar(shown=progress, unit="structures", desc="reading") as bar:
        for path in find_files(files):
            bar.set_postfix_str(path.name, refresh=sys.stderr.isatty())
            for record in _reader(path, trust_pickle)(path):
                bar.update()
                yield record


def _reader(path: Path, trust_pickle: bool) -> Callable[[Path], Iterator[Record]]:
    suffix = Path(plain_name(path)).suffix
    if suffix == ".lmdb":
        if not trust_pickle:
            raise InputError(
                f"{path} is an LMDB of pickled objects; reading it runs code that the file may contain. If you trust "
                "where it comes from, say so with trust_pickle=True (--trust-pickle)."
            )
        return _read_pickled_lmdb
    if suffix in (".db", ".aselmdb"):
        return _read_database
    return _read_with_ase


def _read_with_ase(path: Path) -> Iterator[Record]:
    plain = Path(plain_name(path))
    known = {".extxyz": "extxyz", ".xyz": "extxyz", ".traj": "traj", ".pwo": "espresso-out"}
    kind = known.get(plain.suffix)
    try:
        kind = kind or filetype(str(path))
        if kind in _DATABASE_FORMATS:
            yield from _read_database(path)
            return
        for index, atoms in enumerate(_iread(path, kind)):
            yield _record_of(atoms, path, index)
    except UnknownFileTypeError as error:
        raise InputError(f"{path}: the format is not known to ASE ({error}); convert it to extxyz first") from error
    except (InputError, PermissionError):
        raise
    except Exception as error:  # readers of many formats raise many kinds of errors, all about the file
        raise InputError(f"{path} cannot be read as {kind} ({type(error).__name__}: {error})") from error


def _iread(path: Path, kind: str | None) -> Iterator[Atoms]:
    # Without this flag ASE takes what follows an @ in a file name as an index.
    return ase.io.iread(source_for_ase(path, kind), index=":", format=kind, do_not_split_by_at_sign=True)


def _record_of(atoms: Atoms, path: Path, index: int) -> Record:
    results = dict(atoms.calc.results) if atoms.calc is not None else {}
    return Record(atoms=atoms, source=str(path), index=index, results=results, info=dict(atoms.info))


def _read_database(path: Path) -> Iterator[Record]:
    import ase.db

    lmdb = path.suffix == ".aselmdb"
    if lmdb:
        need_package("ase_db_backends", path, "ase-db-backends")
    database = ase.db.connect(str(path), **({"readonly": True, "use_lock_file": False} if lmdb else {}))
    try:
        for index, row in enumerate(database.select()):
            atoms = row.toatoms()
            said = {**(row.data or {}), **row.key_value_pairs}
            record = _record_of(atoms, path, index)
            yield Record(
                atoms=atoms, source=record.source, index=index, results=record.results, info={**record.info, **said}
            )
    finally:
        if lmdb:
            database.close()


def _read_pickled_lmdb(path: Path) -> Iterator[Record]:
    need_package("lmdb", path, "lmdb")
    import lmdb

    environment = lmdb.open(str(path), subdir=path.is_dir(), readonly=True, lock=False, readahead=False, max_readers=1)
    with environment, environment.begin() as transaction:
        keys = [key for key in transaction.cursor().iternext(keys=True, values=False) if key.isdigit()]
        for index, key in enumerate(sorted(keys, key=int)):
            yield _record_of_fields(_fields(pickle.loads(transaction.get(key) or b""), path, index), path, index)


def _fields(item: Any, path: Path, index: int) -> dict[str, Any]:
    """The fields of a PyG ``Data`` of any version, or of a plain mapping, as numpy arrays and numbers."""
    if isinstance(item, Mapping):
        raw = dict(item)
    else:
        state = vars(item)
        # Before version 2 the fields were attributes; since then they are in a store.
        raw = dict(state["_store"]._mapping) if "_store" in state else dict(state)
    fields = {
        name: value.detach().cpu().numpy() if hasattr(value, "detach") else value
        for name, value in raw.items()
        if value is not None
    }
    missing = {"pos", "atomic_numbers"} - fields.keys()
    if missing:
        raise InputError(
            f"{path} #{index} has the fields {sorted(fields)}, but not {sorted(missing)}; expected OC20-style entries"
        )
    return fields


def _record_of_fields(fields: dict[str, Any], path: Path, index: int) -> Record:
    cell = fields.get("cell")
    pbc = fields.get("pbc", cell is not None)
    atoms = Atoms(
        numbers=np.asarray(fields["atomic_numbers"]).astype(int).ravel(),
        positions=np.asarray(fields["pos"], dtype=np.float64),
        cell=None if cell is None else np.asarray(cell, dtype=np.float64).reshape(3, 3),
        pbc=np.broadcast_to(np.asarray(pbc, dtype=bool).ravel(), 3),
    )
    for name, array in (("tags", "tags"), ("fixed", "fixed")):
        if name in fields:
            atoms.set_array(array, np.asarray(fields[name]).astype(int).ravel())
    results: dict[str, Any] = {}
    for result, names in (("energy", ("y", "energy")), ("forces", ("force", "forces")), ("stress", ("stress",))):
        value = next((fields[name] for name in names if name in fields), None)
        if value is not None:
            results[result] = float(np.asarray(value).ravel()[0]) if result == "energy" else np.asarray(value, float)
    used = {"pos", "atomic_numbers", "cell", "pbc", "tags", "fixed", "y", "force", "forces", "stress", "energy"}
    info = {name: _scalar(value) for name, value in fields.items() if name not in used and np.size(value) == 1}
    return Record(atoms=atoms, source=str(path), index=index, results=results, info=info)


def _scalar(value: Any) -> Any:
    return np.asarray(value).ravel()[0].item() if hasattr(value, "dtype") else value


def need_package(module: str, path: Path, package: str) -> None:
    """Raise an InputError that names the package to install if a module is missing."""
    if find_spec(module) is None:
        raise InputError(f"{path} needs the package {package}; install it with: pip install {package}")

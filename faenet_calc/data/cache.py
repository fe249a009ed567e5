"""Records → flat arrays on disk, built once and memory-mapped afterwards.

A cache is a folder named by a hash of the files' contents and of the settings. It is built under a temporary name,
written to disk and renamed, so that no process sees an incomplete cache; a lock makes other processes wait instead of
building it again. The hash of every array is checked when a cache is opened; a damaged cache is built again.

    per structure  cell [9], pbc [3], energy, stress [9], atom_end, edge_end, info_end
    per atom       positions [3], numbers, tags, free, forces [3], n_neighbors
    per edge       neighbor, shift [3]     (centres follow from n_neighbors, because edges are sorted by centre)
"""

import contextlib
import hashlib
import json
import os
import shutil
import tempfile
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
from numpy.typing import NDArray

from faenet_calc.data.formats import Record, find_files, read_records
from faenet_calc.data.labels import Labels, labels_of, need_named, scalar_keys
from faenet_calc.errors import InputError
from faenet_calc.files import locked, sha256_of, sync_to_disk
from faenet_calc.graphs.neighbors import axis_heights, neighbor_list
from faenet_calc.graphs.tags import TagSource, resolve_tags

VERSION = 2
META, INFO = "meta.json", "info.jsonl"
_BLOCK = 1 << 22

# Name → (numpy type while building, columns). Integers are narrowed at the end to what they need.
COLUMNS: dict[str, tuple[str, int]] = {
    "cell": ("float64", 9),
    "pbc": ("bool", 3),
    "energy": ("float64", 1),
    "stress": ("float64", 9),
    "atom_end": ("int64", 1),
    "edge_end": ("int64", 1),
    "info_end": ("int64", 1),
    "positions": ("float64", 3),
    "numbers": ("uint8", 1),
    "tags": ("int8", 1),
    "free": ("bool", 1),
    "forces": ("float64", 3),
    "n_neighbors": ("int32", 1),
    "neighbor": ("int32", 1),
    "shift": ("int16", 3),
}
_NARROW = {"neighbor": "uint16", "shift": "int8"}

Arrays = dict[str, NDArray[Any]]


@dataclass(frozen=True, kw_only=True)
class CacheSettings:
    """Settings that determine the contents of a cache, besides the files.

    Attributes:
        cutoff: Largest distance of an edge (Å).
        max_neighbors: Largest number of neighbors per atom, or None.
        energy_key: Name of the scalar to learn, or None for the energy.
        forces_key: Name of the array with forces, or None for the calculator's.
        tags: "auto" or "atoms", see :func:`faenet_calc.graphs.tags.resolve_tags`.
    """

    cutoff: float
    max_neighbors: int | None = None
    energy_key: str | None = None
    forces_key: str | None = None
    tags: str = "auto"


def default_folder() -> Path:
    """The folder of all caches: $FAENET_CALC_CACHE, or faenet-calc/graphs in the user's cache folder."""
    own = os.environ.get("FAENET_CALC_CACHE")
    if own:
        return Path(own)
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "faenet-calc" / "graphs"


def open_cache(
    files: str | Path | Iterable[str | Path],
    settings: CacheSettings,
    *,
    folder: Path | None = None,
    trust_pickle: bool = False,
    progress: bool = False,
) -> Path:
    """The folder with the arrays of these files under these settings, built if necessary.

    Raises:
        InputError: The files hold no structure, no label, or a structure that has no graph; or the cache folder cannot
            be written.
    """
    folder = folder or default_folder()
    paths = find_files(files)
    hashes = [sha256_of(path / "data.mdb" if path.is_dir() else path) for path in paths]
    key = cache_key(paths, hashes, settings)
    place = folder / key
    if is_whole(place):
        return place
    _make_writable(folder)
    with locked(folder / f"{key}.lock"):
        if is_whole(place):
            return place
        for left_over in folder.glob(f".{key}-*"):
            shutil.rmtree(left_over, ignore_errors=True)
        building = Path(tempfile.mkdtemp(prefix=f".{key}-", dir=folder))
        try:
            content = hashlib.sha256("".join(hashes).encode()).hexdigest()
            _build(building, read_records(paths, trust_pickle=trust_pickle, progress=progress), settings, content)
            _move(building, place)
        finally:
            shutil.rmtree(building, ignore_errors=True)
    return place


def cache_key(paths: Sequence[Path], hashes: Sequence[str], settings: CacheSettings) -> str:
    """Hash of the names and contents of the files and of the settings."""
    named = [[str(path), content] for path, content in zip(paths, hashes, strict=True)]
    return _hash_of([VERSION, asdict(settings), named])[:32]


def is_whole(place: Path) -> bool:
    """Whether a cache exists and its description and arrays have the hashes that were recorded when it was built."""
    try:
        meta = json.loads((place / META).read_text())
        recorded = meta.pop("sha256")
        return recorded == _hash_of(meta) and all(
            sha256_of(place / name) == content for name, content in meta["hashes"].items()
        )
    except (OSError, ValueError, KeyError, TypeError, AttributeError):  # a damaged description has any form
        return False


def _hash_of(value: Any) -> str:
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()


def _make_writable(folder: Path) -> None:
    """Create the folder of all caches and make sure that files can be written there."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        tempfile.TemporaryFile(dir=folder).close()
    except OSError as error:
        raise InputError(
            f"the graph cache cannot be written to {folder} ({error.strerror}); set the environment variable "
            "FAENET_CALC_CACHE, --cache-dir or data.cache_dir to a folder that can be written"
        ) from error


def open_arrays(place: Path) -> Arrays:
    """Open the memory-mapped arrays of a cache; ``info`` is an array of bytes."""
    meta = json.loads((place / META).read_text())
    arrays = {name: _map(place / name, kind, COLUMNS[name][1]) for name, kind in meta["types"].items()}
    arrays["info"] = _map(place / INFO, "uint8", 1)
    return arrays


def _map(path: Path, kind: str, columns: int) -> NDArray[Any]:
    if path.stat().st_size == 0:  # an empty file cannot be mapped
        flat: NDArray[Any] = np.empty(0, dtype=kind)
    else:
        # A plain view: slices of np.memmap itself cost several times as much.
        flat = np.asarray(np.memmap(path, dtype=kind, mode="r"))
    return flat if columns == 1 else flat.reshape(-1, columns)


def _build(place: Path, records: Iterable[Record], settings: CacheSettings, content: str) -> None:
    n_atoms = n_edges = n_structures = n_info = n_dropped = 0
    n_labels = Counter({"energy": 0, "forces": 0, "stress": 0})
    first: Record | None = None
    with contextlib.ExitStack() as stack:
        streams = {name: stack.enter_context((place / name).open("wb")) for name in COLUMNS}
        info_stream = stack.enter_context((place / INFO).open("wb"))
        for record in records:
            first = first or record
            labels = labels_of(record, energy_key=settings.energy_key, forces_key=settings.forces_key)
            row, dropped = _row(record, labels, settings)
            n_info += info_stream.write(_info_line(record))
            n_atoms, n_edges = n_atoms + len(record.atoms), n_edges + len(row["neighbor"])
            n_structures, n_dropped = n_structures + 1, n_dropped + dropped
            row |= {"atom_end": n_atoms, "edge_end": n_edges, "info_end": n_info}
            n_labels.update(labels.present)
            for name, value in row.items():
                _append(streams[name], value, COLUMNS[name][0])
    if first is None:
        raise InputError("the files hold no structures")
    _need_labels(n_labels, first, settings)
    types = {name: _narrow(place / name, name) for name in COLUMNS}
    meta = {
        "version": VERSION,
        "settings": asdict(settings),
        "n_structures": n_structures,
        "n_labels": n_labels,
        "n_dropped_edges": n_dropped,
        "types": types,
        "content": content,
        "hashes": {name: sha256_of(place / name) for name in (*COLUMNS, INFO)},
    }
    (place / META).write_text(json.dumps({**meta, "sha256": _hash_of(meta)}, indent=1))


def _row(record: Record, labels: Labels, settings: CacheSettings) -> tuple[dict[str, Any], int]:
    """The numbers of one structure, and the number of edges beyond ``max_neighbors``."""
    atoms = record.atoms
    problem = unusable(record)
    if problem:
        raise InputError(f"{record}: {problem}. `faenet-calc data check` lists all such structures.")
    edges = neighbor_list(
        atoms.positions, atoms.cell.array, atoms.pbc, settings.cutoff, max_neighbors=settings.max_neighbors
    )
    how: TagSource = settings.tags
    tags, _ = resolve_tags(atoms, how)
    row = {
        "cell": atoms.cell.array,
        "pbc": atoms.pbc,
        "energy": np.nan if labels.energy is None else labels.energy,
        "stress": np.full(9, np.nan) if labels.stress is None else labels.stress,
        "positions": atoms.positions,
        "numbers": atoms.numbers,
        "tags": tags,
        "free": labels.free,
        "forces": np.full((len(atoms), 3), np.nan) if labels.forces is None else labels.forces,
        "n_neighbors": np.bincount(edges.centre, minlength=len(atoms)),
        "neighbor": edges.neighbor,
        "shift": edges.shift,
    }
    return row, edges.n_dropped


def unusable(record: Record) -> str:
    """The reason why a structure has no graph, or ""."""
    atoms = record.atoms
    if len(atoms) == 0:
        return "it has no atoms"
    if not np.isfinite(atoms.positions).all() or not np.isfinite(atoms.cell.array).all():
        return "its positions or cell are not all finite"
    if atoms.numbers.min() < 1 or atoms.numbers.max() > 118:
        return f"it has atomic number {atoms.numbers.min()}, expected 1 to 118"
    if (axis_heights(atoms.cell.array, atoms.pbc) == 0).any():
        return f"its cell {atoms.cell.array.tolist()} does not span the periodic directions {atoms.pbc.tolist()}"
    return ""


def _append(stream: BinaryIO, value: Any, kind: str) -> None:
    given = np.asarray(value)
    stored = given.astype(kind)
    if given.dtype.kind in "iu" and not np.array_equal(given, stored):
        raise InputError(
            f"{stream.name}: the value {np.abs(given).max()} is beyond {kind}; wrap the atoms into the cell"
        )
    stream.write(stored.tobytes())


def _info_line(record: Record) -> bytes:
    said = {name: _plain(value) for name, value in record.info.items() if _is_plain(value)}
    return (json.dumps({**said, "source": record.source, "index": record.index}) + "\n").encode()


def _plain(value: Any) -> Any:
    return value.item() if isinstance(value, np.generic) else value


def _is_plain(value: Any) -> bool:
    return isinstance(_plain(value), str | bool | int | float)


def _need_labels(n_labels: dict[str, int], first: Record, settings: CacheSettings) -> None:
    need_named(n_labels, first, energy_key=settings.energy_key, forces_key=settings.forces_key)
    if not any(n_labels.values()):
        raise InputError(f"no structure has an energy, forces or a stress. {_other_numbers(first)}")


def _other_numbers(record: Record) -> str:
    """What to do about a data set without labels, given the numbers that its first structure has."""
    if found := scalar_keys(record):
        return (
            f"{record} has the numbers {', '.join(found)}: name the energy with data.energy_key (for data commands "
            "--energy-key)."
        )
    return f"{record} has no number that could be an energy: label the structures with DFT first."


def _narrow(path: Path, name: str) -> str:
    """Store integers in a smaller type if they all fit, and return the type of the file."""
    kind, narrow = COLUMNS[name][0], _NARROW.get(name)
    if narrow is None or path.stat().st_size == 0:
        return kind
    wide, limits = np.memmap(path, dtype=kind, mode="r"), np.iinfo(narrow)
    blocks = [slice(start, start + _BLOCK) for start in range(0, len(wide), _BLOCK)]
    if any(wide[block].min() < limits.min or wide[block].max() > limits.max for block in blocks):
        return kind
    smaller = path.with_suffix(".narrow")
    with smaller.open("wb") as stream:
        for block in blocks:
            stream.write(wide[block].astype(narrow).tobytes())
    smaller.replace(path)
    return narrow


def _move(building: Path, place: Path) -> None:
    """Write a finished cache to disk and rename it; if another process was first, its cache stays."""
    for path in building.iterdir():
        sync_to_disk(path)
    sync_to_disk(building)
    if place.exists() and not is_whole(place):
        shutil.rmtree(place, ignore_errors=True)
    try:
        building.rename(place)
    except OSError:
        if not is_whole(place):
            raise
    sync_to_disk(place.parent)

"""Conversion and splitting of data files; outputs appear when they are complete.

Raw forces, constraints, arrays and metadata are preserved.
"""

import contextlib
import tempfile
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import ase.db
import ase.io
import numpy as np
from ase import Atoms
from ase.calculators.singlepoint import SinglePointCalculator
from ase.io.formats import open_with_compression

from faenet_calc.data.dataset import GraphDataset, open_dataset
from faenet_calc.data.formats import Record, need_package, read_records
from faenet_calc.data.labels import labels_of, need_named, raw_forces
from faenet_calc.data.splits import split_dataset, uncovered
from faenet_calc.errors import InputError
from faenet_calc.files import COMPRESSED, atomic_files, plain_name

ENDINGS = (".extxyz", ".xyz", ".traj", ".db", ".aselmdb")

Files = str | Path | Iterable[str | Path]
Add = Callable[[Atoms], None]


@dataclass(frozen=True, kw_only=True)
class WrittenSplit:
    """Result of writing a split.

    Attributes:
        counts: Name of a set → number of structures.
        kind: How it was split.
        n_groups: Number of groups that were kept together.
        note: Messages to the user.
    """

    counts: dict[str, int]
    kind: str
    n_groups: int
    note: str


def export(
    files: Files,
    out: Path,
    *,
    energy_key: str | None = None,
    forces_key: str | None = None,
    trust_pickle: bool = False,
    overwrite: bool = False,
    progress: bool = False,
) -> int:
    """Write every structure of the files to one file, whose suffix selects the format; return their number.

    Raises:
        InputError: The file exists, its format cannot be written, the input cannot be read, or no structure has the
            named energy or forces.
    """
    refuse_existing([out], overwrite=overwrite)
    count, n_labels = 0, Counter[str]()
    first: Record | None = None
    out.parent.mkdir(parents=True, exist_ok=True)
    with atomic_files([out]) as (temporary,), writer(temporary) as add:
        for record in read_records(files, trust_pickle=trust_pickle, progress=progress):
            first = first or record
            n_labels.update(labels_of(record, energy_key=energy_key, forces_key=forces_key).present)
            add(labelled_atoms(record, energy_key=energy_key, forces_key=forces_key))
            count += 1
        if first is None:
            raise InputError("the files hold no structures")
        need_named(n_labels, first, energy_key=energy_key, forces_key=forces_key)
    return count


def export_split(
    files: Files,
    folder: Path,
    *,
    kind: str,
    fractions: Sequence[float],
    seed: int,
    apart_from: Sequence[str | Path] = (),
    ending: str = "extxyz",
    energy_key: str | None = None,
    forces_key: str | None = None,
    trust_pickle: bool = False,
    overwrite: bool = False,
    progress: bool = False,
) -> WrittenSplit:
    """Split data and write one file per set, with the metadata key ``split``; see ``split_dataset``.

    Structures that share a group with one in ``apart_from`` are not written.
    """
    files = [files] if isinstance(files, str | Path) else list(files)
    with tempfile.TemporaryDirectory(prefix="faenet-calc-split-") as scratch:

        def opened(names: Sequence[str | Path]) -> GraphDataset:
            # Only elements, positions, tags and metadata are needed: a short cutoff keeps the graphs small.
            return open_dataset(
                names,
                cutoff=0.1,
                cache_dir=scratch,
                energy_key=energy_key,
                forces_key=forces_key,
                trust_pickle=trust_pickle,
                progress=progress,
            )

        dataset, apart = opened([*files, *apart_from]), None
        if apart_from:
            apart = np.arange(len(dataset))[-len(opened(apart_from)) :]
        split = split_dataset(dataset, kind=kind, fractions=fractions, seed=seed, apart=apart)
        notes = [split.note] if split.note else []
        notes += uncovered({name: (dataset, indices) for name, indices in split.items()})
    owner = {int(index): name for name, indices in split.items() for index in indices}
    targets = [folder / f"{name}.{ending}" for name in split]
    refuse_existing(targets, overwrite=overwrite)
    folder.mkdir(parents=True, exist_ok=True)
    with atomic_files(targets) as temporary, contextlib.ExitStack() as stack:
        add = {name: stack.enter_context(writer(path)) for name, path in zip(split, temporary, strict=True)}
        for position, record in enumerate(read_records(files, trust_pickle=trust_pickle, progress=progress)):
            if position in owner:
                atoms = labelled_atoms(record, energy_key=energy_key, forces_key=forces_key)
                atoms.info["split"] = owner[position]
                add[owner[position]](atoms)
    counts = {name: len(indices) for name, indices in split.items()}
    return WrittenSplit(counts=counts, kind=split.kind, n_groups=split.n_groups, note="; ".join(notes))


def labelled_atoms(record: Record, *, energy_key: str | None = None, forces_key: str | None = None) -> Atoms:
    """The structure with its labels as a single-point calculation, forces raw."""
    labels = labels_of(record, energy_key=energy_key, forces_key=forces_key)
    atoms = record.atoms.copy()
    # Files can hold numbers, strings and arrays; ASE's slab builders also put nested dictionaries into info.
    atoms.info = {name: value for name, value in record.info.items() if np.asarray(value).dtype.kind in "biufUS"}
    stress = labels.stress
    given: dict[str, Any] = {
        "energy": labels.energy,
        "forces": raw_forces(record, forces_key),
        "stress": None if stress is None else stress[[0, 1, 2, 1, 0, 0], [0, 1, 2, 2, 2, 1]],
    }
    if energy_key is None and "free_energy" in record.results:
        given["free_energy"] = record.results["free_energy"]
    atoms.calc = SinglePointCalculator(atoms, **{name: value for name, value in given.items() if value is not None})
    return atoms


@contextlib.contextmanager
def writer(path: Path) -> Iterator[Add]:
    """Open a new file of the format of its suffix; yields a function that appends a structure."""
    suffix = Path(plain_name(path)).suffix
    if suffix in (".extxyz", ".xyz"):
        with open_with_compression(str(path), "w") as stream:
            yield lambda atoms: ase.io.write(stream, atoms, format="extxyz")
    elif suffix == ".traj":
        with ase.io.Trajectory(str(path), "w") as trajectory:
            yield trajectory.write
    else:
        if suffix == ".aselmdb":
            need_package("ase_db_backends", path, "ase-db-backends")
        with ase.db.connect(str(path)) as database:
            yield lambda atoms: database.write(atoms, data=_plain_info(atoms))


def _plain_info(atoms: Atoms) -> dict[str, Any]:
    return {name: value.item() if isinstance(value, np.generic) else value for name, value in atoms.info.items()}


def refuse_existing(targets: Sequence[Path], *, overwrite: bool) -> None:
    """Raise an InputError for files that exist or whose format cannot be written."""
    for path in targets:
        if Path(plain_name(path)).suffix not in ENDINGS or (
            path.suffix in COMPRESSED and Path(plain_name(path)).suffix not in ENDINGS[:2]
        ):
            raise InputError(
                f"{path}: cannot write this format; use {', '.join(ENDINGS)} (.extxyz also with .xz or .gz)"
            )
        if path.exists() and not overwrite:
            raise InputError(f"{path} exists; give --overwrite to replace it, or choose another name")

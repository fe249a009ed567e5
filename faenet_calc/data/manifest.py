"""Data sets of several files: a manifest lists the files (shards) with digests, counts, splits and origins.

A folder with a ``manifest.yaml`` can be given wherever data files are expected: ``datasets/metals-v1`` stands for all
its shards, ``datasets/metals-v1:train`` (``:val``, ``:test``) for those of one split.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from faenet_calc.errors import InputError
from faenet_calc.files import sha256_of
from faenet_calc.settings import from_mapping, load_yaml, plain

MANIFEST = "manifest.yaml"
SPLITS = ("train", "val", "test")


@dataclass(frozen=True, kw_only=True)
class Reference:
    """The calculator that labelled a data set.

    Attributes:
        calculator: The ``calculator`` word of the labels.
        version: Versions of its weights or of its program.
        code: File of the repository that defines it.
        level_of_theory: The theory it computes or approximates.
        known_error: Its own error, as far as known.
    """

    calculator: str
    version: str
    code: str = ""
    level_of_theory: str = ""
    known_error: str = ""


@dataclass(frozen=True, kw_only=True)
class Shard:
    """One file of a data set.

    Attributes:
        file: Path relative to the manifest.
        sha256: Digest of the file.
        structures: Number of labelled structures.
        split: The set it belongs to.
        content: One line about the structures.
        recipe: Recipe of the label factory, relative to the manifest.
        seed: Seed of the recipe where it is not the recipe's own.
        tasks: Number of tasks that were run, from the beginning of the recipe's list.
        stamp: The ``recipe`` word of the labels.
        explorer: The model that moved the atoms: name, digest of its file, commit that contains it.
    """

    file: str
    sha256: str
    structures: int
    split: Literal["train", "val", "test"]
    content: str = ""
    recipe: str = ""
    seed: int | None = None
    tasks: int | None = None
    stamp: str = ""
    explorer: str = ""


@dataclass(frozen=True, kw_only=True)
class Manifest:
    """A data set of several files.

    Attributes:
        name: Name and version, e.g. ``metals-v1``.
        summary: One line about the contents.
        split: How structures were assigned to the splits.
        licence: Licence of the labels.
        reference: What labelled them.
        shards: The files.
    """

    name: str
    summary: str
    split: str
    licence: str
    reference: Reference
    shards: tuple[Shard, ...]

    def __post_init__(self) -> None:
        if not self.shards:
            raise ValueError("shards is empty; list at least one file")


def is_manifest(path: Path) -> bool:
    """Whether a path is a manifest or a folder that has one."""
    return path.name == MANIFEST if path.is_file() else (path / MANIFEST).is_file()


def load_manifest(path: Path) -> Manifest:
    """Read a manifest (YAML 1.2) strictly.

    Args:
        path: ``manifest.yaml`` or its folder.

    Raises:
        InputError: The file is not YAML or not a manifest.
    """
    file = path / MANIFEST if path.is_dir() else path
    mapping = plain(load_yaml(file.read_text(encoding="utf-8"), source=str(file)))
    if not isinstance(mapping, Mapping):
        raise InputError(f"{file} holds {type(mapping).__name__}, expected a mapping with name, reference and shards")
    return from_mapping(Manifest, mapping, source=str(file))


def shard_files(path: Path, split: str | None = None) -> list[Path]:
    """The files of a data set, in the order of its manifest, each compared with its sha256.

    Args:
        path: ``manifest.yaml`` or its folder.
        split: Only the shards of this split; None for all.

    Raises:
        InputError: A shard is missing or is not the file that the manifest describes, or the split has no shard.
    """
    manifest = load_manifest(path)
    folder = path if path.is_dir() else path.parent
    chosen = [shard for shard in manifest.shards if split in (None, shard.split)]
    if not chosen:
        raise InputError(f"{manifest.name} has no shard with split {split!r}; expected {', '.join(SPLITS)}")
    for shard in chosen:
        file = folder / shard.file
        if not file.is_file():
            raise InputError(f"{file} is missing; {manifest.name} lists it: restore it from the repository")
        if (found := sha256_of(file)) != shard.sha256:
            raise InputError(
                f"{file} has sha256 {found[:12]}…, the manifest of {manifest.name} says {shard.sha256[:12]}…: the file "
                "was edited or damaged; restore it, or name it itself instead of the manifest"
            )
    return [folder / shard.file for shard in chosen]


def split_of(name: str) -> tuple[Path, str | None]:
    """``PATH:SPLIT`` as path and split; the split is None for a plain path."""
    path, colon, split = name.rpartition(":")
    return (Path(path), split) if colon and split in SPLITS and not Path(name).exists() else (Path(name), None)


def expected_counts(path: Path) -> dict[Path, int]:
    """Number of structures of each file of a data set, as its manifest states it."""
    folder = path if path.is_dir() else path.parent
    return {folder / shard.file: shard.structures for shard in load_manifest(path).shards}

"""Compressed structure files: ``set.extxyz.xz`` is ``set.extxyz``, and is read as fast."""

import io
from pathlib import Path

from ase.io.formats import open_with_compression

COMPRESSED = (".xz", ".gz", ".bz2")


def plain_name(path: Path) -> str:
    """The file name without the ending of a compressed file."""
    return path.stem if path.suffix in COMPRESSED else path.name


def source_for_ase(path: Path, kind: str | None) -> str | io.StringIO:
    """What to hand to ``ase.io.read`` for a file of an ASE format: its name, or its text if that is much faster.

    ASE's reader of extxyz jumps back to each block, and every jump back in a compressed file decompresses it anew:
    minutes for some thousand structures.
    """
    if kind != "extxyz" or path.suffix not in COMPRESSED:
        return str(path)
    with open_with_compression(str(path), "r") as stream:
        return io.StringIO(stream.read())

"""Structures into files: whole or not at all, and never over somebody's file without being told to."""

from collections.abc import Sequence
from pathlib import Path

from ase import Atoms
from ase.io import write
from ase.io.formats import UnknownFileTypeError, filetype, ioformats

from faenet_calc.errors import InputError
from faenet_calc.files import write_atomically


def refuse_existing(path: str | Path | None, *, overwrite: bool, hint: str = "give --overwrite to replace it") -> None:
    """Raise an InputError if ``path`` exists and may not be replaced, or if its folder does not exist."""
    if path is None:
        return
    path = Path(path)
    if path.is_dir():
        raise InputError(f"{path} is a folder, expected the name of a file to write")
    if path.exists() and not overwrite:
        raise InputError(f"{path} exists; {hint}, or choose another name")
    if not path.parent.is_dir():
        raise InputError(f"{path}: its folder {path.parent} does not exist; make it first")


def check_format(path: str | Path | None, *, several: bool) -> None:
    """Raise an InputError unless ASE can write structures to a file of this name.

    Args:
        several: The file shall hold more than one structure.
    """
    if path is None:
        return
    try:
        kind = ioformats[filetype(str(path), read=False)]
    except (UnknownFileTypeError, KeyError) as error:
        raise InputError(f"{path}: no format of this name; use .extxyz, .traj, .cif, .json or .vasp") from error
    if not kind.can_write:
        raise InputError(f"{path}: ASE reads {kind.name} but cannot write it; use .extxyz or .traj")
    if several and kind.single:
        raise InputError(f"{path}: {kind.name} holds one structure, there are several; use .extxyz or .traj")


def write_structures(path: str | Path, structures: Sequence[Atoms], *, overwrite: bool = False) -> None:
    """Write structures in the format that the name says, atomically.

    Raises:
        InputError: The file exists and ``overwrite`` is not set, or the name says no format that can hold them.
    """
    refuse_existing(path, overwrite=overwrite)
    check_format(path, several=len(structures) > 1)
    content = list(structures) if len(structures) > 1 else structures[0]
    write_atomically(path, lambda temporary: write(temporary, content))

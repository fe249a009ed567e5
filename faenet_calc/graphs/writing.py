"""Writing structures: atomically, without replacing files unasked, with a warning about what a format cannot hold."""

import glob
import shutil
import warnings
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

from ase import Atoms
from ase.io import write
from ase.io.formats import IOFormat, UnknownFileTypeError, filetype, ioformats

from faenet_calc.errors import InputError
from faenet_calc.files import locked, write_atomically

_COMPLETE = ("extxyz", "traj", "json", "db", "aselmdb")
"""ASE formats that hold energies, forces, further arrays, constraints and the periodicity of each axis."""


class LossyFormatWarning(UserWarning):
    """The chosen file format cannot hold everything that was computed."""


def refuse_existing(path: str | Path | None, *, overwrite: bool, hint: str = "give --overwrite to replace it") -> None:
    """Raise an InputError if a file cannot be created, or exists and may not be replaced.

    Args:
        path: The file to be written; None passes.
        overwrite: Whether an existing file may be replaced.
        hint: What to do about an existing file.
    """
    if path is None:
        return
    path = Path(path)
    if path.is_dir():
        raise InputError(f"{path} is a folder, expected the name of a file to write")
    if path.exists() and not overwrite:
        raise InputError(f"{path} exists; {hint}, or choose another name")
    if not path.parent.is_dir():
        raise InputError(f"{path}: the folder {path.parent} does not exist; create it first")


@contextmanager
def reserved(path: str | Path | None) -> Iterator[None]:
    """Reserve an output file for this process, by a lock file beside it that is removed afterwards.

    Temporary folders that a killed process left beside the file are removed.

    Raises:
        InputError: Another process is writing the file, or its folder cannot be written to.
    """
    if path is None:
        yield
        return
    path = Path(path)
    lock = path.with_name(f".{path.name}.lock")
    with ExitStack() as stack:
        try:
            stack.enter_context(locked(lock, wait=False))
        except InputError as error:
            raise InputError(
                f"{path} is being written by another process; wait until it has finished or choose another name"
            ) from error
        except OSError as error:
            raise InputError(
                f"{path} cannot be written: {error.strerror} (folder {path.parent.resolve()}); choose another folder"
            ) from error
        stack.callback(_remove, lock)
        _remove_leftovers(path)
        yield


def check_format(path: str | Path | None, *, several: bool) -> None:
    """Raise an InputError unless ASE can write structures to a file of this name.

    Args:
        path: The file to be written; None passes.
        several: Whether the file must hold more than one structure.
    """
    if path is None:
        return
    kind = _format(path)
    if not kind.can_write:
        raise InputError(f"{path}: ASE reads the format {kind.name} but cannot write it; use .extxyz or .traj")
    if several and kind.single:
        raise InputError(f"{path}: the format {kind.name} holds a single structure; use .extxyz or .traj for several")


def write_structures(path: str | Path, structures: Sequence[Atoms], *, overwrite: bool = False) -> None:
    """Write structures in the format that the file name implies, atomically.

    Warns with `LossyFormatWarning` if the format drops energies or forces, or makes every axis periodic.

    Raises:
        InputError: The file exists and ``overwrite`` is not set, or the format cannot hold the structures.
    """
    refuse_existing(path, overwrite=overwrite)
    check_format(path, several=len(structures) > 1)
    if lost := lost_in_format(path, structures):
        warnings.warn(f"{path}: {lost}; use .extxyz or .traj to keep everything", LossyFormatWarning, stacklevel=2)
    content = list(structures) if len(structures) > 1 else structures[0]
    with warnings.catch_warnings():
        # ASE's slab builders leave a nested `adsorbate_info`, of no use to a reader, which text formats cannot hold.
        warnings.filterwarnings("ignore", "Skipping unhashable information adsorbate_info")
        write_atomically(path, lambda temporary: write(temporary, content))


def keeps_everything(path: str | Path) -> bool:
    """Whether a file of this name holds results, further information and the periodicity of each axis."""
    return _format(path).name in _COMPLETE


def lost_in_format(path: str | Path, structures: Sequence[Atoms]) -> str | None:
    """What a file of this name cannot hold of the structures; None if it holds everything."""
    if keeps_everything(path):
        return None
    kind, lost = _format(path), []
    if any(atoms.calc is not None and atoms.calc.results for atoms in structures):
        lost.append(f"the format {kind.name} does not hold energies and forces")
    flags = {"".join("TF"[not axis] for axis in atoms.pbc) for atoms in structures} - {"TTT"}
    if flags:
        lost.append(f"periodic boundaries {', '.join(sorted(flags))} may be read back differently")
    return "; ".join(lost) or None


def _format(path: str | Path) -> IOFormat:
    try:
        return ioformats[filetype(str(path), read=False)]
    except (UnknownFileTypeError, KeyError) as error:
        raise InputError(f"{path}: no file format with this name; use .extxyz, .traj, .cif, .json or .vasp") from error


def _remove_leftovers(path: Path) -> None:
    """Remove the temporary folders of atomic writes to this file that were killed; the lock excludes running ones."""
    for folder in path.parent.glob(f".{glob.escape(path.name)}.????????"):
        if folder.is_dir():
            shutil.rmtree(folder, ignore_errors=True)


def _remove(path: Path) -> None:
    with suppress(OSError):  # Windows does not remove a file that is open
        path.unlink()

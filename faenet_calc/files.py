"""Files on disk: atomic writes, locks between processes, digests, and compressed structure files."""

import hashlib
import io
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import lru_cache
from pathlib import Path

import filelock
from ase.io.formats import open_with_compression

from faenet_calc.errors import InputError

_PARTIAL = ".partial"  # suffix of the folders in which files are written before they are renamed
COMPRESSED = (".xz", ".gz", ".bz2")


def write_atomically(path: str | Path, content: bytes | Callable[[Path], object]) -> None:
    """Write a file so that a reader, or a crash, sees the old file or the complete new one.

    Args:
        path: The file to create or replace. Its folder must exist.
        content: The bytes of the file, or a function that writes them to the path it is called with. That path has
            the same file name, so that formats which depend on the name are recognized.
    """
    with atomic_files([Path(path)]) as (temporary,):
        if isinstance(content, bytes):
            temporary.write_bytes(content)
        else:
            content(temporary)


@contextmanager
def atomic_files(targets: Sequence[Path]) -> Iterator[list[Path]]:
    """Temporary paths that replace the targets when the block ends; an exception leaves the targets unchanged.

    Args:
        targets: Files of one folder.

    Yields:
        One path per target, with the same file name in a temporary folder beside it.
    """
    (folder,) = {target.parent for target in targets}
    if not folder.is_dir():
        raise InputError(f"{folder} is not a folder; create it or choose another place for {targets[0].name}")
    with tempfile.TemporaryDirectory(dir=folder, prefix=f".{targets[0].name}.", suffix=_PARTIAL) as scratch:
        written = [Path(scratch) / target.name for target in targets]
        yield written
        for path in written:
            sync_to_disk(path)
        for path, target in zip(written, targets, strict=True):
            path.replace(target)
        sync_to_disk(folder)


def remove_partial_files(folder: Path) -> None:
    """Remove what :func:`atomic_files` left in a folder when its process was killed; call it while holding a lock."""
    for path in folder.glob(f".*{_PARTIAL}"):
        shutil.rmtree(path, ignore_errors=True)


def sync_to_disk(path: Path) -> None:
    """Wait until the contents of a file, or the names in a folder, are on disk."""
    if path.is_dir():
        if os.name != "posix":  # Windows has no way to open a folder
            return
        descriptor = os.open(path, os.O_RDONLY)
    else:
        descriptor = os.open(path, os.O_RDWR | getattr(os, "O_BINARY", 0))
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


@contextmanager
def locked(path: str | Path, *, wait: bool = True) -> Iterator[None]:
    """Hold a lock between processes; the operating system releases it when the process ends, however it ends.

    Args:
        path: The lock file. It is created if necessary and stays after the lock is released.
        wait: Wait for another holder; otherwise raise.

    Raises:
        InputError: Another process holds the lock and ``wait`` is False.
    """
    path = Path(path)
    try:
        lock = filelock.FileLock(path, timeout=-1 if wait else 0).acquire()
    except filelock.Timeout as error:
        raise InputError(
            f"{path.parent} is in use by another process (lock {path.name}); wait for it or choose another folder"
        ) from error
    with lock:
        yield


def sha256_of(path: Path) -> str:
    """The sha256 of a file, computed again only after the file was written."""
    status = path.stat()
    return _sha256(path.resolve(), status.st_mtime_ns, status.st_size)


@lru_cache(maxsize=256)
def _sha256(path: Path, modified_ns: int, size: int) -> str:
    with path.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def plain_name(path: Path) -> str:
    """The file name without the suffix of a compressed file: ``set.extxyz.xz`` → ``set.extxyz``."""
    return path.stem if path.suffix in COMPRESSED else path.name


def source_for_ase(path: Path, kind: str | None) -> str | io.StringIO:
    """The argument for ``ase.io.read`` that reads a file of an ASE format: its name, or its text where that is faster.

    ASE's extxyz reader seeks back to every block, and each backward seek in a compressed file decompresses it again:
    minutes for a few thousand structures.
    """
    if kind != "extxyz" or path.suffix not in COMPRESSED:
        return str(path)
    with open_with_compression(str(path), "r") as stream:
        return io.StringIO(stream.read())

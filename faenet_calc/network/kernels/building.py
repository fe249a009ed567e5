"""C source → shared library in the user's cache folder, compiled once per processor, compiler and source."""

import atexit
import ctypes
import hashlib
import logging
import os
import platform
import shlex
import shutil
import subprocess
import tempfile
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from pathlib import Path

import torch

from faenet_calc.files import write_atomically

logger = logging.getLogger(__name__)

SWITCH = "FAENET_CALC_NATIVE"
"""Environment variable; 0 leaves compiled code out."""

_FLAGS = ("-O3", "-march=native", "-fPIC", "-shared", "-std=c11")
_PROCESSORS = ("x86_64", "aarch64")  # whose instructions /proc/cpuinfo lists, and for which -march=native is known


@dataclass(frozen=True)
class Library:
    """Compiled functions.

    Attributes:
        functions: By name.
        threaded: Whether they can use several threads, those of torch.
    """

    functions: ctypes.CDLL
    threaded: bool


@cache
def library(source: str, real: str) -> Library | None:
    """The functions of a source file of this folder for a type of real numbers; None where they cannot be had."""
    why_not = unavailable()
    if why_not is None:
        for threaded in (True, False) if _torch_has_gomp() else (False,):
            try:
                return Library(_loaded(_build(source, real, threaded)), threaded)
            except (OSError, subprocess.SubprocessError) as error:
                printed = getattr(error, "stderr", None) or b""
                why_not = f"compiling {source} failed: {error} {printed.decode(errors='replace')}".strip()
    logger.info("running without compiled code, which is slower and gives the same numbers: %s", why_not)
    return None


def unavailable() -> str | None:
    """Why nothing can be compiled here; None where it is worth a try."""
    if os.environ.get(SWITCH, "1") == "0":
        return f"{SWITCH}=0 is set"
    if platform.system() != "Linux" or platform.machine() not in _PROCESSORS:
        return f"compiled code is for Linux on {' or '.join(_PROCESSORS)}, not {platform.system()} {platform.machine()}"
    if shutil.which(_compiler()[0]) is None:
        return f"no C compiler ({_compiler()[0]}) was found"
    return None


def _compiler() -> list[str]:
    return shlex.split(os.environ.get("CC", "")) or ["cc"]


def _torch_has_gomp() -> bool:
    """Whether code linked with libgomp.so.1 would share the threads of torch, and not bring others that compete."""
    return (Path(torch.__file__).parent / "lib" / "libgomp.so.1").exists()


def _build(source: str, real: str, threaded: bool) -> Path:
    text = files(__package__).joinpath(source).read_bytes()
    command = [*_compiler(), *_FLAGS, "-fopenmp" if threaded else "-fopenmp-simd", f"-DREAL={real}", source]
    key = hashlib.sha256(b"\0".join([text, *map(str.encode, command), _machine()])).hexdigest()
    folder = _folder()
    path = folder / f"{Path(source).stem}-{real}-{key[:16]}.so"
    if not path.exists():
        with tempfile.TemporaryDirectory(dir=folder) as workplace:
            (Path(workplace) / source).write_bytes(text)
            subprocess.run([*command, "-o", path.name], cwd=workplace, check=True, capture_output=True, timeout=120)
            write_atomically(path, (Path(workplace) / path.name).read_bytes())
    return path


def _loaded(path: Path) -> ctypes.CDLL:
    """A library; a file that cannot be loaded is deleted, so that the next process makes another."""
    try:
        return ctypes.CDLL(str(path))
    except OSError:
        with suppress(OSError):
            path.unlink()
        raise


def _machine() -> bytes:
    """What the compiled code depends on besides the source: the compiler and the instructions of the processor."""
    version = subprocess.run([*_compiler(), "--version"], check=True, capture_output=True, timeout=60).stdout
    lines = Path("/proc/cpuinfo").read_text(errors="replace").splitlines()
    instructions = next((line for line in lines if line.startswith(("flags", "Features"))), "")
    return version + instructions.encode() + platform.machine().encode()


@cache
def _folder() -> Path:
    """Where libraries are kept; for this process alone where the user has no folder that can be written."""
    try:
        folder = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "faenet-calc" / "compiled"
        folder.mkdir(parents=True, exist_ok=True)
        if os.access(folder, os.W_OK | os.X_OK):
            return folder
    except (OSError, RuntimeError):  # the latter where there is no home at all
        pass
    own = Path(tempfile.mkdtemp(prefix="faenet-calc-"))
    atexit.register(shutil.rmtree, own, ignore_errors=True)
    return own

"""C source → shared library in the user's cache folder, compiled once per processor, compiler and source (L1)."""

import hashlib
import logging
import os
import platform
import shutil
import subprocess
import tempfile
from functools import cache
from importlib.resources import files
from pathlib import Path

logger = logging.getLogger(__name__)

_FLAGS = ("-O3", "-march=native", "-fPIC", "-shared", "-fopenmp", "-std=c11")
SWITCH = "FAENET_CALC_NATIVE"
"""Environment variable; 0 leaves compiled code out."""


def compiled(source: str, real: str) -> Path | None:
    """The library of a source file of this folder for a type of real numbers; None where it cannot be had."""
    why_not = unavailable()
    if why_not is None:
        try:
            return _build(source, real)
        except (OSError, subprocess.SubprocessError) as error:
            printed = getattr(error, "stderr", None) or ""
            why_not = f"compiling {source} failed: {error} {printed}".strip()
    logger.info("running without compiled code, which is slower and gives the same numbers: %s", why_not)
    return None


def unavailable() -> str | None:
    """Why nothing can be compiled here; None where it can."""
    if os.environ.get(SWITCH, "1") == "0":
        return f"{SWITCH}=0 is set"
    if platform.system() != "Linux":  # elsewhere -march=native and OpenMP go by other names
        return f"compiled code is for Linux, this is {platform.system()}"
    if _compiler() is None:
        return "no C compiler (cc) was found"
    return None


def _compiler() -> str | None:
    return shutil.which(os.environ.get("CC", "cc"))


def _build(source: str, real: str) -> Path:
    compiler = _compiler()
    assert compiler is not None
    text = files(__package__).joinpath(source).read_bytes()
    key = hashlib.sha256(b"\0".join([text, real.encode(), *map(str.encode, _FLAGS), _machine(compiler)])).hexdigest()
    folder = _folder()
    library = folder / f"{Path(source).stem}-{real}-{key[:16]}.so"
    if library.exists():
        return library
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder) as workplace:
        place = Path(workplace)
        (place / source).write_bytes(text)
        command = [compiler, *_FLAGS, f"-DREAL={real}", source, "-o", library.name]
        subprocess.run(command, cwd=place, check=True, capture_output=True, text=True, timeout=120)
        os.replace(place / library.name, library)
    return library


@cache
def _machine(compiler: str) -> bytes:
    """What the compiled code depends on besides the source: the compiler and the instructions of the processor."""
    version = subprocess.run([compiler, "--version"], check=True, capture_output=True, timeout=60).stdout
    processor = next((line for line in _cpuinfo() if line.startswith(("flags", "Features"))), platform.processor())
    return version + processor.encode() + platform.machine().encode()


def _cpuinfo() -> list[str]:
    path = Path("/proc/cpuinfo")
    return path.read_text(errors="replace").splitlines() if path.exists() else []


def _folder() -> Path:
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "faenet-calc" / "compiled"

"""The compiled library of the package: C sources, and how they are loaded.

``setup.py`` builds ``_library.abi3.so`` from the C files of this folder. It needs no Python headers and calls nothing
from Python; functions are called through ctypes. Every function exists once per instruction set, and the best one that
the processor has is chosen here. Without the library everything runs in PyTorch, which is slower.
"""

import ctypes
import logging
import os
import zlib
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import torch

logger = logging.getLogger(__name__)

SWITCH = "FAENET_CALC_NATIVE"
"""Environment variable; 0 disables compiled code."""

INSTRUCTION_SETS = ("avx512", "avx2", "portable")
"""From the fastest to the one that every processor has."""


@dataclass(frozen=True)
class Library:
    """Compiled functions for one instruction set.

    Attributes:
        instructions: One of ``INSTRUCTION_SETS``.
        threaded: Whether the functions may use several threads without competing with those of torch.
    """

    functions: ctypes.CDLL
    instructions: str
    threaded: bool

    def function(self, name: str) -> Any:
        """A C function by its name without the instruction set."""
        return getattr(self.functions, f"{name}_{self.instructions}")


@cache
def library(instructions: str | None = None) -> Library | None:
    """The compiled functions for an instruction set, by default the best of this processor; None if unavailable."""
    found = _load()
    if isinstance(found, str):
        return None
    best = INSTRUCTION_SETS[found.faenet_instruction_set()]
    chosen = instructions or best
    if INSTRUCTION_SETS.index(chosen) < INSTRUCTION_SETS.index(best):
        return None
    return Library(found, chosen, threaded=bool(found.faenet_has_threads()) and _torch_has_gomp())


def unavailable() -> str | None:
    """The reason why compiled code is not used, or None if it is."""
    found = _load()
    return found if isinstance(found, str) else None


@cache
def _load() -> ctypes.CDLL | str:
    """The shared library, or the reason why there is none."""
    found = _open(Path(__file__).with_name("_library.abi3.so"))
    if isinstance(found, str):
        logger.info("running in PyTorch, which is slower than compiled code: %s", found)
    return found


def _open(path: Path) -> ctypes.CDLL | str:
    if os.environ.get(SWITCH, "1") == "0":
        return f"{SWITCH}=0 is set"
    if not path.exists():
        return "the compiled library was not built; it needs a C compiler (gcc or clang) at installation"
    try:
        found = ctypes.CDLL(str(path))
        built_from = ctypes.c_uint32(found.faenet_sources()).value
    except (OSError, AttributeError) as error:
        return f"{path} cannot be loaded: {error}"
    sources = sorted(path.parent.glob("*.[ch]"))  # of an editable installation
    if sources and zlib.crc32(b"".join(source.read_bytes() for source in sources)) != built_from:
        return f"{path} was built from other sources; install faenet-calc again (pip install -e .)"
    return found


def _torch_has_gomp() -> bool:
    """Whether torch brings the OpenMP runtime that the library is linked with, so that both share their threads."""
    return (Path(torch.__file__).parent / "lib" / "libgomp.so.1").exists()


_forked = False


def _remember_fork() -> None:
    global _forked
    _forked = True


os.register_at_fork(after_in_child=_remember_fork)


def n_threads(found: Library) -> int:
    """How many threads a function may use; one after a fork, which libgomp's threads do not survive."""
    return 1 if _forked or not found.threaded else torch.get_num_threads()

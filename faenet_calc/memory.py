"""Memory of long runs: freed blocks are kept for the next step instead of being returned to the system.

A step allocates hundreds of blocks of many MB. By default glibc maps each from the system and unmaps it again, and the
page faults take a good part of a CPU step. Here nothing is mapped by itself (``M_MMAP_MAX``; the threshold for that
cannot be raised beyond 32 MB) and the heap is not given back.
"""

import ctypes
import sys

_M_TRIM_THRESHOLD, _M_TOP_PAD, _M_MMAP_MAX = -1, -2, -4  # malloc.h
_MB = 1 << 20


def keep_freed_memory() -> bool:
    """Ask glibc to keep freed memory; False where there is no glibc."""
    if not sys.platform.startswith("linux"):
        return False
    try:
        mallopt = ctypes.CDLL("libc.so.6").mallopt
    except (OSError, AttributeError):
        return False
    settings = {_M_MMAP_MAX: 0, _M_TRIM_THRESHOLD: 2047 * _MB, _M_TOP_PAD: 64 * _MB}
    return all(mallopt(name, value) == 1 for name, value in settings.items())

"""Keep the memory that a layer frees for the next one.

A layer's activations are some megabytes, freed and asked for again and again. glibc maps such blocks anew each time, or
gives the end of a thread's heap back, and every page of it faults when it is written next: 5 to 8 % of a prefill on a
CPU went there. jemalloc and tcmalloc do not do so; where one of them is loaded, this changes nothing.
"""

from __future__ import annotations

import ctypes
import sys
from functools import cache

M_TRIM_THRESHOLD, M_MMAP_THRESHOLD, M_ARENA_MAX = -1, -3, -8  # names of malloc.h
KEPT = 1 << 30  # bytes that stay with the process
LARGEST = 32 << 20  # bytes of a block that comes from the heap; glibc takes no more for an answer


@cache
def keep_freed_memory() -> bool:
    """Tell the process's allocator so; whether it listens. Does so once, and only on Linux with glibc."""
    if not sys.platform.startswith("linux"):
        return False
    try:
        tell = ctypes.CDLL(None).mallopt
    except (OSError, AttributeError):  # another C library
        return False
    wishes = ((M_MMAP_THRESHOLD, LARGEST), (M_TRIM_THRESHOLD, KEPT), (M_ARENA_MAX, 1))
    told = [tell(option, value) == 1 for option, value in wishes]
    return all(told)

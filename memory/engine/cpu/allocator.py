"""Allocator settings for glibc: keep memory that a layer frees, and return to the system what loading frees.

A layer's activations take some megabytes, freed and allocated again for every layer. By default glibc returns such
blocks to the system. The page faults of the next write then take 5 to 8 % of a prefill on a CPU. With jemalloc or
tcmalloc these settings have no effect.
"""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import cache

M_TRIM_THRESHOLD, M_MMAP_THRESHOLD, M_ARENA_MAX = -1, -3, -8  # mallopt's options, as in malloc.h
HEAP_RESERVE = 1 << 30  # free bytes that stay with the process
HEAP_BLOCK = 32 << 20  # bytes of the largest block on the heap: glibc's maximum
LOADING_BLOCK = 256 << 10  # bytes of the largest block on the heap while a model is loaded


@cache
def keep_freed_memory() -> bool:
    """Set the allocator's options, once, on Linux with glibc; returns whether all were accepted."""
    options = {M_MMAP_THRESHOLD: HEAP_BLOCK, M_TRIM_THRESHOLD: HEAP_RESERVE, M_ARENA_MAX: 1}
    return sum(_set(option, value) for option, value in options.items()) == len(options)


@contextmanager
def return_freed_memory() -> Iterator[None]:
    """Return large blocks to the system as soon as they are freed, while a model is loaded.

    Several threads read weights, and free each tensor after its conversion. By default their heaps would keep as much
    memory as the model takes.
    """
    _set(M_MMAP_THRESHOLD, LOADING_BLOCK)
    try:
        yield
    finally:
        _set(M_MMAP_THRESHOLD, HEAP_BLOCK)


def trim_heap() -> None:
    """Return free whole pages between used blocks to the system, which takes about 10 ms.

    Long-lived keys and values among short-lived activations fragment the heap; by default glibc returns only its end.
    """
    _call("malloc_trim", 0)


def _set(option: int, value: int) -> bool:
    return _call("mallopt", option, value) == 1


def _call(function: str, *values: int) -> int:
    """Call a function of glibc; returns 0 with another C library or system."""
    if sys.platform.startswith("linux"):
        with suppress(OSError, AttributeError):
            return getattr(ctypes.CDLL(None), function)(*values)
    return 0

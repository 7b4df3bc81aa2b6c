"""Allocator settings for glibc: memory that a layer frees stays with the process, memory of loading goes back.

A layer's activations are some megabytes, freed and allocated again for every layer. By default glibc returns such
blocks to the system, and every page faults when it is written next: 5 to 8 % of a prefill on a CPU. With jemalloc or
tcmalloc these settings have no effect.
"""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import cache

M_TRIM_THRESHOLD, M_MMAP_THRESHOLD, M_ARENA_MAX = -1, -3, -8  # names of malloc.h
HEAP_RESERVE = 1 << 30  # bytes that stay with the process
LARGEST = 32 << 20  # bytes of a block that comes from the heap: glibc's maximum
WEIGHT = 256 << 10  # the same while a model is loaded


@cache
def keep_freed_memory() -> bool:
    """Set the options, once, on Linux with glibc; returns whether all were accepted."""
    wishes = ((M_MMAP_THRESHOLD, LARGEST), (M_TRIM_THRESHOLD, HEAP_RESERVE), (M_ARENA_MAX, 1))
    accepted = [_tell(option, value) for option, value in wishes]
    return all(accepted)


@contextmanager
def freed_at_once() -> Iterator[None]:
    """Give blocks of the size of weights back to the system when they are freed.

    Several threads read a model's weights, and free each tensor once it is converted or prepacked. In the heaps of
    those threads the memory would stay with the process: the size of the model once more.
    """
    _tell(M_MMAP_THRESHOLD, WEIGHT)
    try:
        yield
    finally:
        _tell(M_MMAP_THRESHOLD, LARGEST)


def give_back_holes() -> None:
    """Return free whole pages between used blocks to the system, which takes about 10 ms.

    Long-lived keys and values among short-lived activations fragment the heap; by itself glibc returns only its end.
    """
    if sys.platform.startswith("linux"):
        with suppress(OSError, AttributeError):  # another C library
            ctypes.CDLL(None).malloc_trim(0)


def _tell(option: int, value: int) -> bool:
    """Set one of glibc's options; returns whether it was accepted."""
    if not sys.platform.startswith("linux"):
        return False
    try:
        return ctypes.CDLL(None).mallopt(option, value) == 1
    except (OSError, AttributeError):  # another C library
        return False

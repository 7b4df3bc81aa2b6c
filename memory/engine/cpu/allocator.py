"""Allocator settings: memory that a layer frees is kept for the next one, what loading frees and holes are given back.

A layer's activations are some megabytes, freed and asked for again and again. glibc maps such blocks anew each time, or
gives the end of a thread's heap back, and every page of it faults when it is written next: 5 to 8 % of a prefill on a
CPU went there. jemalloc and tcmalloc do not do so; where one of them is loaded, this changes nothing.
"""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import cache

M_TRIM_THRESHOLD, M_MMAP_THRESHOLD, M_ARENA_MAX = -1, -3, -8  # names of malloc.h
KEPT = 1 << 30  # bytes that stay with the process
LARGEST = 32 << 20  # bytes of a block that comes from the heap; glibc takes no more for an answer
WEIGHT = 256 << 10  # the same while a model is loaded


@cache
def keep_freed_memory() -> bool:
    """Tell the process's allocator so; whether it listens. Does so once, and only on Linux with glibc."""
    wishes = ((M_MMAP_THRESHOLD, LARGEST), (M_TRIM_THRESHOLD, KEPT), (M_ARENA_MAX, 1))
    told = [_tell(option, value) for option, value in wishes]
    return all(told)


@contextmanager
def freed_at_once() -> Iterator[None]:
    """Give blocks of the size of weights back to the system when they are freed.

    Several threads read a model's weights, and each tensor is freed once it is converted or laid out for the processor.
    In the heaps of those threads they would stay with the process: as much as the model once more.
    """
    _tell(M_MMAP_THRESHOLD, WEIGHT)
    try:
        yield
    finally:
        _tell(M_MMAP_THRESHOLD, LARGEST)


def give_back_holes() -> None:
    """Give whole pages that are free between blocks in use back to the system. Takes about 10 ms.

    Keys and values live long among activations that do not: what is free lies in ever smaller pieces, of which glibc
    gives back the end of the heap alone unless it is asked.
    """
    if sys.platform.startswith("linux"):
        with suppress(OSError, AttributeError):  # another C library
            ctypes.CDLL(None).malloc_trim(0)


def _tell(option: int, value: int) -> bool:
    """Set one of glibc's options; whether it was taken."""
    if not sys.platform.startswith("linux"):
        return False
    try:
        return ctypes.CDLL(None).mallopt(option, value) == 1
    except (OSError, AttributeError):  # another C library
        return False

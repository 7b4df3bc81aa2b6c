"""Allocator: what a layer frees the next one gets, without page faults; what loading frees goes to the system."""

from __future__ import annotations

import json
import platform
import subprocess
import sys

import pytest

glibc = pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="glibc's allocator is not at work here")

SCRIPT = """
import json, resource, sys, threading
import torch
from memory.engine.cpu.allocator import keep_freed_memory
told = sys.argv[1] == "told" and keep_freed_memory()
faults = []
def work():
    for _ in range(12):
        before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
        blocks = [torch.ones(size << 20, dtype=torch.uint8) for size in (3, 16, 16, 16, 3)]
        del blocks
        faults.append(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
thread = threading.Thread(target=work)
thread.start()
thread.join()
print(json.dumps([told, sum(faults[2:])]))
"""


def faults(message: str) -> tuple[bool, int]:
    done = subprocess.run([sys.executable, "-c", SCRIPT, message], capture_output=True, text=True, check=True)
    told, count = json.loads(done.stdout)
    return told, count


MAPPED = """
import ctypes, json
from memory.engine.cpu.allocator import freed_at_once

libc, size = ctypes.CDLL(None), 1 << 20
libc.malloc.restype = ctypes.c_void_p

class Given(ctypes.Structure):  # struct mallinfo2; hblkhd: bytes of blocks with a mapping of their own
    _fields_ = [(name, ctypes.c_size_t) for name in ("arena", "ordblks", "smblks", "hblks", "hblkhd", "usmblks",
                                                     "fsmblks", "uordblks", "fordblks", "keepcost")]

libc.mallinfo2.restype = Given

def mapped():
    before = libc.mallinfo2().hblkhd
    assert libc.malloc(ctypes.c_size_t(size))
    return libc.mallinfo2().hblkhd - before >= size

with freed_at_once():
    loading = mapped()
print(json.dumps([loading, mapped()]))
"""


@glibc
def test_blocks_of_weights_are_mapped_each_while_a_model_is_loaded() -> None:
    """In a new process: the heap of this one may have room for such a block."""
    done = subprocess.run([sys.executable, "-c", MAPPED], capture_output=True, text=True, check=True)
    assert json.loads(done.stdout) == [True, False]


HOLES = """
import json
import numpy as np
from pathlib import Path
from memory.engine.cpu.allocator import give_back_holes, keep_freed_memory

def resident():
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4 / 1024

keep_freed_memory()
blocks = [np.ones(1 << 18, np.uint8) for _ in range(512)]  # of 256 KiB
last, whole = np.ones(1 << 18, np.uint8), resident()
del blocks[::2]
before = whole - resident()
give_back_holes()
print(json.dumps([before, whole - resident(), all(block.all() for block in blocks)]))
"""


@glibc
def test_holes_between_blocks_in_use_go_back_to_the_system() -> None:
    done = subprocess.run([sys.executable, "-c", HOLES], capture_output=True, text=True, check=True)
    unasked, request, whole = json.loads(done.stdout)
    assert unasked < 8 and 56 < request < 72 and whole  # of 64 MiB that are free


@pytest.mark.slow
@glibc
def test_freed_memory_stays() -> None:
    """In one of several processes at least: a machine that takes memory back by itself lets its pages fault again."""
    runs = [faults("told") for _ in range(5)]
    assert all(told for told, _ in runs)
    assert 2 * min(survivors for _, survivors in runs) < max(faults("untold")[1] for _ in range(2))

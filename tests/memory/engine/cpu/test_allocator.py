"""Allocator: memory that a layer frees is used again without page faults, memory of loading goes to the system."""

from __future__ import annotations

import json
import platform
import subprocess
import sys
from typing import Any

import pytest

glibc = pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="glibc's allocator is not at work here")

SCRIPT = """
import json, resource, sys, threading
import torch
from memory.engine.cpu.allocator import keep_freed_memory
accepted = sys.argv[1:] == ["keep"] and keep_freed_memory()
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
print(json.dumps([accepted, sum(faults[2:])]))
"""


def run(script: str, *arguments: str) -> list[Any]:
    """Run a script, which prints a JSON list, in a new process."""
    command = [sys.executable, "-c", script, *arguments]
    return json.loads(subprocess.run(command, capture_output=True, text=True, check=True).stdout)


MAPPED = """
import ctypes, json
from memory.engine.cpu.allocator import return_freed_memory

libc, size = ctypes.CDLL(None), 1 << 20
libc.malloc.restype = ctypes.c_void_p

class Info(ctypes.Structure):  # struct mallinfo2; hblkhd: bytes of blocks with a mapping of their own
    _fields_ = [(name, ctypes.c_size_t) for name in ("arena", "ordblks", "smblks", "hblks", "hblkhd", "usmblks",
                                                     "fsmblks", "uordblks", "fordblks", "keepcost")]

libc.mallinfo2.restype = Info

def mapped():
    before = libc.mallinfo2().hblkhd
    assert libc.malloc(ctypes.c_size_t(size))
    return libc.mallinfo2().hblkhd - before >= size

with return_freed_memory():
    loading = mapped()
print(json.dumps([loading, mapped()]))
"""


@glibc
def test_a_block_of_weights_has_its_own_mapping_while_a_model_is_loaded() -> None:
    assert run(MAPPED) == [True, False]


HOLES = """
import json
import numpy as np
from pathlib import Path
from memory.engine.cpu.allocator import trim_heap, keep_freed_memory

def resident():
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4 / 1024

keep_freed_memory()
blocks = [np.ones(1 << 18, np.uint8) for _ in range(512)]  # of 256 KiB
last, whole = np.ones(1 << 18, np.uint8), resident()
del blocks[::2]
before = whole - resident()
trim_heap()
print(json.dumps([before, whole - resident(), all(block.all() for block in blocks)]))
"""


@glibc
def test_holes_between_used_blocks_go_back_to_the_system() -> None:
    before, after, intact = run(HOLES)
    assert before < 8 and 56 < after < 72 and intact  # of 64 MiB that are free


@pytest.mark.slow
@glibc
def test_freed_memory_stays_with_the_process() -> None:
    """At least one of several processes must keep the memory: the system may reclaim it from some of them."""
    runs = [run(SCRIPT, "keep") for _ in range(5)]
    assert all(accepted for accepted, _ in runs)
    assert 2 * min(faults for _, faults in runs) < max(run(SCRIPT)[1] for _ in range(2))

"""What a layer frees, the next one gets: pages do not fault again."""

from __future__ import annotations

import json
import platform
import subprocess
import sys

import pytest

SCRIPT = """
import json, resource, sys, threading
import torch
from memory.engine.allocator import keep_freed_memory
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


def faults(said: str) -> tuple[bool, int]:
    done = subprocess.run([sys.executable, "-c", SCRIPT, said], capture_output=True, text=True, check=True)
    told, count = json.loads(done.stdout)
    return told, count


@pytest.mark.slow
@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="glibc's allocator is not at work here")
def test_freed_memory_stays() -> None:
    """In one of several processes at least: a machine that takes memory back by itself lets its pages fault again."""
    runs = [faults("told") for _ in range(5)]
    assert all(told for told, _ in runs)
    assert 2 * min(kept for _, kept in runs) < max(faults("untold")[1] for _ in range(2))

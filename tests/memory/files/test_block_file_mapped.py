"""Mapped block files: only the blocks that are read are loaded, and a mapping changes no file."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from memory.files.block_file import open_blocks, write_blocks
from tests.memory.files.blocks import TAIL, assert_holds, rows, same


def resident(path: Path) -> int:
    """Bytes of a file's mappings that this process has touched."""
    total, ours = 0, False
    for line in Path("/proc/self/smaps").read_text().splitlines():
        if "-" in line.split()[0]:
            ours = line.endswith(str(path))
        elif ours and line.startswith("Rss:"):
            total += int(line.split()[1]) * 1024
    return total


@pytest.mark.skipif(not Path("/proc/self/smaps").exists(), reason="needs Linux's list of mappings")
def test_a_file_is_mapped_and_only_touched_blocks_are_read(path: Path) -> None:
    size = 1 << 20
    write_blocks(path, {"k": torch.zeros(64, size, dtype=torch.uint8)}, {})
    found = open_blocks(path)
    tensor = found.tensor("k")
    assert tensor.shape == (64, size)
    assert resident(path) < 8 * size  # a touch maps what the kernel holds in one piece, up to 2 MiB
    found.verify(10, 12)
    assert 2 * size <= resident(path) < 16 * size
    found.verify()
    assert resident(path) >= 64 * size


def test_a_mapped_file_outlives_its_name(path: Path) -> None:
    write_blocks(path, rows(), {"state": 1}, TAIL)
    found = open_blocks(path)
    write_blocks(path, rows(blocks=2, seed=50), {"state": 2})
    assert_holds(found, rows())
    assert same(found.extra("tail"), TAIL["tail"])
    assert_holds(open_blocks(path), rows(blocks=2, seed=50))
    late = open_blocks(path)
    path.unlink()
    assert_holds(late, rows(blocks=2, seed=50))
    tensor = late.tensor("torch.uint8")
    del late, found
    assert same(tensor, rows(blocks=2, seed=50)["torch.uint8"])


def test_writing_into_a_mapped_tensor_never_reaches_the_file(path: Path) -> None:
    write_blocks(path, rows(), {})
    open_blocks(path).tensor("torch.float32").zero_()
    assert_holds(open_blocks(path), rows())

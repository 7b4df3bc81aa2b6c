"""Helpers for disk storage: blocks with recognisable numbers, files, and flipped bits."""

from __future__ import annotations

from pathlib import Path

import torch

from memory.kv_cache.block import KVBlock
from memory.storage.disk import Disk


def block(name: str, tokens: int = 5, version: int = 0, dtype: torch.dtype = torch.float32) -> KVBlock:
    """Numbers that tell name, version and row."""
    generator = torch.Generator().manual_seed(1000 * version + sum(name.encode()))
    k, v = torch.randn(2, 3, 2, tokens, 8, generator=generator, dtype=torch.float64).to(dtype)
    return KVBlock(name, k, v, namespace=name[:1], created=float(version))


def same(found: KVBlock | None, expected: KVBlock) -> bool:
    return (
        found is not None
        and (found.identity, found.namespace, found.created)
        == (expected.identity, expected.namespace, expected.created)
        and found.k.dtype == expected.k.dtype
        and torch.equal(found.k[:], expected.k)
        and torch.equal(found.v[:], expected.v)
    )


def opened(folder: Path, model: str = "model", **knobs: object) -> Disk:
    disk = Disk(folder, **knobs)
    disk.open(model)
    return disk


def filled(folder: Path, count: int = 40, **knobs: object) -> dict[str, KVBlock]:
    """A flushed file of blocks of 1 to 60 tokens, over several pages."""
    disk, blocks = opened(folder, **knobs), {}
    for number in range(count):
        blocks[str(number)] = block(str(number), 1 + number * 37 % 60)
        disk.put(blocks[str(number)])
    disk.flush()
    return blocks


def only_file(folder: Path) -> Path:
    (path,) = folder.glob("*.safetensors")
    return path


def flip(path: Path, place: int) -> None:
    """Change one bit; by another file in its place, as a mapping would see a change in its own."""
    raw = bytearray(path.read_bytes())
    raw[place // 8] ^= 1 << place % 8
    path.unlink()
    path.write_bytes(raw)

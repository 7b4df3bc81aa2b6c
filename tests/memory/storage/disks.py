"""Helpers for storages: blocks with recognisable numbers, files, and flipped bits."""

from __future__ import annotations

import errno
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import torch

from memory.files import atomic
from memory.kv_cache.block import KVBlock
from memory.storage.disk import Disk


def block(
    name: str,
    tokens: int = 5,
    version: int = 0,
    dtype: torch.dtype = torch.float32,
    namespace: str | None = None,
    shape: tuple[int, int, int] = (3, 2, 8),
) -> KVBlock:
    """Make a block of ``shape`` (layers, kv_heads, head_dim) whose numbers depend on name, version and row."""
    generator = torch.Generator().manual_seed(1000 * version + sum(name.encode()))
    k, v = torch.randn(2, *shape[:2], tokens, shape[2], generator=generator, dtype=torch.float64).to(dtype)
    return KVBlock(name, k, v, namespace=name[:1] if namespace is None else namespace, created=float(version))


def error(actual: torch.Tensor, expected: torch.Tensor) -> float:
    return float((actual - expected).abs().max() / expected.abs().max())


def same(actual: KVBlock | None, expected: KVBlock) -> bool:
    if actual is None or any(getattr(actual, n) != getattr(expected, n) for n in ("identity", "namespace", "created")):
        return False
    pairs = ((actual.k, expected.k), (actual.v, expected.v))
    return all(a.dtype == b.dtype and torch.equal(a[:], b) for a, b in pairs)


def open_disk(folder: Path, model: str = "model", **knobs: object) -> Disk:
    disk = Disk(folder, **knobs)
    disk.open(model)
    return disk


def filled(folder: Path, count: int = 40, **knobs: object) -> dict[str, KVBlock]:
    disk, blocks = open_disk(folder, **knobs), {}
    for number in range(count):
        blocks[str(number)] = block(str(number), 1 + number * 37 % 60)
        disk.put(blocks[str(number)])
    disk.flush()
    return blocks


@contextmanager
def full_disk(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    def full(_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(atomic.os, "fsync", full)
        yield


def only_file(folder: Path) -> Path:
    (path,) = folder.glob("*.safetensors")
    return path


def flipped(raw: bytes, bit: int) -> bytes:
    return raw[: bit // 8] + bytes([raw[bit // 8] ^ 1 << bit % 8]) + raw[bit // 8 + 1 :]


def rewrite(path: Path, raw: bytes) -> None:
    """Write a new file of the same name, so that existing mappings do not change."""
    path.unlink()
    path.write_bytes(raw)


def flip(path: Path, place: int) -> None:
    rewrite(path, flipped(path.read_bytes(), place))

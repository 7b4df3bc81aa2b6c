"""Path of a block file, tensors of random bits, and the check of a file that holds them."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pytest
import torch

from memory.files.block_file import BlockFile

DTYPES = (torch.uint8, torch.float16, torch.bfloat16, torch.float32)
HEADER = {"agent": "kitchen", "text": "größe \ud800 \"'\n", "ids": [1, 2, 3], "none": None}


def filled(shape: tuple[int, ...], dtype: torch.dtype, seed: int = 0) -> torch.Tensor:
    """Draw random bits, NaN among them."""
    generator = torch.Generator().manual_seed(seed)
    raw = torch.randint(0, 256, (*shape, dtype.itemsize), dtype=torch.uint8, generator=generator)
    return raw.view(dtype).view(shape)


def same(a: torch.Tensor, b: torch.Tensor) -> bool:
    """Compare bit for bit, so that NaN equals NaN."""
    if (a.dtype, a.shape) != (b.dtype, b.shape):
        return False
    return torch.equal(a.reshape(-1).view(torch.uint8), b.reshape(-1).view(torch.uint8))


def rows(blocks: int = 5, seed: int = 0) -> dict[str, torch.Tensor]:
    return {str(dtype): filled((blocks, 3, 10), dtype, seed + i) for i, dtype in enumerate(DTYPES)}


TAIL = {"tail": filled((7, 3), torch.float32, 9), "one": torch.tensor(3.5)}


def assert_holds(file: BlockFile, tensors: Mapping[str, torch.Tensor]) -> None:
    file.verify()
    assert file.names == tuple(sorted(tensors))
    assert all(same(file.tensor(name), tensor) for name, tensor in tensors.items())


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "new" / "folders" / "a.safetensors"

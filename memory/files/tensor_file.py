"""Tensor files (safetensors), read into the process's own memory, never memory-mapped.

Tensors of a mapped file change when another program overwrites the file; truncating it kills the process. Only the
files of `memory.files.block_file` are mapped, on purpose.
"""

from __future__ import annotations

from itertools import chain
from pathlib import Path

import torch
from safetensors import safe_open
from torch import nn


def open_tensors(path: Path) -> safe_open:
    """Open a file; each of its tensors is read on access, into memory of its own."""
    return safe_open(path, framework="pt", backend="pread")


def read_tensors(path: Path) -> dict[str, torch.Tensor]:
    """Read all tensors of a file by name, on the CPU."""
    with open_tensors(path) as file:
        return {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118


def own_memory(module: nn.Module) -> None:
    """Replace a model's parameters and buffers by copies: the library that loaded it may have mapped its file."""
    for tensor in chain(module.parameters(), module.buffers()):
        tensor.data = tensor.data.clone()

"""Rotary positions: tables of angles, and the model family's own rotation applied to bare keys.

Keys rest unrotated, so a block may be placed anywhere. Scaled RoPE (yarn, longrope) folds its attention factor
into cos and sin; rotating once from the unrotated key is therefore the only safe order.
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import nn

from keep_agent.errors import CapacityError
from memory.engine.models.model_spec import ModelSpec

Angles = Mapping[str, tuple[torch.Tensor, torch.Tensor]]  # by RoPE key: cos and sin, (1, rows, width)


def at_rows(angles: Angles, rows: slice | torch.Tensor) -> Angles:
    """Those of ``rows`` alone."""
    return {key: (cos[:, rows], sin[:, rows]) for key, (cos, sin) in angles.items()}


def rotate(attention: nn.Module, x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    """Rotate ``x`` (batch, heads, rows, head_dim) as the family of ``attention`` does; cos, sin (1, rows, width)."""
    apply = sys.modules[type(attention).__module__].apply_rotary_pos_emb
    return apply(x, x[:, :0], cos, sin)[0]


def _takes_layer_type(rotary: nn.Module) -> bool:
    return "layer_type" in inspect.signature(type(rotary).forward).parameters


@dataclass
class RopeTables:
    """cos and sin for positions 0, 1, ... by RoPE key, computed once by the model's own rotary module."""

    rotary: nn.Module
    attention: nn.Module
    spec: ModelSpec

    def __post_init__(self) -> None:
        self._size = 0
        self._tables: dict[str, tuple[torch.Tensor, torch.Tensor]] = {}

    def at(self, positions: torch.Tensor, top: int) -> dict[str, tuple[torch.Tensor, torch.Tensor]]:
        """Angles of ``positions`` (rows,), all below ``top``.

        :raises CapacityError: positions past the length up to which the model's RoPE is position independent.
        """
        if top > self._size:
            self._grow(top, positions.device)
        return {key: (cos[positions][None], sin[positions][None]) for key, (cos, sin) in self._tables.items()}

    def identity(self, rows: int, device: torch.device) -> tuple[torch.Tensor, torch.Tensor]:
        """Angles that leave ``rows`` rows as they are: cos 1, sin 0."""
        cos, _ = next(iter(self.at(torch.zeros(1, dtype=torch.long, device=device), 1).values()))
        shape = (1, rows, cos.shape[-1])
        return cos.new_ones(shape), cos.new_zeros(shape)

    def rotate_layers(self, keys: torch.Tensor, angles: Angles, first: int = 0) -> torch.Tensor:
        """Rotate ``keys`` (layers, kv_heads, rows, head_dim) of layers ``first``, ``first + 1``, ..."""
        if len(angles) == 1:
            return rotate(self.attention, keys, *next(iter(angles.values())))
        result = torch.empty_like(keys)
        for key, (cos, sin) in angles.items():
            index = [i for i in range(keys.shape[0]) if self.spec.rope_keys[first + i] == key]
            if index:
                result[index] = rotate(self.attention, keys[index], cos, sin)
        return result

    def _grow(self, top: int, device: torch.device) -> None:
        limit = self.spec.position_limit
        if limit is not None and top > limit:
            raise CapacityError(
                f"position {top - 1} lies beyond the {limit} tokens up to which this model's longrope "
                "keeps its frequencies; shorten the prompt or use a model with yarn or llama3 RoPE."
            )
        size = max(top, 2 * self._size, 512)
        size = min(size, limit) if limit is not None else size
        like = torch.empty(1, 1, dtype=self.spec.dtype, device=device)
        ids = torch.arange(size, device=device)[None]
        keys = sorted(set(self.spec.rope_keys))
        for key in keys:
            arguments = (like, ids, key) if _takes_layer_type(self.rotary) else (like, ids)
            cos, sin = self.rotary(*arguments)
            self._tables[key] = (cos[0], sin[0])
        self._size = size

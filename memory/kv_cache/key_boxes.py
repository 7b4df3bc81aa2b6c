"""Key boxes: a box around a KV block's keys gives an upper bound on a query's attention logits for the block."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch


@dataclass(frozen=True, slots=True)
class KeyBoxes:
    """Axis-aligned bounding boxes of blocks' keys: corners ``low, high`` (layers, kv_heads, blocks, head_dim)."""

    low: torch.Tensor
    high: torch.Tensor
    tokens: tuple[int, ...]  # number of tokens of each block

    @classmethod
    def around(cls, keys: Sequence[torch.Tensor], layers: Sequence[int]) -> KeyBoxes:
        """Make boxes for ``layers`` from each block's unrotated keys, (all layers, kv_heads, tokens, head_dim)."""
        device = keys[0].device
        selected = (k.index_select(0, torch.tensor(layers, device=k.device)).to(device) for k in keys)
        low, high = (torch.stack(side, 2) for side in zip(*(torch.aminmax(k, dim=2) for k in selected), strict=True))
        return cls(low, high, tuple(k.shape[2] for k in keys))


class KeyBoxIndex:
    """Boxes of a growing pool of blocks (section 3.2.1 of MemArt's paper). Blocks are numbered in order of insertion.

    ``layers`` are the layers whose keys have boxes.
    """

    def __init__(
        self,
        layers: Sequence[int],
        kv_heads: int,
        head_dim: int,
        dtype: torch.dtype = torch.float32,
        device: torch.device | str = "cpu",
    ) -> None:
        self.layers = tuple(layers)
        self.tokens: list[int] = []  # number of tokens of each block
        self.copies: list[int] = []  # how often each block occurs in the memory
        self._low = torch.empty(len(self.layers), kv_heads, 0, head_dim, dtype=dtype, device=device)
        self._high = torch.empty_like(self._low)

    def __len__(self) -> int:
        return len(self.tokens)

    def append(self, boxes: KeyBoxes) -> None:
        """Add the boxes of new blocks at the end; the capacity doubles when it is exhausted."""
        first, stop = len(self), len(self) + len(boxes.tokens)
        if stop > self._low.shape[2]:
            room = self._low.new_empty(*self._low.shape[:2], max(stop, 2 * first) - first, self._low.shape[3])
            self._low, self._high = (torch.cat([x[:, :, :first], room], 2) for x in (self._low, self._high))
        self._low[:, :, first:stop] = boxes.low
        self._high[:, :, first:stop] = boxes.high
        self.tokens += boxes.tokens
        self.copies += [1] * len(boxes.tokens)

    def keep(self, numbers: Sequence[int]) -> None:
        """Remove all blocks except ``numbers`` (ascending), and renumber the remaining blocks from 0."""
        for x in (self._low, self._high):
            x[:, :, : len(numbers)] = x[:, :, list(numbers)]
        self.tokens = [self.tokens[number] for number in numbers]
        self.copies = [self.copies[number] for number in numbers]

    def bound(self, layer: int, query: torch.Tensor) -> torch.Tensor:
        """Return upper bounds (heads, tokens, blocks) of q·k over each block's keys k.

        ``query`` is (heads, tokens, head_dim). A bound is the sum of max(q_d high_d, q_d low_d) over dimensions d. A
        query head uses the boxes of its KV head.
        """
        low, high = (x[self.layers.index(layer), :, : len(self)].mT for x in (self._low, self._high))
        heads, tokens, dim = query.shape
        q = query.to(low.dtype).reshape(low.shape[0], -1, dim)
        return torch.baddbmm(q.clamp(min=0) @ high, q.clamp(max=0), low).view(heads, tokens, len(self))

"""Evictable rows: the counters and masks that caches share from which a retention stage drops rows."""

from __future__ import annotations

import torch

from keep_agent.errors import ConfigError
from memory.engine.attention.observer import AttentionObserver
from memory.engine.base import ReadCounts
from memory.kv_cache.dense import Rows


class EvictableRows:
    """The token ids of all positions, dropped ones included, and the ``positions`` of the live rows, in order."""

    raw = None  # keys are stored rotated: positions never change

    def __init__(self, observer: AttentionObserver | None, device: torch.device) -> None:
        self.observer = observer
        self.tokens: list[int] = []
        self.positions = torch.empty(0, dtype=torch.long, device=device)
        self.logits: torch.Tensor | None = None
        self.reads = ReadCounts()
        self.exact = 0  # the first so many positions are live and what a plain forward gives
        self.requests = 0  # that a scheduler has taken for this cache, and that have not ended

    @property
    def length(self) -> int:
        """Live rows."""
        return self.positions.numel()

    @property
    def next_position(self) -> int:
        """A counter: dropping rows does not change it."""
        return len(self.tokens)

    @property
    def dropped(self) -> int:
        return self.next_position - self.length

    def write_raw(self, layer: int, rows: Rows, k: torch.Tensor) -> None:
        """Do nothing: unrotated keys are not stored."""

    def rewind(self, length: int, logits: torch.Tensor | None) -> None:
        """Delete the live rows behind the first ``length``; ``logits`` are those of the row before."""
        self.cut(int(self.positions[length]) if length < self.length else self.next_position)
        self.logits = logits

    def cut(self, position: int) -> None:
        """Delete everything from ``position`` on."""
        self.positions = self.positions[: int(torch.searchsorted(self.positions, position))]
        del self.tokens[position:]
        self.exact, self.logits = min(self.exact, position), None
        if self.observer is not None:
            self.observer.cut(position)

    def _append(self, positions: torch.Tensor, logits: torch.Tensor | None, token_ids: torch.Tensor) -> None:
        """Count the rows just written."""
        if self.exact == self.next_position:
            self.exact += positions.numel()
        self.tokens += token_ids.tolist()
        self.positions, self.logits = torch.cat([self.positions, positions]), logits

    def _drop(self, keep: torch.Tensor) -> torch.Tensor:
        """Take the live rows where ``keep`` (live rows,) bool is False out of the positions; returns theirs."""
        if keep.numel() != self.length:
            raise ConfigError(f"a mask of {keep.numel()} rows does not fit the {self.length} live ones")
        dropped = self.positions[~keep]
        if dropped.numel():
            self.positions = self.positions[keep]
            self.exact = min(self.exact, int(dropped[0]))
        return dropped

"""Transcript of a session: dense reference that computes all rows again in each turn and masks evicted rows."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from torch import nn

from tests.references.dense import Reference


@dataclass
class Attention:
    """Attention of one layer over all rows of the transcript, evicted ones included."""

    q: torch.Tensor  # rotated, (heads, rows, dim)
    k: torch.Tensor  # rotated, (kv_heads, rows, dim)
    weights: torch.Tensor  # (heads, rows, rows)


@dataclass
class Transcript:
    """Transcript in which row i attends to ``visible[i]``, the rows that were live then. A policy shortens ``live``."""

    module: nn.Module
    ids: list[int] = field(default_factory=list)
    visible: list[list[int]] = field(default_factory=list)
    live: list[int] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.model = Reference(self.module)
        self.layers: list[Attention] = []
        self.scores: dict[int, float] = {}  # scores of the latest eviction

    @torch.no_grad()
    def append(self, new: Sequence[int]) -> torch.Tensor:
        """Append tokens, which see the live rows and earlier new rows; return the logits (vocab,) of the last row."""
        for token in new:
            self.live = [*self.live, len(self.ids)]
            self.visible.append(self.live)
            self.ids.append(token)
        rows = torch.arange(len(self.ids))
        hidden, self.layers = self.module.model.embed_tokens.weight[self.ids], []
        for number in range(len(self.model.layers)):
            q, k, v = self.model.project(number, hidden)
            q, k = self.model.rotate(q, rows), self.model.rotate(k, rows)
            weights = self._attend(q, k)
            self.layers.append(Attention(q, k, weights))
            hidden = self.model.finish(number, hidden, weights, v)
        return self.model.norm(self.module.model.norm.weight, hidden[-1]) @ self.module.lm_head.weight.T

    def cut(self, row: int) -> None:
        """Remove the rows from ``row`` on."""
        del self.ids[row:], self.visible[row:]
        self.live = [index for index in self.live if index < row]

    def keep(self, forced: set[int], scores: dict[int, float], budget: int) -> None:
        """Keep the forced rows and, within the budget, the rows with the highest ``scores``."""
        if len(self.live) <= budget:
            return
        self.scores, room = scores, max(0, budget - len(forced))
        best = sorted((row for row in self.live if row not in forced), key=lambda row: scores[row])[::-1][:room]
        self.live = sorted([*forced, *best])

    def _attend(self, q: torch.Tensor, k: torch.Tensor) -> torch.Tensor:
        """Return each row's softmax over its visible rows only."""
        model, hidden = self.model, torch.ones(len(self.ids), len(self.ids), dtype=torch.bool)
        for row, visible in enumerate(self.visible):
            hidden[row, visible] = False
        scores = [q[head] @ k[head * model.kv_heads // model.heads].T / model.dim**0.5 for head in range(model.heads)]
        return torch.softmax(torch.stack(scores).masked_fill(hidden, float("-inf")), -1)

"""A session's transcript, slow and dense: everything is computed anew each turn, forgotten rows are masked."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from torch import nn

from tests.references.dense import Reference


@dataclass
class Attention:
    """One layer over all rows of the transcript, forgotten ones included."""

    q: torch.Tensor  # rotated, (heads, rows, dim)
    k: torch.Tensor  # rotated, (kv_heads, rows, dim)
    weights: torch.Tensor  # (heads, rows, rows)


@dataclass
class Transcript:
    """``seen[i]``: the rows that row i attends to, which were live when it came. A policy shortens ``live``."""

    module: nn.Module
    ids: list[int] = field(default_factory=list)
    seen: list[list[int]] = field(default_factory=list)
    live: list[int] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.model = Reference(self.module)
        self.layers: list[Attention] = []
        self.scores: dict[int, float] = {}  # by which a policy chose last

    @torch.no_grad()
    def tell(self, new: Sequence[int]) -> torch.Tensor:
        """(vocab,) logits behind the rows ``new``, which see what is live, and each other up to themselves."""
        for token in new:
            self.live = [*self.live, len(self.ids)]
            self.seen.append(self.live)
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

    def take_back(self, row: int) -> None:
        """The rows from ``row`` on were never told."""
        del self.ids[row:], self.seen[row:]
        self.live = [other for other in self.live if other < row]

    def keep(self, forced: set[int], scores: dict[int, float], budget: int) -> None:
        """The forced rows stay, and as many others as the budget leaves room for, the best by their ``scores``."""
        if len(self.live) <= budget:
            return
        self.scores, room = scores, max(0, budget - len(forced))
        best = sorted((row for row in self.live if row not in forced), key=lambda row: scores[row])[::-1][:room]
        self.live = sorted([*forced, *best])

    def _attend(self, q: torch.Tensor, k: torch.Tensor) -> torch.Tensor:
        """Each row's softmax over the rows it sees, and nothing else."""
        model, hidden = self.model, torch.ones(len(self.ids), len(self.ids), dtype=torch.bool)
        for row, seen in enumerate(self.seen):
            hidden[row, seen] = False
        scores = [q[head] @ k[head * model.kv_heads // model.heads].T / model.dim**0.5 for head in range(model.heads)]
        return torch.softmax(torch.stack(scores).masked_fill(hidden, float("-inf")), -1)

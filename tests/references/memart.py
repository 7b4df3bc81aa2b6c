"""MemArt's algorithm 1: dense reference of boxes, relevance, the four aggregations and decoupled positions.

Where the paper is not specific, it follows `memory.retrieval.latent`: scores are normalised per head and layer and then
summed. Reciprocal ranks are exact fractions, so that ties are seen. Rows outside complete blocks are always visible.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from fractions import Fraction

import torch
from torch import nn

from tests.references.dense import Reference


@dataclass
class MemArt:
    """Session that stores the unrotated keys and the values of the context and of all turns."""

    module: nn.Module
    context: Sequence[int]
    size: int  # tokens per block
    top_k: int  # blocks
    normalise: str
    aggregate: str
    scoring_layers: Sequence[int]  # layers
    per_layer: bool = False
    coupled: bool = False
    constant: int = 60
    selection: dict[int, list[int]] = field(default_factory=dict)  # blocks by layer, in the last turn

    def __post_init__(self) -> None:
        self.model = Reference(self.module)
        empty = torch.zeros(self.model.kv_heads, 0, self.model.dim).to(self.module.dtype)
        self.stored = [(empty, empty) for _ in self.model.layers]
        if self.context:
            self._append(self._forward(self.context, lambda layer, q: [])[1])

    @torch.no_grad()
    def turn(self, new: Sequence[int]) -> torch.Tensor:
        """Compute the rows ``new`` and add them to the memory; return the logits (vocab,) of the last row."""
        before, rows = len(self.context), self.stored[0][0].shape[1]
        starts = range(before, rows - self.size + 1, self.size)
        self.blocks = [list(range(start, start + self.size)) for start in starts]
        rest = list(range(before + len(self.blocks) * self.size, rows))
        queries = self._forward(new, lambda layer, q: list(range(before)))[2]
        shared = self.choose({layer: queries[layer] for layer in self.scoring_layers})

        def visible(layer: int, q: torch.Tensor) -> list[int]:
            self.selection[layer] = self.choose({layer: q}) if self.per_layer else shared
            return [*range(before), *(row for b in self.selection[layer] for row in self.blocks[b]), *rest]

        logits, computed, _ = self._forward(new, visible, self.coupled)
        self._append(computed)
        return logits

    def choose(self, queries: dict[int, torch.Tensor]) -> list[int]:
        """Return the ``top_k`` best blocks in order of time: equation 4 and table 1."""
        lines = [self.relevance(layer, h, q[h]) for layer, q in queries.items() for h in range(self.model.heads)]
        by_token = []
        for token in range(lines[0].shape[0]):
            votes = [self._normalised(line[token]) for line in lines]
            by_token.append([sum(vote[b] for vote in votes) for b in range(len(self.blocks))])
        aggregate = max if self.aggregate == "max" else sum
        score = [aggregate(votes) for votes in zip(*by_token, strict=True)]
        return sorted(sorted(range(len(score)), key=lambda b: (-score[b], b))[: self.top_k])

    def relevance(self, layer: int, head: int, q: torch.Tensor) -> torch.Tensor:
        """Return the relevance (tokens, blocks): equations 2 and 3."""
        keys = self.stored[layer][0][head * self.model.kv_heads // self.model.heads]
        result = torch.zeros(len(q), len(self.blocks), dtype=q.dtype)
        for number, rows in enumerate(self.blocks):
            low, high = keys[rows].amin(0), keys[rows].amax(0)
            result[:, number] = torch.maximum(q * high, q * low).sum(-1)
        return result

    def _normalised(self, values: torch.Tensor) -> list:
        if self.normalise == "softmax":
            return torch.softmax(values, -1).tolist()
        order = sorted(range(len(values)), key=lambda b: (-values[b], b))  # ties go to the earlier block
        return [Fraction(1, order.index(b) + 1 + self.constant) for b in range(len(values))]

    def _forward(
        self, new: Sequence[int], visible: Callable[[int, torch.Tensor], list[int]], coupled: bool = False
    ) -> tuple:
        """Return the last row's logits, and per layer (k, v) and unrotated q of the ``new`` rows: equation 6."""
        model, hidden, total = self.model, self.module.model.embed_tokens.weight[list(new)], self.stored[0][0].shape[1]
        computed, queries = [], []
        for layer in range(len(model.layers)):
            q, k, v = model.project(layer, hidden)
            rows = visible(layer, q)
            last = list(range(len(rows), len(rows) + len(new)))  # the new rows, after the visible ones
            places = [*rows, *range(total, total + len(new))] if coupled else [*range(len(rows)), *last]
            keys, values = (torch.cat([old[:, rows], x], 1) for old, x in zip(self.stored[layer], (k, v), strict=True))
            rotated_q, rotated_k = model.rotate(q, torch.tensor(places)[last]), model.rotate(keys, torch.tensor(places))
            hidden = model.finish(layer, hidden, model.attend(rotated_q, rotated_k, last, causal=True), values)
            computed.append((k, v))
            queries.append(q)
        return model.norm(self.module.model.norm.weight, hidden[-1]) @ self.module.lm_head.weight.T, computed, queries

    def _append(self, computed: list[tuple[torch.Tensor, torch.Tensor]]) -> None:
        pairs = zip(self.stored, computed, strict=True)
        self.stored = [(torch.cat([k, new_k], 1), torch.cat([v, new_v], 1)) for (k, v), (new_k, new_v) in pairs]

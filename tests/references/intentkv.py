"""IntentKV (arXiv 2606.09916): dense reference of query memory, rule, features and residual head, in plain loops."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import torch

from tests.references.transcript import Transcript

Weights = Mapping[str, torch.Tensor]  # weights of a residual head by name


@dataclass
class IntentKV:
    """IntentKV in one session. ``head``: weights of a trained residual head; None: the rule alone."""

    transcript: Transcript
    budget: int
    decay: float
    head: Weights | None = None
    memory: bool = True
    cross_attention: bool = True
    residual: bool = True

    def __post_init__(self) -> None:
        self.m: list[list[torch.Tensor]] | None = None  # query memory by layer and query head, with unit norm

    def keep(self, forced: set[int], span: list[int]) -> None:
        """Evict rows (section 3.1); the query memory is updated even without an eviction."""
        self.follow(span)
        history = [row for row in self.transcript.live if row not in forced]
        if history:
            scores = self.scores(history, [row for row in span if row in self.transcript.live])
            self.transcript.keep(forced, scores, self.budget)

    def follow(self, span: list[int]) -> None:
        """Update the query memory: equation 2, then unit norm along the head dimension."""
        encoded = [[q[span].mean(0) for q in layer.q] for layer in self.transcript.layers]
        if self.memory and self.m is not None:
            fade = math.exp(-self.decay)
            encoded = [
                [fade * old + new for old, new in zip(old_heads, new_heads, strict=True)]
                for old_heads, new_heads in zip(self.m, encoded, strict=True)
            ]
        self.m = [[row / torch.sqrt((row * row).sum()) for row in heads] for heads in encoded]

    def scores(self, history: list[int], span: list[int]) -> dict[int, float]:
        """Score the rows: equation 4."""
        rule = self.rule(history)
        if self.head is None or not self.residual:
            return rule
        alpha = min(5.0, max(-5.0, float(self.head["alpha"])))
        features = {row: self.features(row, rule[row]) for row in history}
        keys = [self.mean_key(row) for row in span]
        return {row: rule[row] + alpha * self.mlp(features[row], self.read(features[row], keys)) for row in history}

    def rule(self, history: list[int]) -> dict[int, float]:
        """Score the rows by the rule: equation 3."""
        total = dict.fromkeys(history, 0.0)
        for layer, heads in enumerate(self.m):
            for head, m in enumerate(heads):
                weights = torch.exp(self.keys(layer, head)[history] @ m / math.sqrt(m.numel()))
                for row, share in zip(history, (weights / weights.sum()).tolist(), strict=True):
                    total[row] += share
        return total

    def keys(self, layer: int, head: int) -> torch.Tensor:
        """Return the keys (rows, D) of the KV head that a query head reads."""
        model = self.transcript.model
        return self.transcript.layers[layer].k[head * model.kv_heads // model.heads]

    def mean_key(self, row: int) -> torch.Tensor:
        every = [self.keys(layer, head)[row] for layer, heads in enumerate(self.m) for head in range(len(heads))]
        return torch.stack(every).mean(0)

    def features(self, row: int, rule: float) -> torch.Tensor:
        """Return the features of equation 5, normalised with the training set's statistics."""
        k, m = self.mean_key(row), torch.stack([m for heads in self.m for m in heads]).mean(0)
        raw = torch.cat([k, m, k * m, torch.tensor([rule], dtype=k.dtype)])
        return (raw - self.head["center"].to(k.dtype)) / self.head["spread"].to(k.dtype)

    def read(self, features: torch.Tensor, span: list[torch.Tensor]) -> torch.Tensor:
        """Attend to the query span: equation 6, four heads of width 32; ``span``: mean keys of its live rows."""
        if not self.cross_attention:
            return torch.zeros(128, dtype=features.dtype)
        query, parts = self.linear("to_query", features), []
        keys, values = (torch.stack([self.linear(name, key) for key in span]) for name in ("to_key", "to_value"))
        for head in range(4):
            part = slice(32 * head, 32 * head + 32)
            weights = torch.exp(keys[:, part] @ query[part] / math.sqrt(32))
            parts.append(weights / weights.sum() @ values[:, part])
        return torch.cat(parts)

    def mlp(self, features: torch.Tensor, read: torch.Tensor) -> float:
        hidden = self.linear("hidden", torch.cat([features, read]))
        return float(self.linear("out", hidden * 0.5 * (1 + torch.erf(hidden / math.sqrt(2))))[0])

    def linear(self, name: str, x: torch.Tensor) -> torch.Tensor:
        return self.head[f"{name}.weight"].to(x.dtype) @ x + self.head[f"{name}.bias"].to(x.dtype)

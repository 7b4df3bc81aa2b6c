"""KEEP's prefill (arXiv 2602.23592, section 4.2), slow and dense: every quantity written out from the paper.

Reads the weights of a Qwen2, Qwen3 or Llama module and shares no code with the engine or the stage. Positions, masks
and sets are plain loops and dense matrices. Importance of a segment: attention mass, mean over heads and over the rows
that ask, divided by the segment's tokens.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import nn

Set = list[int]


@dataclass
class Reference:
    """One decoder-only model with default RoPE, computed densely in its own dtype."""

    module: nn.Module

    def __post_init__(self) -> None:
        config = self.module.config
        self.heads, self.kv_heads = config.num_attention_heads, config.num_key_value_heads
        self.dim = self.module.model.layers[0].self_attn.head_dim
        self.eps, self.theta = config.rms_norm_eps, config.rope_parameters["rope_theta"]
        self.layers = list(self.module.model.layers)

    def norm(self, weight: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
        return weight * x / torch.sqrt((x * x).mean(-1, keepdim=True) + self.eps)

    def rotate(self, x: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
        """x (heads, rows, dim)."""
        half = self.dim // 2
        angle = positions[:, None].to(x.dtype) / self.theta ** (torch.arange(half).to(x.dtype) / half)
        cos, sin = angle.cos(), angle.sin()
        a, b = x[..., :half], x[..., half:]
        return torch.cat([a * cos - b * sin, b * cos + a * sin], -1)

    def project(self, layer: int, hidden: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Unrotated q (heads, rows, dim), k and v (kv_heads, rows, dim)."""
        block, attention = self.layers[layer], self.layers[layer].self_attn
        x = self.norm(block.input_layernorm.weight, hidden)
        q, k, v = (
            (x @ p.weight.T + (0 if p.bias is None else p.bias)).view(len(x), -1, self.dim).transpose(0, 1)
            for p in (attention.q_proj, attention.k_proj, attention.v_proj)
        )
        if hasattr(attention, "k_norm"):
            q, k = self.norm(attention.q_norm.weight, q), self.norm(attention.k_norm.weight, k)
        return q, k, v

    def attend(self, q: torch.Tensor, k: torch.Tensor, rows: Sequence[int], causal: bool) -> torch.Tensor:
        """Weights (heads, len(rows), all rows) of rotated q over rotated k."""
        group = self.heads // self.kv_heads
        scores = torch.stack([q[h] @ k[h // group].T for h in range(self.heads)]) * self.dim**-0.5
        if causal:
            for i, row in enumerate(rows):
                scores[:, i, row + 1 :] = float("-inf")
        return torch.softmax(scores, -1)

    def finish(self, layer: int, hidden: torch.Tensor, weights: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        """The rest of a layer after its attention weights."""
        block, group = self.layers[layer], self.heads // self.kv_heads
        mixed = torch.stack([weights[h] @ v[h // group] for h in range(self.heads)], 1).flatten(1)
        hidden = hidden + mixed @ block.self_attn.o_proj.weight.T
        x, mlp = self.norm(block.post_attention_layernorm.weight, hidden), block.mlp
        gate = x @ mlp.gate_proj.weight.T
        return hidden + (gate * torch.sigmoid(gate) * (x @ mlp.up_proj.weight.T)) @ mlp.down_proj.weight.T

    def alone(self, ids: Sequence[int]) -> list[tuple[torch.Tensor, torch.Tensor]]:
        """Unrotated keys, and values of a unit that sees only itself, per layer."""
        hidden, rows = self.module.model.embed_tokens.weight[list(ids)], torch.arange(len(ids))
        stored = []
        for layer in range(len(self.layers)):
            q, k, v = self.project(layer, hidden)
            stored.append((k, v))
            weights = self.attend(self.rotate(q, rows), self.rotate(k, rows), rows.tolist(), causal=True)
            hidden = self.finish(layer, hidden, weights, v)
        return stored


@dataclass
class Outcome:
    logits: torch.Tensor  # (vocab,) of the last row
    active: list[Set]  # rows per layer
    hops: list[int]  # at each layer that chose


@torch.no_grad()
def keep_prefill(
    module: nn.Module,
    units: Sequence[Sequence[int]],
    query: Sequence[int],
    counts: Sequence[int],
    max_hops: int,
    causal: bool,
    relative: bool,
) -> Outcome:
    """Prefill ``[units][query]`` where ``counts[l]`` segments (one per unit) are active at layer l.

    ``relative`` is this project's reading: see `choose`.
    """
    model = Reference(module)
    ids = [*(token for unit in units for token in unit), *query]
    starts = [sum(len(u) for u in units[:i]) for i in range(len(units))]
    members = [list(range(s, s + len(u))) for s, u in zip(starts, units, strict=True)]
    asking = list(range(len(ids) - len(query), len(ids)))
    stored = [model.alone(unit) for unit in units]
    rows, playing = list(range(len(ids))), list(range(len(units)))
    hidden = module.model.embed_tokens.weight[ids]
    result = Outcome(torch.empty(0), [], [])
    for layer in range(len(model.layers)):
        result.active.append(rows)
        q, k_new, v_new = model.project(layer, hidden)
        empty = torch.zeros(model.kv_heads, len(query), model.dim, dtype=hidden.dtype)
        k, v = (torch.cat([*(s[layer][kind] for s in stored), empty], 1) for kind in (0, 1))
        k[:, rows], v[:, rows] = k_new, v_new
        k, q = model.rotate(k, torch.arange(len(ids))), model.rotate(q, torch.tensor(rows))
        weights = model.attend(q, k, rows, causal=True)
        hidden = model.finish(layer, hidden, weights, v)
        if layer + 1 == len(model.layers):
            break
        count = counts[layer + 1]
        if count < len(playing):
            scored = weights if causal else model.attend(q, k, rows, causal=False)
            playing, hops = choose(
                weights, scored, rows, asking, members, playing, count, max_hops, relative and causal
            )
            result.hops.append(hops)
        kept = sorted([row for m in playing for row in members[m]] + asking)
        hidden = hidden[[rows.index(row) for row in kept]]
        rows = kept
    result.logits = model.norm(module.model.norm.weight, hidden[-1]) @ module.lm_head.weight.T
    return result


def choose(
    weights: torch.Tensor,
    later: torch.Tensor,
    rows: Set,
    asking: Set,
    members: list[Set],
    playing: Set,
    count: int,
    max_hops: int,
    relative: bool,
) -> tuple[Set, int]:
    """Steps 1 to 4 of the paper's figure 6: query to segments, then segments to segments until nothing changes.

    ``relative``: only segments that can see the target are asked, and what each gives counts as often as there are rows
    up to its end, so that 1 is what even attention would give.
    """

    def importance(matrix: torch.Tensor, sources: Set, target: int) -> float:
        lines = [rows.index(row) for row in sources]
        return float(matrix[:, lines][:, :, members[target]].sum(-1).mean() / len(members[target]))

    def against_even(target: int) -> float:
        asked = [m for m in relevant if members[m][-1] >= members[target][-1]]
        rows_asked = sum(len(members[m]) for m in asked)
        given = sum(len(members[m]) * (members[m][-1] + 1) * importance(later, members[m], target) for m in asked)
        return given / rows_asked if asked else 0.0

    def top(scores: dict[int, float]) -> Set:
        return sorted(sorted(scores, key=lambda m: (-scores[m], m))[:count])

    relevant = top({m: importance(weights, asking, m) for m in playing})
    hops = 0
    for _ in range(max_hops):
        sources = [row for m in relevant for row in members[m]]
        following = top({m: against_even(m) if relative else importance(later, sources, m) for m in playing})
        hops += 1
        if following == relevant:
            break
        relevant = following
    return relevant, hops

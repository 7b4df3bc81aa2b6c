"""Dense reference of a decoder-only model and of a prefill over stored units, on which the papers' references build.

It reads the weights of a Qwen2, Qwen3 or Llama module and shares no code with the engine or a stage. Positions, masks
and sets are plain loops and dense matrices.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import torch
from torch import nn

Set = list[int]


@dataclass
class Reference:
    """Decoder-only model with default RoPE, computed densely in its own dtype."""

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
        """Apply RoPE to x (heads, rows, dim)."""
        half = self.dim // 2
        angle = positions[:, None].to(x.dtype) / self.theta ** (torch.arange(half).to(x.dtype) / half)
        cos, sin = angle.cos(), angle.sin()
        a, b = x[..., :half], x[..., half:]
        return torch.cat([a * cos - b * sin, b * cos + a * sin], -1)

    def project(self, layer: int, hidden: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Return unrotated q (heads, rows, dim), and k and v (kv_heads, rows, dim)."""
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
        """Return the attention weights (heads, len(rows), all rows) of rotated q over rotated k."""
        group = self.heads // self.kv_heads
        scores = torch.stack([q[h] @ k[h // group].T for h in range(self.heads)]) * self.dim**-0.5
        if causal:
            for i, row in enumerate(rows):
                scores[:, i, row + 1 :] = float("-inf")
        return torch.softmax(scores, -1)

    def finish(self, layer: int, hidden: torch.Tensor, weights: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        """Return the layer's output, given its attention weights."""
        block, group = self.layers[layer], self.heads // self.kv_heads
        mixed = torch.stack([weights[h] @ v[h // group] for h in range(self.heads)], 1).flatten(1)
        hidden = hidden + mixed @ block.self_attn.o_proj.weight.T
        x, mlp = self.norm(block.post_attention_layernorm.weight, hidden), block.mlp
        gate = x @ mlp.gate_proj.weight.T
        return hidden + (gate * torch.sigmoid(gate) * (x @ mlp.up_proj.weight.T)) @ mlp.down_proj.weight.T

    def alone(self, ids: Sequence[int]) -> list[tuple[torch.Tensor, torch.Tensor]]:
        """Return per layer the unrotated keys and the values of a unit that is encoded alone."""
        hidden, rows = self.module.model.embed_tokens.weight[list(ids)], torch.arange(len(ids))
        stored = []
        for layer in range(len(self.layers)):
            q, k, v = self.project(layer, hidden)
            stored.append((k, v))
            weights = self.attend(self.rotate(q, rows), self.rotate(k, rows), rows.tolist(), causal=True)
            hidden = self.finish(layer, hidden, weights, v)
        return stored


@dataclass
class Memory:
    """Prompt ``[units][query]``: the rows of each unit, and their stored KV."""

    model: Reference
    units: Sequence[Sequence[int]]
    query: Sequence[int]
    new: Sequence[int] = ()  # units without stored KV
    exact: int = 0  # number of first units whose stored KV counts as exact; encoded alone, only the first one's is
    earlier: Mapping[tuple[int, ...], list[tuple[torch.Tensor, torch.Tensor]]] = field(default_factory=dict)
    # stored KV per layer of units that are not encoded alone

    def __post_init__(self) -> None:
        self.ids = [*(token for unit in self.units for token in unit), *self.query]
        starts = [sum(len(u) for u in self.units[:i]) for i in range(len(self.units))]
        self.members = [list(range(s, s + len(u))) for s, u in zip(starts, self.units, strict=True)]
        self.query_rows = list(range(len(self.ids) - len(self.query), len(self.ids)))
        self.fresh = sorted([row for i in self.new for row in self.members[i]] + self.query_rows)
        self.settled = [row for rows in self.members[: self.exact] for row in rows]
        self.reused = [row for row in range(len(self.ids)) if row not in self.fresh + self.settled]
        self._stored = [self.earlier.get(tuple(unit)) or self.model.alone(unit) for unit in self.units]

    def stored(self, layer: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Return unrotated k and v (kv_heads, rows, dim); fresh rows are NaN."""
        parts = [unit[layer] for unit in self._stored]
        empty = torch.full_like(parts[0][0][:, :1], torch.nan).expand(-1, len(self.query), -1)
        k, v = (torch.cat([*(part[kind] for part in parts), empty], 1) for kind in (0, 1))
        k[:, self.fresh], v[:, self.fresh] = torch.nan, torch.nan
        return k, v


@dataclass
class LayerState:
    """State after a layer, from which a policy selects the rows of the next layer."""

    layer: int
    rows: Set  # rows computed at this layer
    q: torch.Tensor  # rotated, (heads, len(rows), dim)
    k: torch.Tensor  # rotated, (kv_heads, all rows, dim)
    weights: torch.Tensor  # (heads, len(rows), all rows)
    hidden: torch.Tensor  # (len(rows), hidden), input of the next layer


@dataclass
class Outcome:
    logits: torch.Tensor  # (vocab,), last row
    active: list[Set]  # rows per layer


@torch.no_grad()
def prefill(memory: Memory, first: Set, narrow: Callable[[LayerState], Set]) -> Outcome:
    """Compute the rows ``first`` at layer 0 and those of ``narrow`` at later layers; read all others from the store."""
    model, rows = memory.model, sorted(first)
    hidden, active = model.module.model.embed_tokens.weight[[memory.ids[row] for row in rows]], []
    for layer in range(len(model.layers)):
        active.append(rows)
        q, k_new, v_new = model.project(layer, hidden)
        k, v = memory.stored(layer)
        k[:, rows], v[:, rows] = k_new, v_new
        k, q = model.rotate(k, torch.arange(len(memory.ids))), model.rotate(q, torch.tensor(rows))
        weights = model.attend(q, k, rows, causal=True)
        hidden = model.finish(layer, hidden, weights, v)
        if layer + 1 < len(model.layers):
            remaining = sorted(narrow(LayerState(layer, rows, q, k, weights, hidden)))
            hidden, rows = hidden[[rows.index(row) for row in remaining]], remaining
    logits = model.norm(model.module.model.norm.weight, hidden[-1]) @ model.module.lm_head.weight.T
    return Outcome(logits, active)

"""Cache view: a session's cache as a retention stage sees it, and the way to turn scores into a mask."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch

from keep_agent.errors import ConfigError, check_choice
from memory.engine.attention.kernels import AttentionParams, Block, block_probabilities


@dataclass(frozen=True)
class CacheView:
    """Live rows after a turn's prefill; ``rows`` of them. Keys and queries are rotated.

    ``forced`` rows survive in any case: the protected prefix, and the query span, which is the last instruction and the
    last turn's words. ``span`` marks the latter alone. Of the rows at positions ``asked``, the last ones, the queries
    are known.
    """

    positions: torch.Tensor  # (rows,) long, rising
    tokens: torch.Tensor  # (rows,) long
    forced: torch.Tensor  # (rows,) bool
    span: torch.Tensor  # (rows,) bool
    layers: int
    keys: Callable[[int], torch.Tensor]  # layer -> (kv_heads, rows, head_dim)
    asked: torch.Tensor  # (n,) long
    queries: Callable[[int], torch.Tensor]  # layer -> (heads, n, head_dim)
    attention: Callable[[int], AttentionParams]  # layer -> how it makes weights of queries and keys
    intent: torch.Tensor | None = None  # (layers, heads, head_dim) mean query of the span
    mass: torch.Tensor | None = None  # (rows,) attention received so far, over layers, heads and querying rows
    session: str = ""  # its name; "": it has none
    parts: torch.Tensor | None = None  # (rows,) long: which segment or turn of the transcript a row belongs to

    @property
    def rows(self) -> int:
        return self.positions.numel()

    @property
    def history(self) -> torch.Tensor:
        """Numbers of the rows that may be dropped."""
        return torch.nonzero(~self.forced)[:, 0]


GRAINS = ("token", "segment")


def check_budget(budget: int, grain: str) -> None:
    """Raises ConfigError for a budget that leaves no row, or an unknown grain."""
    if budget < 1:
        raise ConfigError(f"retention budget={budget} tokens keeps nothing: use 1 or more")
    check_choice("retention grain", grain, GRAINS)


def keep_best(view: CacheView, budget: int, scores: Callable[[], torch.Tensor], grain: str = "token") -> torch.Tensor:
    """(rows,) bool: the forced rows, and as many rows of the ``history`` as the budget leaves, the best by ``scores``.

    ``scores`` gives one number per history row; it is not asked where all rows fit. Of equals the later row is kept.
    ``grain="segment"`` keeps a segment or turn as a whole or not at all, by the mean of its rows.
    """
    if view.rows <= budget:
        return torch.ones_like(view.forced)
    history, mask = view.history, view.forced.clone()
    ranked = scores()
    if ranked.numel() != history.numel():
        raise ConfigError(f"{ranked.numel()} scores do not fit the {history.numel()} rows that may be dropped")
    left = max(0, budget - int(mask.sum()))
    whole = grain == "segment" and view.parts is not None
    mask[history[_whole_parts(view.parts[history], ranked, left) if whole else _last_best(ranked, left)]] = True
    return mask


def _last_best(ranked: torch.Tensor, count: int) -> torch.Tensor:
    """Number the ``count`` best, of equals the later."""
    return ranked.numel() - 1 - ranked.flip(0).sort(descending=True, stable=True).indices[:count]


def _whole_parts(parts: torch.Tensor, ranked: torch.Tensor, count: int) -> torch.Tensor:
    """(rows,) bool: up to ``count`` rows, part by part, the best part first; one that does not fit is passed over."""
    names, owner, sizes = parts.unique(return_inverse=True, return_counts=True)
    means = ranked.double().new_zeros(names.numel()).index_add_(0, owner, ranked.double()) / sizes
    chosen = torch.zeros_like(means, dtype=torch.bool)
    for number in _last_best(means, names.numel()).tolist():
        size = int(sizes[number])
        if size <= count:
            chosen[number], count = True, count - size
    return chosen[owner]


def attention_weights(view: CacheView, layer: int, queries: torch.Tensor, places: torch.Tensor) -> torch.Tensor:
    """(heads, n, rows) what a layer's ``queries`` (heads, n, head_dim) at positions ``places`` give to the live rows.

    A query all of whose rows are forgotten, or beyond the layer's window, gives nothing.
    """
    asked = view.attention(layer)
    visible = view.positions[None] <= places[:, None]
    if asked.window is not None:
        visible &= view.positions[None] > places[:, None] - asked.window
    bias = torch.zeros_like(visible, dtype=queries.dtype).masked_fill_(~visible, float("-inf"))
    block = Block(0, places.numel(), 0, view.rows, bias)
    keys = view.keys(layer).to(queries.dtype)
    weights = block_probabilities(queries[None] * asked.scale, keys, block, asked.softcap, asked.sinks)
    return weights.masked_fill(~visible.any(1)[None, :, None], 0)


def per_query_head(keys: torch.Tensor, heads: int) -> torch.Tensor:
    """(heads, rows, head_dim) of (kv_heads, rows, head_dim): each KV head once for every query head that reads it."""
    return keys.repeat_interleave(heads // keys.shape[0], 0)

"""Cache view: the input of a retention stage, which drops rows of a session's cache. Functions here choose rows."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch

from keep_agent.errors import ConfigError
from memory.engine.attention.kernels import AttentionParams, MaskBlock, block_probabilities


@dataclass(frozen=True)
class CacheView:
    """Live rows (not dropped so far) of a cache after a turn's prefill. Keys and queries are rotated (RoPE).

    The query span is the last instruction and the last query. ``forced`` rows (the protected prefix and the query span)
    are never dropped. Query vectors are known only for the last n rows.
    """

    positions: torch.Tensor  # (rows,) long, ascending
    tokens: torch.Tensor  # (rows,) long: token ids
    forced: torch.Tensor  # (rows,) bool
    span: torch.Tensor  # (rows,) bool: rows of the query span
    layers: int
    keys: Callable[[int], torch.Tensor]  # layer -> (kv_heads, rows, head_dim)
    query_positions: torch.Tensor  # (n,) long: positions of the last n rows
    queries: Callable[[int], torch.Tensor]  # layer -> (heads, n, head_dim)
    attention: Callable[[int], AttentionParams]  # layer -> settings of its attention
    intent: torch.Tensor | None = None  # (layers, heads, head_dim) mean query vector of the query span
    mass: torch.Tensor | None = None  # (rows,) attention received so far, summed over layers, heads and queries
    session: str = ""  # name of the session; "": none
    part_of_row: torch.Tensor | None = None  # (rows,) long: number of the segment or turn of each row

    @property
    def rows(self) -> int:
        return self.positions.numel()

    @property
    def history(self) -> torch.Tensor:
        """Numbers of the rows that may be dropped."""
        return torch.nonzero(~self.forced)[:, 0]


def keep_best(view: CacheView, budget: int, scores: Callable[[], torch.Tensor], grain: str = "token") -> torch.Tensor:
    """Return the rows to keep, (rows,) bool: the forced rows, and the best other rows up to ``budget`` rows in all.

    ``scores`` returns one number per row of `CacheView.history`. It is not called if all rows fit. Of rows with equal
    scores, the later rows are kept.
    ``grain="segment"`` keeps a segment or turn as a whole or not at all, by the mean score of its rows.
    """
    if view.rows <= budget:
        return torch.ones_like(view.forced)
    history, mask = view.history, view.forced.clone()
    ranked = scores()
    if ranked.numel() != history.numel():
        raise ConfigError(f"{ranked.numel()} scores do not fit the {history.numel()} rows that may be dropped")
    room = max(0, budget - int(mask.sum()))
    whole = grain == "segment" and view.part_of_row is not None
    mask[history[_best_parts(view.part_of_row[history], ranked, room) if whole else _best_indices(ranked, room)]] = True
    return mask


def _best_indices(ranked: torch.Tensor, count: int) -> torch.Tensor:
    """Return the indices of the ``count`` highest scores; of equal scores the later one comes first."""
    return ranked.numel() - 1 - ranked.flip(0).sort(descending=True, stable=True).indices[:count]


def _best_parts(parts: torch.Tensor, ranked: torch.Tensor, count: int) -> torch.Tensor:
    """Select whole parts, the best first, up to ``count`` rows; skip parts that do not fit. Returns (rows,) bool."""
    names, owner, sizes = parts.unique(return_inverse=True, return_counts=True)
    means = ranked.double().new_zeros(names.numel()).index_add_(0, owner, ranked.double()) / sizes
    selected = torch.zeros_like(means, dtype=torch.bool)
    for number in _best_indices(means, names.numel()).tolist():
        size = int(sizes[number])
        if size <= count:
            selected[number], count = True, count - size
    return selected[owner]


def attention_weights(view: CacheView, layer: int, queries: torch.Tensor, places: torch.Tensor) -> torch.Tensor:
    """Compute the attention of ``queries`` (heads, n, head_dim) at positions ``places`` to live rows: (heads, n, rows).

    All weights are 0 for a query that can attend to no live row within the layer's window.
    """
    params = view.attention(layer)
    visible = view.positions[None] <= places[:, None]
    if params.window is not None:
        visible &= view.positions[None] > places[:, None] - params.window
    bias = torch.zeros_like(visible, dtype=queries.dtype).masked_fill_(~visible, float("-inf"))
    block, keys = MaskBlock(0, places.numel(), 0, view.rows, bias), view.keys(layer).to(queries.dtype)
    weights = block_probabilities(queries[None] * params.scale, keys, block, params.softcap, params.sinks)
    return weights.masked_fill(~visible.any(1)[None, :, None], 0)

"""A session's cache as a retention stage sees it, and the one way to turn scores into a mask."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch

from keep_agent.errors import ConfigError


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
    scale: Callable[[int], float]  # layer -> what query times key is multiplied by
    intent: torch.Tensor | None = None  # (layers, heads, head_dim) mean query of the span
    mass: torch.Tensor | None = None  # (rows,) attention received so far, over layers, heads and querying rows
    session: str = ""  # who asks; "": nobody that says so

    @property
    def rows(self) -> int:
        return self.positions.numel()

    @property
    def history(self) -> torch.Tensor:
        """Numbers of the rows that may be dropped."""
        return torch.nonzero(~self.forced)[:, 0]


def check_budget(budget: int) -> None:
    """Raises ConfigError for a budget that leaves no row."""
    if budget < 1:
        raise ConfigError(f"retention budget={budget} tokens keeps nothing: use 1 or more")


def keep_best(view: CacheView, budget: int, scores: Callable[[], torch.Tensor]) -> torch.Tensor:
    """(rows,) bool: the forced rows, and as many rows of the ``history`` as the budget leaves, the best by ``scores``.

    ``scores`` gives one number per history row; it is not asked where all rows fit. Of equals the later row is kept.
    """
    if view.rows <= budget:
        return torch.ones_like(view.forced)
    history, mask = view.history, view.forced.clone()
    ranked = scores()
    if ranked.numel() != history.numel():
        raise ConfigError(f"{ranked.numel()} scores do not fit the {history.numel()} rows that may be dropped")
    left = max(0, budget - int(mask.sum()))
    order = ranked.flip(0).sort(descending=True, stable=True).indices[:left]
    mask[history[history.numel() - 1 - order]] = True
    return mask


def per_query_head(keys: torch.Tensor, heads: int) -> torch.Tensor:
    """(heads, rows, head_dim) of (kv_heads, rows, head_dim): each KV head once for every query head that reads it."""
    return keys.repeat_interleave(heads // keys.shape[0], 0)

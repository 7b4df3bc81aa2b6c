"""Rows that match what the session has been asking for survive."""

from __future__ import annotations

import hashlib
import logging
import math
from collections import OrderedDict
from dataclasses import dataclass, field
from functools import cached_property
from typing import ClassVar

import numpy as np
import torch

from keep_agent.errors import ConfigError
from memory.kv_cache.cache_view import CacheView, check_budget, keep_best, per_query_head
from memory.retention.residual_head import ResidualHead, load_head
from memory.stages import Capabilities

log = logging.getLogger(__name__)

SESSIONS = 1024
FIRST_TOKENS = 256  # by which a session is known that has no better name


@dataclass
class QueryMemory:
    """IntentKV (arXiv 2606.09916): history is scored against a memory of the session's queries.

    ``M_t = e^-decay M_{t-1} + Enc(q_t)``, of unit norm per layer and head, where Enc is the mean rotated query of the
    query span; it is brought up to date at every turn, whether or not something has to go. A row's score is
    ``rule_j``, the softmax over history of ``M K_j / sqrt(head_dim)`` summed over layers and query heads, plus
    ``alpha MLP(...)`` where a trained ``head`` is named (a file, or the name of one that comes with the package).

    The ablations: ``memory=false`` looks at this turn's queries alone, ``cross_attention=false`` and ``residual=false``
    leave out parts of the head.
    """

    budget: int = 256
    decay: float = 0.5
    head: str | None = None
    memory: bool = True
    cross_attention: bool = True
    residual: bool = True
    grain: str = "token"
    capabilities: ClassVar[Capabilities] = Capabilities(exact=False, evicts=True)
    window: ClassVar[int] = 0
    counts_mass: ClassVar[bool] = False
    _memories: OrderedDict[str, torch.Tensor] = field(default_factory=OrderedDict, init=False, repr=False)
    _opened: set[str] = field(default_factory=set, init=False, repr=False)  # keys of models

    def __post_init__(self) -> None:
        check_budget(self.budget, self.grain)
        if self.decay < 0:
            raise ConfigError(f"decay={self.decay} would let old queries grow: use 0 or more")

    def open(self, weights_key: str, head_dim: int) -> None:
        """Load the head now, so that one that cannot serve is no surprise in the middle of an episode.

        Other weights only earn a warning. In which dtype they are computed does not matter.

        :raises ModelError: there is no such head, or it was trained for another head_dim
        """
        head = self._head
        if head is None:
            return
        head.check(head_dim)
        trained = head.about.get("weights_key", weights_key)
        if trained != weights_key and weights_key not in self._opened:
            log.warning(
                "retention head %r was trained for model %.12s (%s), this is %.12s: "
                "train one with python -m planners.train_retention, or do without (planner=intentkv_rule)",
                self.head,
                trained,
                head.about.get("model", "unnamed"),
                weights_key,
            )
        self._opened.add(weights_key)

    def keep(self, view: CacheView) -> torch.Tensor:
        memory = self.follow(view)
        return keep_best(view, self.budget, lambda: self.scores(view, memory), self.grain)

    def follow(self, view: CacheView) -> torch.Tensor:
        """The session's query memory (layers, heads, head_dim) with this turn's queries in it."""
        encoded = view.intent.float()
        name = session_key(view)
        before = self._memories.pop(name, None) if name and self.memory else None
        if before is not None and before.shape == encoded.shape:
            encoded = math.exp(-self.decay) * before + encoded
        memory = encoded / encoded.norm(dim=-1, keepdim=True).clamp(min=1e-12)
        if name and self.memory:
            self._memories[name] = memory
            if len(self._memories) > SESSIONS:
                self._memories.popitem(last=False)
        return memory

    def scores(self, view: CacheView, memory: torch.Tensor) -> torch.Tensor:
        """(history rows,) s_j: the rule, and what the head makes of it."""
        rule = rule_scores(view, memory)
        if self._head is None:
            return rule
        features = head_features(view, memory, rule)
        span = mean_keys(view, torch.nonzero(view.span)[:, 0]) if self.cross_attention else None
        return self._head.to(rule.device)(features, span, rule).detach()

    @property
    def trained(self) -> str | None:
        """SHA-256 of the head's tensors; None where the rule decides alone."""
        return None if self._head is None else self._head.sha256

    @cached_property
    def _head(self) -> ResidualHead | None:
        """None where the rule decides alone."""
        return load_head(self.head) if self.residual and self.head is not None else None


def session_key(view: CacheView) -> str:
    """Who a query memory belongs to: the session, else the words of the query span, else the first tokens.

    "": nobody; then it is not shared.
    """
    if view.session:
        return f"session {view.session}"
    if bool(view.span.any()):
        return _digest("span", view.tokens[view.span])
    if view.rows:
        return _digest("begins", view.tokens[:FIRST_TOKENS])
    return ""


def rule_scores(view: CacheView, memory: torch.Tensor) -> torch.Tensor:
    """(history rows,) equation 3 of the paper: attention of the query memory, summed over layers and query heads.

    It is no row's attention, and the equation knows neither sliding windows nor softcaps nor sinks: a layer votes for
    rows as well that it could not see.
    """
    history = view.history
    total = torch.zeros(history.numel(), dtype=torch.float32, device=history.device)
    for layer in range(view.layers):
        keys = per_query_head(view.keys(layer)[:, history].float(), memory.shape[1])
        scores = (keys @ memory[layer][:, :, None])[..., 0] / math.sqrt(keys.shape[-1])
        total += scores.softmax(-1).sum(0)
    return total


def mean_keys(view: CacheView, rows: torch.Tensor) -> torch.Tensor:
    """(len(rows), head_dim) mean of the rows' keys over layers and heads; each KV head counts as often as it is read,
    which is the same number for all."""
    return sum(view.keys(layer)[:, rows].float().mean(0) for layer in range(view.layers)) / view.layers


def head_features(view: CacheView, memory: torch.Tensor, rule: torch.Tensor) -> torch.Tensor:
    """(history rows, 3 head_dim + 1) equation 5: mean key, mean query memory, their product, the rule."""
    keys, query = mean_keys(view, view.history), memory.mean((0, 1))
    return torch.cat([keys, query.expand_as(keys), keys * query, rule[:, None]], 1)


def _digest(kind: str, tokens: torch.Tensor) -> str:
    return f"{kind} {hashlib.sha256(np.asarray(tokens.cpu(), '<u4').tobytes()).hexdigest()}"

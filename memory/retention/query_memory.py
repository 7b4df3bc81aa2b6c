"""Query memory (IntentKV): rows that match the session's queries so far survive."""

from __future__ import annotations

import hashlib
import logging
import math
from collections import OrderedDict
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np
import torch

from keep_agent.errors import ConfigError
from memory.kv_cache.cache_view import CacheView, keep_best
from memory.retention.base import BudgetedRetention
from memory.retention.residual_head import ResidualHead, load_head

log = logging.getLogger(__name__)

SESSIONS = 1024  # maximum number of sessions whose query memory is kept; the least recently used is dropped
FIRST_TOKENS = 256  # number of first tokens that identify a session without a name or query span


@dataclass(frozen=True)
class QueryMemory(BudgetedRetention):
    """IntentKV (arXiv 2606.09916): rows that may be dropped (the history) are scored by a memory of past queries.

    The memory ``M_t = e^-decay M_{t-1} + Enc(q_t)`` is scaled to unit norm per layer and head. Enc is the mean query
    state, after RoPE, of the last instruction and the last query (the query span). The memory is updated at every turn,
    even if no row is dropped. The score of row j is ``rule_j``: the softmax over history of ``M K_j / sqrt(head_dim)``,
    summed over layers and query heads. A trained ``head`` (a file, or a name in the package) corrects the score.

    Ablations: ``memory=false`` uses this turn's queries alone; ``cross_attention=false`` omits the head's attention to
    the query span; ``residual=false`` omits the head.
    """

    decay: float = 0.5
    head: str | None = None
    memory: bool = True
    cross_attention: bool = True
    residual: bool = True
    _memories: OrderedDict[str, torch.Tensor] = field(default_factory=OrderedDict, init=False, repr=False)
    _known_models: set[str] = field(default_factory=set, init=False, repr=False)

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.decay < 0:
            raise ConfigError(f"decay={self.decay} would let old queries grow at every turn: use 0 or more")

    def open(self, weights_key: str, head_dim: int) -> None:
        """Load the head, and warn if it was trained for other weights. Raises ModelError for another head_dim."""
        head = self._head
        if head is None:
            return
        head.check(head_dim)
        trained = head.about.get("weights_key", weights_key)
        if trained != weights_key and weights_key not in self._known_models:
            log.warning(
                "retention head %r was trained for model %.12s (%s), this is %.12s: "
                "train one with python -m planners.train_retention, or do without (planner=intentkv_rule)",
                self.head, trained, head.about.get("model", "unnamed"), weights_key,
            )  # fmt: skip
        self._known_models.add(weights_key)

    def keep(self, view: CacheView) -> torch.Tensor:
        memory = self.update_memory(view)
        return keep_best(view, self.budget, lambda: self.scores(view, memory), self.grain)

    def update_memory(self, view: CacheView) -> torch.Tensor:
        """Return the session's query memory (layers, heads, head_dim), updated with this turn's queries."""
        encoded, name = view.intent.float(), session_key(view)
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
        """Compute (history rows,) scores: those of `rule_scores`, plus the head's output if there is a head."""
        rule = rule_scores(view, memory)
        if self._head is None:
            return rule
        features = head_features(view, memory, rule)
        span = mean_keys(view, torch.nonzero(view.span)[:, 0]) if self.cross_attention else None
        return self._head.to(rule.device)(features, span, rule).detach()

    @property
    def trained(self) -> str | None:
        """SHA-256 of the head's tensors; None without a head."""
        return None if self._head is None else self._head.sha256

    @cached_property
    def _head(self) -> ResidualHead | None:
        return load_head(self.head) if self.residual and self.head is not None else None


def session_key(view: CacheView) -> str:
    """Return a session's key: its name, else a hash of its query span, else of its first tokens; "" without rows.

    Without a name, turns share a query memory only if their query spans are equal.
    """
    if view.session:
        return f"session {view.session}"
    if not view.rows:
        return ""
    has_span = bool(view.span.any())
    kind, tokens = ("span", view.tokens[view.span]) if has_span else ("begins", view.tokens[:FIRST_TOKENS])
    return f"{kind} {hashlib.sha256(np.asarray(tokens.cpu(), '<u4').tobytes()).hexdigest()}"


def rule_scores(view: CacheView, memory: torch.Tensor) -> torch.Tensor:
    """Compute (history rows,) scores (equation 3): attention from the query memory, summed over layers and heads.

    The model's sliding windows, softcaps and sinks are not applied: a layer also scores rows outside its window.
    """
    history = view.history
    total = torch.zeros(history.numel(), dtype=torch.float32, device=history.device)
    for layer in range(view.layers):
        keys = view.keys(layer)[:, history].float()
        keys = keys.repeat_interleave(memory.shape[1] // keys.shape[0], 0)  # one per query head
        scores = (keys @ memory[layer][:, :, None])[..., 0] / math.sqrt(keys.shape[-1])
        total += scores.softmax(-1).sum(0)
    return total


def mean_keys(view: CacheView, rows: torch.Tensor) -> torch.Tensor:
    """Compute (len(rows), head_dim), the mean of the rows' keys over layers and KV heads."""
    return sum(view.keys(layer)[:, rows].float().mean(0) for layer in range(view.layers)) / view.layers


def head_features(view: CacheView, memory: torch.Tensor, rule: torch.Tensor) -> torch.Tensor:
    """Compute (history rows, 3 head_dim + 1) features: mean key, mean query memory, product, ``rule`` (eq. 5)."""
    keys, query = mean_keys(view, view.history), memory.mean((0, 1))
    return torch.cat([keys, query.expand_as(keys), keys * query, rule[:, None]], 1)

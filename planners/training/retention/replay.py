"""Sessions played again under a budget, with what a retention head knew and should have known at every turn."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch

from memory.construction.query_span import QuerySpan
from memory.engine.attention.observer import AttentionObserver
from memory.engine.base import Engine
from memory.kv_cache.cache_view import CacheView, keep_best
from memory.kv_cache.kv_pool import KVPool
from memory.kv_cache.paged import PagedCache
from memory.retention.query_memory import QueryMemory, head_features, mean_keys, rule_scores
from memory.retention.residual_head import ResidualHead
from planners.training.retention.tool_sessions import ToolSession, ToolTurn

AHEAD = 5  # actions whose arguments make a token wanted


@dataclass(frozen=True)
class Example:
    """One turn: what is known of each history row, and which of them are wanted soon."""

    features: torch.Tensor  # (rows, 3 head_dim + 1)
    span: torch.Tensor  # (n, head_dim)
    rule: torch.Tensor  # (rows,)
    wanted: torch.Tensor  # (rows,) bool
    norm: torch.Tensor  # () mean norm of the query memory

    @property
    def evidence(self) -> bool:
        """Is there something to learn: rows that are wanted, and others?"""
        return bool(self.wanted.any()) and not bool(self.wanted.all())


@dataclass(frozen=True)
class Moment:
    """A turn after which something had to go, when it has gone."""

    example: Example  # as it was before
    cache: PagedCache
    following: ToolTurn | None  # what the transcript goes on with


class Words:
    """Which tokens occur in an action's arguments, by their text."""

    def __init__(self, decode: dict[int, str], shortest: int) -> None:
        self._decode, self._shortest = decode, shortest

    def wanted(self, tokens: Sequence[int], arguments: Sequence[str]) -> torch.Tensor:
        """(tokens,) bool: the token's text is a literal part of one of the arguments."""
        known = {token: self._is(token, arguments) for token in set(tokens)}
        return torch.tensor([known[token] for token in tokens], dtype=torch.bool)

    def _is(self, token: int, arguments: Sequence[str]) -> bool:
        text = self._decode.get(token, "").strip()
        return len(text) >= self._shortest and any(text in argument for argument in arguments)


def replay(
    engine: Engine, session: ToolSession, words: Words, head: ResidualHead, budget: int, decay: float
) -> Iterator[Moment]:
    """Every turn after which something has to go. It goes as the ``head`` says by then: so the rows that it chooses
    among are those that it will have to choose among, with a rule that is as large as it will be."""
    spec = engine.info
    pool = KVPool(spec.layers, spec.kv_heads, spec.head_dim, spec.dtype, engine.device)
    rule, cache, spans, protected = QueryMemory(budget, decay), PagedCache(pool, AttentionObserver()), QuerySpan(), 0
    for number, turn in enumerate(session.turns):
        if turn.begins:
            cache, spans, protected = PagedCache(pool, AttentionObserver()), QuerySpan(), turn.protected
        if cache.next_position + len(turn.ids) > spec.max_positions:
            return
        cache.observer.recent = turn.query
        engine.extend(cache, turn.ids)
        view = spans.view(cache, cache.next_position - turn.query, turn.instruction, protected, session.name)
        memory = rule.follow(view)
        if view.rows > budget:
            coming = [text for later in session.turns[number : number + AHEAD] for text in later.arguments]
            example = _example(view, memory, words.wanted(view.tokens[view.history].tolist(), coming))
            with torch.no_grad():
                scores = head(example.features, example.span, example.rule)
            cache.drop(keep_best(view, budget, scores.clone))
            following = session.turns[number + 1] if number + 1 < len(session.turns) else None
            yield Moment(example, cache, None if following is None or following.begins else following)
        cache.observer.settle()


def _example(view: CacheView, memory: torch.Tensor, wanted: torch.Tensor) -> Example:
    rule = rule_scores(view, memory)
    span = mean_keys(view, torch.nonzero(view.span)[:, 0])
    norm = memory.norm(dim=-1).mean()
    made = head_features(view, memory, rule), span, rule, wanted.to(rule.device), norm
    return Example(*(tensor.clone() for tensor in made))

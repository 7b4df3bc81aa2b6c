"""Replay of sessions under a budget of cache rows, with features and labels for IntentKV's head at every eviction."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch

from memory.construction.query_span import QuerySpan
from memory.engine.base import Engine, SessionCache
from memory.kv_cache.cache_view import CacheView, keep_best
from memory.retention.query_memory import QueryMemory, head_features, mean_keys, rule_scores
from memory.retention.residual_head import ResidualHead
from planners.training.retention.tool_sessions import ToolSession, ToolTurn

LABEL_ACTIONS = 5  # number of next actions whose arguments make a token positive


@dataclass(frozen=True)
class TurnExample:
    """Training example of one turn: features and labels of the evictable rows. A positive row is needed soon."""

    features: torch.Tensor  # (rows, 3 head_dim + 1)
    span: torch.Tensor  # (n, head_dim) keys of instruction and query (n tokens), means over layers and KV heads
    rule: torch.Tensor  # (rows,) scores of IntentKV's rule
    labels: torch.Tensor  # (rows,) bool, whether the row is needed soon
    norm: torch.Tensor  # () norm of the decayed sum of query states, a mean over layers and heads

    @property
    def has_both_labels(self) -> bool:
        """Whether there are both positive and negative rows."""
        return bool(self.labels.any()) and not bool(self.labels.all())


@dataclass(frozen=True)
class EvictionPoint:
    """State of the replay after an eviction."""

    example: TurnExample  # training example of the turn, from before the eviction
    cache: SessionCache
    next_turn: ToolTurn | None  # next turn of the transcript; None at its end


class ArgumentMatcher:
    """Labeller of tokens: positive tokens have ``shortest`` letters or more and occur in an action's arguments."""

    def __init__(self, decode: dict[int, str], shortest: int) -> None:
        self._decode, self._shortest = decode, shortest

    def labels(self, tokens: Sequence[int], arguments: Sequence[str]) -> torch.Tensor:
        """Return (tokens,) bool: whether the token's text is a literal part of one of the arguments."""
        texts = {token: self._decode.get(token, "").strip() for token in set(tokens)}
        occurs = {
            token: len(text) >= self._shortest and any(text in argument for argument in arguments)
            for token, text in texts.items()
        }
        return torch.tensor([occurs[token] for token in tokens], dtype=torch.bool)


def replay(
    engine: Engine, session: ToolSession, matcher: ArgumentMatcher, head: ResidualHead, budget: int, decay: float
) -> Iterator[EvictionPoint]:
    """Replay a session; yield the state after each eviction.

    The current ``head`` chooses the rows to keep, so that rows and scores are distributed as at run time.
    """
    caches, rule = engine.cache_provider(), QueryMemory(budget, decay)
    cache, spans, protected = caches.cache(), QuerySpan(), 0
    for number, turn in enumerate(session.turns):
        if turn.begins:
            cache, spans, protected = caches.cache(), QuerySpan(), turn.protected
        if cache.next_position + len(turn.ids) > engine.info.max_positions:
            return
        cache.observer.recent = turn.query
        engine.extend(cache, turn.ids)
        view = spans.view(cache, cache.next_position - turn.query, turn.instruction, protected, session.name)
        memory = rule.update_memory(view)
        if view.rows > budget:
            arguments = [text for later in session.turns[number : number + LABEL_ACTIONS] for text in later.arguments]
            example = _example(view, memory, matcher.labels(view.tokens[view.history].tolist(), arguments))
            with torch.no_grad():
                scores = head(example.features, example.span, example.rule)
            cache.drop(keep_best(view, budget, scores.clone))
            next_turn = session.turns[number + 1] if number + 1 < len(session.turns) else None
            yield EvictionPoint(example, cache, None if next_turn is None or next_turn.begins else next_turn)
        cache.observer.save_queries()


def _example(view: CacheView, memory: torch.Tensor, labels: torch.Tensor) -> TurnExample:
    rule = rule_scores(view, memory)
    span = mean_keys(view, torch.nonzero(view.span)[:, 0])
    norm = memory.norm(dim=-1).mean()
    tensors = head_features(view, memory, rule), span, rule, labels.to(rule.device), norm
    return TurnExample(*(tensor.clone() for tensor in tensors))

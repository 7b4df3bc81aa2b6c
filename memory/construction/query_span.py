"""Where a session's actionable words stand, and its cache as a retention stage sees it."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from memory.engine.base import SessionCache
from memory.kv_cache.cache_view import CacheView


@dataclass(frozen=True)
class Instruction:
    """Where the present instruction stands, and the sum of the queries of so many of its rows as were computed then."""

    start: int
    tokens: list[int]
    queries: torch.Tensor  # (layers, heads, head_dim)
    rows: int

    @property
    def stop(self) -> int:
        return self.start + len(self.tokens)

    def holds(self, tokens: list[int], query: int) -> bool:
        """Is it still there, before ``query``? A transcript that began anew says something else in its place."""
        return self.stop <= query and tokens[self.start : self.stop] == self.tokens


class QuerySpan:
    """The query span of a session: the last turn's words, and the last instruction, which may be turns ago."""

    def __init__(self) -> None:
        self._instruction: Instruction | None = None

    def view(
        self,
        cache: SessionCache,
        query: int,
        instruction: int = 0,
        protected: int = 0,
        session: str = "",
        parts: torch.Tensor | None = None,
    ) -> CacheView:
        """The live rows of ``cache`` after a prefill whose last turn's words begin at position ``query``.

        :param instruction: the first so many of them say what is to be done from now on; 0: what was said still holds
        :param protected: the first so many positions are never dropped
        :param parts: (positions,) which segment or turn each belongs to
        """
        observer, positions = cache.observer, cache.positions
        states = torch.stack([observer.queries[layer] for layer in sorted(observer.queries)])  # (layers, heads, n, D)
        if instruction:
            inside = (observer.places >= query) & (observer.places < query + instruction)
            said, queries = cache.tokens[query : query + instruction], states[:, :, inside]
            self._instruction = Instruction(query, said, queries.float().sum(2), queries.shape[2])
        asked = observer.places >= query
        total, count = states[:, :, asked].float().sum(2), int(asked.sum())
        span, said = positions >= query, self._instruction
        if said is not None and said.holds(cache.tokens, query):
            span = span | ((positions >= said.start) & (positions < said.stop))
            total, count = total + said.queries, count + said.rows
        return CacheView(
            positions=positions,
            tokens=torch.tensor(cache.tokens, device=positions.device)[positions],
            forced=span | (positions < protected),
            span=span,
            layers=len(observer.queries),
            keys=cache.keys,
            asked=observer.places,
            queries=observer.queries.__getitem__,
            attention=observer.params.__getitem__,
            intent=total / count,
            mass=observer.mass(positions) if observer.wants_mass else None,
            session=session,
            parts=None if parts is None else parts[positions],
        )

"""Query span of a session: the rows of its last query and of its last instruction."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from memory.engine.base import SessionCache
from memory.kv_cache.cache_view import CacheView


@dataclass(frozen=True)
class Instruction:
    """Positions and tokens of an instruction. ``queries`` is the sum of the query states of ``rows`` observed rows."""

    places: slice
    tokens: list[int]
    queries: torch.Tensor  # (layers, heads, head_dim)
    rows: int

    def precedes(self, tokens: list[int], query: int) -> bool:
        """Tell whether ``tokens`` have the instruction before position ``query``; a restarted transcript may not."""
        return self.places.stop <= query and tokens[self.places] == self.tokens


class QuerySpan:
    """Query span of a session: the last query, and the last instruction, which may be several turns old."""

    def __init__(self) -> None:
        self._instruction: Instruction | None = None

    def view(
        self,
        cache: SessionCache,
        query: int,
        instruction: int = 0,
        protected: int = 0,
        session: str = "",
        part_of_position: torch.Tensor | None = None,
    ) -> CacheView:
        """View the live rows of ``cache`` after a prefill whose query begins at position ``query``.

        :param instruction: number of the query's first tokens that are a new instruction; 0: keep the last instruction
        :param protected: number of first positions that are never dropped
        :param part_of_position: (positions,) number of each position's segment or turn
        """
        observer, positions = cache.observer, cache.positions
        states = torch.stack([observer.queries[layer] for layer in sorted(observer.queries)])  # (layers, heads, n, D)
        if instruction:
            inside = (observer.places >= query) & (observer.places < query + instruction)
            places, queries = slice(query, query + instruction), states[:, :, inside]
            self._instruction = Instruction(places, cache.tokens[places], queries.float().sum(2), queries.shape[2])
        last_turn = observer.places >= query
        total, count = states[:, :, last_turn].float().sum(2), int(last_turn.sum())
        span, earlier = positions >= query, self._instruction
        if earlier is not None and earlier.precedes(cache.tokens, query):
            span = span | ((positions >= earlier.places.start) & (positions < earlier.places.stop))
            total, count = total + earlier.queries, count + earlier.rows
        return CacheView(
            positions=positions,
            tokens=torch.tensor(cache.tokens, device=positions.device)[positions],
            forced=span | (positions < protected),
            span=span,
            layers=len(observer.queries),
            keys=cache.keys,
            query_positions=observer.places,
            queries=observer.queries.__getitem__,
            attention=observer.params.__getitem__,
            intent=total / count,
            mass=observer.mass(positions) if observer.counts_mass else None,
            session=session,
            part_of_row=None if part_of_position is None else part_of_position[positions],
        )

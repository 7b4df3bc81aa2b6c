"""Where a session's actionable words stand, and its cache as a retention stage sees it."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from memory.assembly.shelves import HeldCache
from memory.view import CacheView


@dataclass(frozen=True)
class Instruction:
    """Positions of the present instruction, and the sum of their queries (layers, heads, head_dim)."""

    start: int
    stop: int
    queries: torch.Tensor


class QuerySpan:
    """The query span of a session: the last turn's words, and the last instruction, which may be turns ago."""

    def __init__(self) -> None:
        self._instruction: Instruction | None = None

    def view(
        self, cache: HeldCache, query: int, instruction: int = 0, protected: int = 0, session: str = ""
    ) -> CacheView:
        """The live rows of ``cache`` after a prefill whose last turn's words begin at position ``query``.

        :param instruction: the first so many of them say what is to be done from now on; 0: what was said still holds
        :param protected: the first so many positions are never dropped
        """
        witness, positions = cache.witness, cache.positions
        states = torch.stack([witness.queries[layer] for layer in sorted(witness.queries)])  # (layers, heads, n, D)
        if instruction:
            inside = (witness.places >= query) & (witness.places < query + instruction)
            self._instruction = Instruction(query, query + instruction, states[:, :, inside].float().sum(2))
        asked = witness.places >= query
        total, count = states[:, :, asked].float().sum(2), int(asked.sum())
        span, said = positions >= query, self._instruction
        if said is not None and said.stop <= query:
            span = span | ((positions >= said.start) & (positions < said.stop))
            total, count = total + said.queries, count + said.stop - said.start
        return CacheView(
            positions=positions,
            tokens=torch.tensor(cache.tokens, device=positions.device)[positions],
            forced=span | (positions < protected),
            span=span,
            layers=len(witness.queries),
            keys=cache.keys,
            asked=witness.places,
            queries=witness.queries.__getitem__,
            scale=witness.scales.__getitem__,
            intent=total / count,
            mass=witness.mass[positions] if witness.wants_mass else None,
            session=session,
        )

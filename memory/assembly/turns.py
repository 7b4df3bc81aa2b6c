"""A session's working cache from turn to turn: rows stay in their slots, a retention stage drops some of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from uuid import uuid4

import torch

from memory.assembly.base import Assembled, Context
from memory.assembly.chain import common_prefix
from memory.assembly.layout import lay_out, place, uses
from memory.clock import Clock
from memory.construction.turns import Turns as Construction
from memory.engine.compact import compact
from memory.engine.engine import Engine
from memory.engine.paged import PagedCache
from memory.engine.trace import PrefillResult
from memory.engine.witness import Witness
from memory.slot_index import SlotIndex
from memory.slots import SlotPool
from memory.stages import Retention, Unit
from memory.view import CacheView


@dataclass(frozen=True)
class Shelf:
    """What all sessions of a method share for one model: slots, and the prefixes in them."""

    pool: SlotPool
    index: SlotIndex

    @classmethod
    def of(cls, engine: Engine, construction: Construction) -> Shelf:
        spec = engine.spec
        pool = SlotPool(spec.layers, spec.kv_heads, spec.head_dim, spec.dtype, engine.decoder.device)
        return cls(pool, SlotIndex(pool, construction.block_size, construction.prefix_tokens, engine.model_key))


@dataclass(frozen=True)
class Instruction:
    """Where the present instruction stands, and the sum of its queries (layers, heads, head_dim)."""

    start: int
    stop: int
    queries: torch.Tensor


class Turns:
    """The prompt is what the last turn left, and new rows behind it."""

    harvests = False

    def __init__(
        self, engine: Engine, shelf: Shelf, construction: Construction, retention: Retention, namespace: str
    ) -> None:
        self._engine, self._shelf, self._construction = engine, shelf, construction
        self._retention, self._namespace = retention, namespace
        self.reset()

    @property
    def cache(self) -> PagedCache:
        return self._cache

    def reset(self) -> None:
        self._cache = PagedCache(self._shelf.pool, Witness(mass=self._retention.counts_mass))
        self._session = f"{self._namespace} {uuid4().hex}"
        self._told: Instruction | None = None
        self._new_instruction = self._protected = 0

    def instruct(self, tokens: int) -> None:
        """The first ``tokens`` of the next query say what is to be done from now on; 0: what was said still holds."""
        self._new_instruction = tokens

    def aside(self) -> Turns:
        """One that goes on from here without leaving a trace in this one."""
        other = Turns(self._engine, self._shelf, self._construction, self._retention, self._namespace)
        other._cache = self._cache.fork()
        return other

    def assemble(self, units: Sequence[Unit], query: Sequence[int], context: Context, clock: Clock) -> Assembled:
        memory = Unit.joined(units)
        ids = [*context.ids, *memory.token_ids, *query]
        before = self._cache.next_position
        prefix, cache = self._resume(ids), self._cache
        cache.witness.recent = max(self._retention.window, len(query))
        self._protected = len(context.ids)
        start, total = len(context.ids), len(memory.token_ids)
        held = min(max(0, prefix - start), total)
        pieces = memory.cut([stop for stop in (held, total) if stop and stop > 0][held == total :])
        placed = place(pieces, start, [None] * len(pieces), [held > 0, False][: len(pieces)])
        layout = lay_out(context.ids, placed, query, True, self._engine.decoder.device)
        layout = replace(layout, fresh=torch.arange(layout.rows, device=layout.fresh.device) >= prefix)
        return Assembled(layout, uses(placed), invalidated=max(0, before - prefix), cache=cache, prefix=prefix)

    def after(self, prompt: Assembled, result: PrefillResult) -> None:
        """Share exact rows, then forget what the budget has no room for."""
        cache, index = self._cache, self._shelf.index
        names = index.names(cache.tokens[: cache.exact], self._namespace)
        index.insert(names, cache.slot_map, cache.exact)
        if self._retention.budget is None:
            return
        cache.drop(self._retention.keep(self._view(prompt)))
        if self._construction.survivors == "move":
            compact(self._engine.decoder, cache)
        index.forget(names[cache.exact // index.block_size :], cache.slots)  # nobody could get at their ends any more

    def _resume(self, ids: Sequence[int]) -> int:
        """Take up the rows that ``ids`` begin with, the session's own or shared ones; returns how many positions.

        At least one row is left to compute, for its logits.
        """
        cache, index = self._cache, self._shelf.index
        own = min(common_prefix(cache.tokens, ids), len(ids) - 1)
        shared = (
            index.match(index.names(ids[: len(ids) - 1], self._namespace)) if own < len(ids) - 1 else cache.slots[:0]
        )
        if shared.numel() > own:
            cache.adopt(shared, ids[: shared.numel()])
            return shared.numel()
        cache.cut(own)
        return own

    def _view(self, prompt: Assembled) -> CacheView:
        cache, witness, query = self._cache, self._cache.witness, prompt.layout.query
        positions = cache.positions
        instruction = self._instruct(query)
        span = positions >= query
        queries = torch.stack([witness.queries[layer][:, witness.places >= query] for layer in sorted(witness.queries)])
        total, count = queries.float().sum(2), queries.shape[2]
        if instruction is not None and instruction.start < query:
            span |= (positions >= instruction.start) & (positions < instruction.stop)
            total, count = total + instruction.queries, count + instruction.stop - instruction.start
        return CacheView(
            positions=positions,
            tokens=torch.tensor(cache.tokens, device=positions.device)[positions],
            forced=span | (positions < self._protected),
            span=span,
            layers=self._engine.spec.layers,
            keys=cache.keys,
            asked=witness.places,
            queries=witness.queries.__getitem__,
            scale=witness.scales.__getitem__,
            intent=total / count,
            mass=witness.mass[positions] if witness.wants_mass else None,
            session=self._session,
        )

    def _instruct(self, query: int) -> Instruction | None:
        """Remember where the instruction stands if this turn brought one."""
        if self._new_instruction:
            stop, witness = query + self._new_instruction, self._cache.witness
            inside = (witness.places >= query) & (witness.places < stop)
            sums = [witness.queries[layer][:, inside].float().sum(1) for layer in sorted(witness.queries)]
            self._told = Instruction(query, stop, torch.stack(sums))
        return self._told

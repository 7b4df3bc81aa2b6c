"""A session's working cache from turn to turn: rows stay in their slots, a retention stage drops some of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from uuid import uuid4

import torch

from memory.assembly.base import Assembled, Context
from memory.assembly.chain import common_prefix
from memory.assembly.layout import lay_out, place, uses
from memory.assembly.spans import QuerySpan
from memory.clock import Clock
from memory.construction.turns import Turns as Construction
from memory.engine.cache import Reads
from memory.engine.compact import compact
from memory.engine.engine import Engine
from memory.engine.paged import PagedCache
from memory.engine.trace import PrefillResult
from memory.engine.witness import Witness
from memory.slot_index import SlotIndex
from memory.slots import SlotPool
from memory.stages import Retention, Unit


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
        self._spans, self._instruction = QuerySpan(), 0
        self._shared: list[str] = []  # names of the blocks behind the context that this session uses in the index

    def unshare(self) -> None:
        """Take the session's prefix out of the index, unless another session uses it."""
        self._shelf.index.forget(self._shared, self._cache.slots)

    def instruct(self, tokens: int) -> None:
        """The first ``tokens`` of the next query say what is to be done from now on; 0: what was said still holds."""
        self._instruction = tokens

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
        cache.reads = Reads()
        if cache.witness is not None:
            cache.witness.recent = max(self._retention.window, len(query))
        held = min(max(0, prefix - len(context.ids)), len(memory.token_ids))
        stops = sorted({held, len(memory.token_ids)} - {0})
        placed = place(memory.cut(stops), len(context.ids), [None] * len(stops), [stop <= held for stop in stops])
        layout = lay_out(context.ids, placed, query, True, self._engine.decoder.device)
        layout = replace(layout, fresh=torch.arange(layout.rows, device=layout.fresh.device) >= prefix)
        return Assembled(layout, uses(placed), invalidated=max(0, before - prefix), cache=cache, prefix=prefix)

    def after(self, prompt: Assembled, result: PrefillResult) -> None:
        """Share exact rows, then forget what the budget has no room for."""
        cache, index = self._cache, self._shelf.index
        names = index.names(cache.tokens[: cache.exact], self._namespace)
        index.insert(names, cache.slot_map, cache.exact)
        self._shared = names[prompt.layout.context // index.block_size :]
        if self._retention.budget is None:
            return
        view = self._spans.view(cache, prompt.layout.query, self._instruction, prompt.layout.context, self._session)
        cache.drop(self._retention.keep(view))
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

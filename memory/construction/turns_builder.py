"""A session's working cache from turn to turn: rows stay in their slots, a retention stage drops some of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from uuid import uuid4

import torch

from memory.construction.base import Context, PreparedPrompt, PromptBuilder
from memory.construction.layout import lay_out, place, uses
from memory.construction.prefix_builder import common_prefix
from memory.construction.query_span import QuerySpan
from memory.construction.turns import Turns as Construction
from memory.engine.attention.observer import AttentionObserver
from memory.engine.results import PrefillResult
from memory.engine.transformers.engine import Engine
from memory.kv_cache.cache_provider import CacheProvider, EvictableCache
from memory.kv_cache.dense import ReadCounts
from memory.reports.timing import StepTimer
from memory.stages import Retention, Unit


class TurnsBuilder(PromptBuilder):
    """The prompt is what the last turn left, and new rows behind it."""

    harvests = False
    reads_context = False

    def __init__(
        self, engine: Engine, shelf: CacheProvider, construction: Construction, retention: Retention, namespace: str
    ) -> None:
        self._engine, self._shelf, self._construction = engine, shelf, construction
        self._retention, self._namespace = retention, namespace
        self._shared: list[str] = []  # names of the blocks behind the context that this session put into the index
        self.reset()

    @property
    def cache(self) -> EvictableCache:
        return self._cache

    def reset(self) -> None:
        self._cache = self._shelf.cache(
            AttentionObserver(mass=self._retention.counts_mass, windows=self._engine.spec.windows)
        )
        self._session = f"{self._namespace} {uuid4().hex}"
        self._spans, self._instruction = QuerySpan(), 0

    def unshare(self) -> None:
        """Take what the session's transcripts have put into the index out of it, unless another session uses it."""
        self._shelf.withdraw(self._cache, self._shared)
        self._shared = []

    def instruct(self, tokens: int) -> None:
        """The first ``tokens`` of the next query say what is to be done from now on; 0: what was said still holds."""
        self._instruction = tokens

    def aside(self) -> TurnsBuilder:
        """One that goes on from here without leaving a trace in this one."""
        other = TurnsBuilder(self._engine, self._shelf, self._construction, self._retention, self._namespace)
        other._cache = self._cache.fork()
        return other

    def assemble(
        self, units: Sequence[Unit], query: Sequence[int], context: Context, clock: StepTimer
    ) -> PreparedPrompt:
        memory = Unit.joined(units)
        ids = [*context.ids, *memory.token_ids, *query]
        before = self._cache.next_position
        prefix, cache = self._resume(ids), self._cache
        cache.reads = ReadCounts()
        if cache.witness is not None:
            cache.witness.recent = max(self._retention.window, len(query))
        held = min(max(0, prefix - len(context.ids)), len(memory.token_ids))
        stops = sorted({held, len(memory.token_ids)} - {0})
        placed = place(memory.cut(stops), len(context.ids), [None] * len(stops), [stop <= held for stop in stops])
        layout = lay_out(context.ids, placed, query, True, self._engine.decoder.device)
        layout = replace(layout, fresh=torch.arange(layout.rows, device=layout.fresh.device) >= prefix)
        return PreparedPrompt(layout, uses(placed), invalidated=max(0, before - prefix), cache=cache, prefix=prefix)

    def after(self, prompt: PreparedPrompt, result: PrefillResult) -> None:
        """Share exact rows, then forget what the budget has no room for."""
        cache, size = self._cache, self._shelf.block_size
        names = self._shelf.publish(cache, self._namespace)
        told = dict.fromkeys([*self._shared, *names[prompt.layout.context // size :]])  # a transcript may begin anew
        self._shared = [name for name in told if self._shelf.shares(name)]
        if self._retention.budget is None:
            return
        layout = prompt.layout
        turn = layout.query, self._instruction, layout.context, self._session, layout.segment_of
        view = self._spans.view(cache, *turn)
        cache.drop(self._retention.keep(view))
        if self._construction.survivors == "move":
            self._engine.compact(cache)
        self._shelf.withdraw(cache, names[cache.exact // size :])  # nobody could get at their ends any more
        cache.witness.settle()

    def _resume(self, ids: Sequence[int]) -> int:
        """Take up the rows that ``ids`` begin with, the session's own or shared ones; returns how many positions.

        At least one row is left to compute, for its logits.
        """
        cache, last = self._cache, len(ids) - 1
        own = min(common_prefix(cache.tokens, ids), last)
        taken = self._shelf.take(cache, ids[:last], self._namespace, more_than=own)
        if not taken:
            cache.cut(own)
        return taken or own

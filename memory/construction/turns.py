"""Growing-cache construction: a session keeps one cache from turn to turn; a retention stage drops rows of it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import ClassVar
from uuid import uuid4

import torch

from keep_agent.errors import ConfigError, check_choice
from memory.construction.base import Context, PreparedPrompt, PromptBuilder, SessionResources
from memory.construction.prefix import SingleUnitMemory
from memory.construction.query_span import QuerySpan
from memory.engine.base import PrefillResult, ReadCounts, SessionCache
from memory.prompt.layout import Unit, common_prefix, lay_out, place
from memory.prompt.report import StepTimer
from memory.stages import Capabilities


@dataclass(frozen=True)
class Turns(SingleUnitMemory):
    """Construction that keeps one session cache from turn to turn; a retention stage may drop rows between turns.

    ``survivors=stay``: attention skips dropped rows; the other rows keep their positions (IntentKV, arXiv 2606.09916).
    ``survivors=move``: survivors get the positions 0, 1, 2, ..., as in prompt compressors. The next turn then reuses
    only the rows before the first dropped one.

    Exact rows (computed before any row was dropped) are shared between sessions as prefixes in blocks of ``block_size``
    tokens. At most ``prefix_tokens`` tokens are shared: beyond these the least recently used blocks are withdrawn.
    """

    prefix_tokens: int = 4096
    survivors: str = "stay"
    capabilities: ClassVar[Capabilities] = Capabilities(exact=True, harvests=True, keeps_cache=True)
    layouts: ClassVar[tuple[str, ...]] = ("memory", "append")

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.prefix_tokens < 0:
            raise ConfigError(f"prefix_tokens={self.prefix_tokens} is negative: use 0 or more")
        check_choice("survivors", self.survivors, ("stay", "move"))

    def builder(self, session: SessionResources) -> TurnsBuilder:
        return TurnsBuilder(session, self)


class TurnsBuilder(PromptBuilder):
    """Builder of prompts that add rows to the session's cache, after those of the last turn."""

    harvests = False
    reads_context = False

    def __init__(self, session: SessionResources, construction: Turns, cache: SessionCache | None = None) -> None:
        """:param cache: rows to continue from; None: an empty cache"""
        self._session, self._construction = session, construction
        self._engine, self._retention = session.engine, session.method.retention
        self._provider = session.method.cache_provider(session.engine)
        self._shared: list[str] = []  # names of blocks that this session shares, without the context's
        self.reset(cache)

    def reset(self, cache: SessionCache | None = None) -> None:
        self.cache = self._provider.cache(self._retention.counts_mass) if cache is None else cache
        self._name = f"{self._session.namespace} {uuid4().hex}"
        self._spans, self._instruction = QuerySpan(), 0

    def stop_sharing(self) -> None:
        """Withdraw the blocks that the session's transcripts share, unless another session uses them."""
        self._provider.withdraw(self.cache, self._shared)
        self._shared = []

    def mark_instruction(self, tokens: int) -> None:
        self._instruction = tokens

    def temporary(self) -> TurnsBuilder:
        return TurnsBuilder(self._session, self._construction, self.cache.fork())

    def build(self, units: Sequence[Unit], query: Sequence[int], context: Context, timer: StepTimer) -> PreparedPrompt:
        memory = Unit.join(units)
        ids = [*context.ids, *memory.token_ids, *query]
        before, prefix, cache = self.cache.next_position, self._resume(ids), self.cache
        cache.reads = ReadCounts()
        if cache.observer is not None:
            cache.observer.recent = max(self._retention.window, len(query))
        reused = min(max(0, prefix - len(context.ids)), len(memory.token_ids))
        stops = sorted({reused, len(memory.token_ids)} - {0})
        hits = [stop <= reused for stop in stops]
        placements = place(memory.cut(stops), len(context.ids), [None] * len(stops), hits)
        layout = lay_out(context.ids, placements, query, True, self._engine.device)
        layout = replace(layout, fresh=torch.arange(layout.rows, device=layout.fresh.device) >= prefix)
        invalidated = max(0, before - prefix)
        return PreparedPrompt(layout, invalidated=invalidated, cache=cache, prefix=prefix)

    def store_rows(self, prompt: PreparedPrompt, result: PrefillResult) -> None:
        """Share exact rows, then drop the rows that the retention stage does not keep."""
        cache, size = self.cache, self._provider.block_size
        names = self._provider.publish(cache, self._session.namespace)
        union = dict.fromkeys([*self._shared, *names[prompt.layout.context // size :]])  # or of earlier transcripts
        self._shared = [name for name in union if self._provider.shares(name)]
        if self._retention.budget is None:
            return
        layout = prompt.layout
        turn = layout.query, self._instruction, layout.context, self._name, layout.segment_of
        view = self._spans.view(cache, *turn)
        cache.drop(self._retention.keep(view))
        if self._construction.survivors == "move":
            self._engine.compact(cache)
        self._provider.withdraw(cache, names[cache.exact // size :])  # blocks from the first dropped row on
        cache.observer.save_queries()

    def _resume(self, ids: Sequence[int]) -> int:
        """Continue from the longest prefix of ``ids`` that has rows, the session's own or shared; returns its length.

        At least one row is left to compute, for its logits.
        """
        cache, last = self.cache, len(ids) - 1
        length = min(common_prefix(cache.tokens, ids), last)
        shared = self._provider.take(cache, ids[:last], self._session.namespace, more_than=length)
        if not shared:
            cache.cut(length)
        return shared or length

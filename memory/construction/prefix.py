"""Prefix construction: the memory is one sequence of tokens, whose unchanged beginning (prefix) is reused.

Rows are copied from the cache after the turn (harvested); a hash chain over blocks of ``block_size`` tokens finds them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import torch

from keep_agent.errors import ConfigError
from memory.construction.base import Context, PreparedPrompt, PromptBuilder, SessionResources, storable_units
from memory.engine.base import Engine, PrefillResult
from memory.kv_cache.prefix_index import PrefixIndex
from memory.prompt.layout import Unit, common_prefix, lay_out, place
from memory.prompt.report import StepTimer
from memory.segments.segment import Segment
from memory.segments.store import SegmentStore
from memory.stages import Capabilities


@dataclass(frozen=True)
class SingleUnitMemory:
    """Base of constructions whose memory is one unit (computed jointly), stored in blocks of ``block_size`` tokens."""

    block_size: int = 16

    def __post_init__(self) -> None:
        if self.block_size < 1:
            raise ConfigError(f"block_size={self.block_size} tokens is too small for a block: use 1 or more")

    def plan(self, segments: Sequence[Segment], store: SegmentStore, step: int) -> list[Unit]:
        return [Unit.of("prefix", ((segment.id, store.tokens(segment.id)) for segment in segments))]


@dataclass(frozen=True)
class Prefix(SingleUnitMemory):
    """Prefix caching (arXiv 2309.06180): token-identical prefixes are reused, everything after them is computed."""

    capabilities: ClassVar[Capabilities] = Capabilities(exact=True, harvests=True)
    layouts: ClassVar[tuple[str, ...]] = ("memory", "append")

    def builder(self, session: SessionResources) -> PrefixBuilder:
        return PrefixBuilder(session, self.block_size)


class PrefixBuilder(PromptBuilder):
    """Builder of prompts that begin with stored rows of an earlier prompt; other rows are computed and harvested."""

    harvests = True

    def __init__(self, session: SessionResources, block_size: int) -> None:
        self._engine, self._lease, self._size = session.engine, session.lease, block_size
        self._namespace = session.namespace
        self._appends_query = session.method.layout == "append"  # the query becomes part of the next prompt's memory
        self._exact = session.method.capabilities.exact  # False: the rows are approximate
        self._index: PrefixIndex | None = None
        self.reset()

    def reset(self) -> None:
        self._previous: tuple[int, ...] = ()
        self._present = self._previous

    def build(self, units: Sequence[Unit], query: Sequence[int], context: Context, timer: StepTimer) -> PreparedPrompt:
        if self._index is None:
            key = self._engine.model_key
            self._index = PrefixIndex(self._lease, self._size, key, context.ids, self._namespace)
        memory, leading = Unit.join(units), storable_units(units, self._namespace)
        total, stored = len(memory.token_ids), sum(len(unit.token_ids) for unit in leading)
        prefix_ids = [*memory.token_ids[:stored], *(query if self._appends_query and stored == total else ())]
        names = self._index.chain(prefix_ids)
        matches = self._index.match(names[: stored // self._size])
        stops = [self._size * number for number in range(1, len(matches) + 1)]
        pieces = memory.cut([*stops, total] if (stops or [0])[-1] < total else stops)
        blocks = [*matches, *[None] * (len(pieces) - len(matches))]
        placements = place(pieces, len(context.ids), blocks, [block is not None for block in blocks])
        invalidated = len(self._previous) - common_prefix(self._previous, prefix_ids[:stored])
        self._present = memory.token_ids[:stored]
        return PreparedPrompt(
            lay_out(context.ids, placements, query, True, self._engine.device),
            context.block,
            invalidated=invalidated,
            chain=tuple(names),
            stored=len(matches),
            prefix=len(context.ids) + len(matches) * self._size,
        )

    def store_rows(self, prompt: PreparedPrompt, result: PrefillResult) -> None:
        """Harvest the full blocks that were not stored."""
        self._previous = self._present
        extend_chain(self._index, self._engine, prompt, result, prompt.chain, self._exact)


def extend_chain(
    index: PrefixIndex | None,
    engine: Engine,
    prompt: PreparedPrompt,
    result: PrefillResult,
    names: Sequence[str],
    exact: bool,
) -> None:
    """Harvest the memory's blocks ``names``, except stored ones, and insert them into the prefix index."""
    first = prompt.stored
    if index is not None and first < len(names):
        start, size = prompt.layout.context, index.block_size
        rows = torch.arange(start + first * size, start + len(names) * size)
        index.insert(names, first, engine.harvest(result.cache, rows), exact)

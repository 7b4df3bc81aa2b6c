"""Prompt of equally long segments, with random active (computed) rows for each recomputation method."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import torch

from keep_agent.errors import ConfigError
from memory.engine.base import Engine
from memory.kv_cache.block import KVBlock
from memory.prompt.layout import Layout, Placement, SegmentSpan, Unit
from memory.recompute.first_tokens import FirstTokens
from memory.recompute.multi_hop import Schedule
from memory.recompute.value_deviation import ValueDeviation


def schedule_of(method: str, shape: str | None = None, average: float | None = None) -> Schedule:
    """Return the share of rows that ``method`` recomputes, by layer; None: the method's own shape or average."""
    blend = ValueDeviation()
    default = Schedule(blend.shape, blend.ratio) if method == "cacheblend" else Schedule()
    return Schedule(shape or default.shape, default.average if average is None else average)


@dataclass(frozen=True)
class SyntheticPrompt:
    """Prompt ``[memory][query]``: ``segments`` of ``tokens`` rows; each block holds ``segments_per_block`` segments."""

    segments: int
    tokens: int
    query: int
    segments_per_block: int = 1

    def __post_init__(self) -> None:
        for name, value in vars(self).items():
            if value < 1:
                raise ConfigError(f"{name}={value} makes no prompt; use 1 or more")

    @property
    def memory(self) -> int:
        return self.segments * self.tokens

    @property
    def rows(self) -> int:
        return self.memory + self.query

    def layout(self) -> Layout:
        """Return the layout with empty blocks, for the simulator."""
        numbers = torch.arange(self.rows)
        spans = tuple(SegmentSpan(str(i), i * self.tokens, (i + 1) * self.tokens) for i in range(self.segments))
        firsts = range(0, self.segments, self.segments_per_block)
        placements = []
        for first in firsts:
            members = spans[first : first + self.segments_per_block]
            parts = [(span.segment, range(span.start, span.stop)) for span in members]
            unit = Unit.of("static_group" if self.segments_per_block > 1 else "segment", parts)
            empty = torch.empty(0, 0, len(unit.token_ids), 0)
            placements.append(Placement(unit, members[0].start, KVBlock(members[0].segment, empty, empty), hit=True))
        owner = torch.where(numbers < self.memory, numbers // self.tokens, -1)
        fresh = numbers >= self.memory
        return Layout(numbers, numbers, 0, self.memory, tuple(placements), spans, owner, fresh)

    def encoded(self, engine: Engine) -> Layout:
        """Return the layout with encoded blocks; row i has token id i. Raises ConfigError for a small vocabulary."""
        if self.rows > engine.info.vocab:
            size = engine.info.vocab
            raise ConfigError(f"{self.rows} rows need different tokens, but there are only {size}; use fewer segments")
        layout = self.layout()
        blocks = engine.encode([(None, place.unit.token_ids) for place in layout.placements])
        places = (replace(place, block=block) for place, block in zip(layout.placements, blocks, strict=True))
        return replace(layout, placements=tuple(places))

    def active(self, method: str, layers: int, schedule: Schedule, seed: int = 0) -> tuple[torch.Tensor, ...]:
        """Return the sorted numbers of the rows active at each layer.

        KEEP drops whole segments and CacheBlend single rows, in an order drawn with ``seed``; ``schedule`` says how
        many stay. EPIC and full reuse choose their rows before the first layer and ignore the schedule.
        """
        rows_by_method: dict[str, Callable[[], tuple[torch.Tensor, ...]]] = {
            "keep": lambda: self._decreasing_rows(self.tokens, layers, schedule, seed),
            "cacheblend": lambda: self._decreasing_rows(1, layers, schedule, seed),
            "epic": lambda: (FirstTokens().first(self.layout(), layers),) * layers,
            "full_reuse": lambda: (torch.arange(self.memory, self.rows),) * layers,
        }
        return rows_by_method[method]()

    def _decreasing_rows(self, grain: int, layers: int, schedule: Schedule, seed: int) -> tuple[torch.Tensor, ...]:
        """Return active rows per layer: the query, and pieces of ``grain`` rows, as many as the schedule says."""
        pieces = self.memory // grain
        order = torch.randperm(pieces, generator=torch.Generator().manual_seed(seed))
        rank = torch.cat([torch.argsort(order).repeat_interleave(grain), torch.full((self.query,), -1)])
        return tuple((rank < count).nonzero()[:, 0] for count in schedule.counts(layers, pieces))

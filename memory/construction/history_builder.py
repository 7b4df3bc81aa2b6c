"""Harvested history: of the transcript's blocks a prompt holds all, or those that its new rows choose."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial

import torch

from memory.construction.base import Context, PreparedPrompt, PromptBuilder
from memory.construction.harvested_pool import HarvestPool
from memory.construction.history import History as Construction
from memory.construction.latent_choice import BlockChoice, LayerSlots
from memory.construction.layout import lay_out, place, uses
from memory.engine.results import PrefillResult
from memory.engine.transformers.engine import Engine
from memory.kv_cache.block import KVBlock, identity
from memory.kv_cache.block_lease import BlockLease
from memory.reports.timing import StepTimer
from memory.stages import Layout, Unit

Part = tuple[int, int, KVBlock | None]  # tokens start:stop of the transcript, and their block


class HistoryBuilder(PromptBuilder):
    """The prompt is ``[context][chosen blocks][rest of the last turn][new rows][query]``; the last two are computed.

    Whatever was computed is harvested after the turn, in the background.
    """

    harvests = True

    def __init__(
        self,
        engine: Engine,
        holder: BlockLease,
        construction: Construction,
        namespace: str,
        rules: str,
        latent: BlockChoice | None = None,
    ) -> None:
        """:param rules: what, beside the rows they see, decides how rows are computed; goes into their blocks' names"""
        self._engine, self._construction, self._rules, self._latent = engine, construction, rules, latent
        self._pool = HarvestPool(engine, holder, namespace, None if latent is None else latent.index)
        self.reset()

    def reset(self) -> None:
        self._pool.clear()
        self._memory = Unit("prefix", (), ())

    def assemble(
        self, units: Sequence[Unit], query: Sequence[int], context: Context, clock: StepTimer
    ) -> PreparedPrompt:
        (memory,) = units
        lost = self._pool.follow(memory.token_ids)
        self._memory = memory
        slots = self._slots(len(context.ids))
        new = (*memory.token_ids[len(self._pool.told) :], *query)
        parts, asked = ([], 0) if slots is not None else self._choose(context.block, new, clock)
        parts += self._rest(len(memory.token_ids))
        pieces = memory.cut([edge for start, stop, _ in parts for edge in (start, stop)])[1::2]
        blocks = [block for _, _, block in parts]
        hits = [block is not None for block in blocks]
        if slots is not None:
            pieces, blocks, hits = [slots.unit, *pieces], [None, *blocks], [True, *hits]
        placed = place(pieces, len(context.ids), blocks, hits)
        layout = lay_out(context.ids, placed, query, True, self._engine.decoder.device)
        if self._construction.positions == "coupled":
            layout = _where_they_were(layout, parts, len(memory.token_ids))
        return PreparedPrompt(layout, uses(placed), context.block, asked=asked, invalidated=lost, slots=slots)

    def after(self, prompt: PreparedPrompt, result: PrefillResult) -> None:
        """Harvest the new rows, and those of the last turn that made up no block."""
        ids, layout, begin = prompt.layout.token_ids.tolist(), prompt.layout, self._pool.begin
        told = (*self._memory.token_ids, *ids[layout.query :])
        stops = self._construction.stops(self._memory, begin, len(told))
        rows = torch.arange(layout.rows - len(told) + begin, layout.rows)
        chosen = (self._pool.kept[number].name for layer in result.trace.slots for number in layer)
        where = [str(layout.positions[-1].item())] if self._construction.positions == "coupled" else []
        seen = " ".join([self._rules, *where, *(unit.identity for unit in prompt.units), *chosen])
        name = identity(self._engine.model_key, ids[: layout.context], (), seen)
        self._pool.grow(told, stops, name, partial(self._engine.harvest, result.cache, rows))

    def _choose(self, context: KVBlock | None, new: Sequence[int], clock: StepTimer) -> tuple[list[Part], int]:
        """The blocks of the prompt, in order of time, and the token-layers that asking for them took."""
        kept = self._pool.kept
        numbers, asked = (range(len(kept)), 0) if self._latent is None else self._latent.choose(context, new, clock)
        latest_first = [(kept[n].start, kept[n].stop, self._pool.block(n)) for n in reversed(numbers)]
        return latest_first[::-1], asked  # where all have to be in, a full storage must drop the last, not the first

    def _slots(self, start: int) -> LayerSlots | None:
        """Rows for the blocks of layers that choose for themselves, if there are any."""
        if self._latent is None or not self._latent.per_layer:
            return None
        slots = LayerSlots(self._latent, start, self._construction.block_size, self._pool.block)
        return slots if slots.unit.token_ids else None

    def _rest(self, total: int) -> list[Part]:
        """What is in no whole block yet: rows that the last turn left over, and rows without keys."""
        told, begin = len(self._pool.told), self._pool.begin
        parts = [(begin, told, self._pool.tail), (told, total, None)]
        return [part for part in parts if part[0] < part[1]]


def _where_they_were(layout: Layout, parts: Sequence[Part], total: int) -> Layout:
    """Positions of the rows in context, transcript (of ``total`` tokens) and query without anything left out."""
    rows = [*parts, (total, total + layout.rows - layout.query, None)]
    memory = torch.cat([torch.arange(start, stop) for start, stop, _ in rows]) + layout.context
    positions = torch.cat([torch.arange(layout.context), memory])
    return replace(layout, positions=positions.to(layout.positions.device))

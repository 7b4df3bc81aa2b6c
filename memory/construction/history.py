"""History construction (MemArt): the memory is the transcript's own rows, copied from the cache after each turn.

A prompt is ``[context][chosen blocks][rows of the last turn that fill no block yet][new rows][query]``. New rows and
query are computed. After the turn all rows that are in no block are copied in the background (harvested).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import ClassVar

import torch

from keep_agent.errors import check_choice
from memory.construction.base import Context, PreparedPrompt, PromptBuilder, SessionResources
from memory.construction.harvested_pool import HarvestPool
from memory.construction.latent_choice import BlockChoice, RetrievedRows
from memory.construction.prefix import SingleUnitMemory
from memory.engine.base import PrefillResult
from memory.kv_cache.block import KVBlock
from memory.kv_cache.block_store import identity
from memory.prompt.layout import Layout, Unit, lay_out, place
from memory.prompt.report import StepTimer
from memory.stages import Capabilities

Part = tuple[int, int, KVBlock | None]  # tokens start:stop of the transcript, and their block


@dataclass(frozen=True)
class History(SingleUnitMemory):
    """Memory of MemArt ("KVCache-centric memory for LLM agents"): the transcript's keys and values in blocks.

    A latent retrieval may choose among them by query states. A block holds ``block_size`` tokens; tokens of the last
    turn that fill no block yet are always in the prompt. ``cut=segment``: a block is a segment or a turn instead.
    ``positions=decoupled``: the prompt's rows have the positions 0, 1, 2, ... ``coupled``: rows keep their positions in
    the whole transcript, which must not exceed the model's. With all blocks chosen both give a full prefill's result.
    """

    cut: str = "tokens"
    positions: str = "decoupled"
    layouts: ClassVar[tuple[str, ...]] = ("append",)

    def __post_init__(self) -> None:
        super().__post_init__()
        check_choice("cut", self.cut, ("tokens", "segment"))
        check_choice("positions", self.positions, ("decoupled", "coupled"))

    @property
    def capabilities(self) -> Capabilities:
        """Return the capabilities: ``uniform`` if all blocks have one size and can be placed at any position."""
        uniform = self.cut == "tokens" and self.positions == "decoupled"
        return Capabilities(exact=True, harvests=True, selectable=True, uniform=uniform)

    def builder(self, session: SessionResources) -> HistoryBuilder:
        return HistoryBuilder(session, self)

    def stops(self, memory: Unit, start: int, stop: int) -> list[int]:
        """Return the ends of the blocks in tokens ``start:stop``; with ``cut=segment`` the query is one block."""
        if self.cut == "tokens":
            return list(range(start + self.block_size, stop + 1, self.block_size))
        return sorted({span.stop for span in memory.spans if span.stop > start} | {stop})


class HistoryBuilder(PromptBuilder):
    """Builder of prompts of harvested rows: all blocks, or those chosen by the new rows' queries."""

    harvests = True

    def __init__(self, session: SessionResources, construction: History) -> None:
        self._engine, self._construction = session.engine, construction
        self._settings = repr((construction, session.method.recompute))  # new rows depend on these, and on earlier rows
        retrieval = session.method.retrieval
        self._choice = BlockChoice(session.engine, retrieval) if retrieval.capabilities.latent else None
        index = None if self._choice is None else self._choice.index
        self._pool = HarvestPool(session.engine, session.lease, session.namespace, index)
        self.reset()

    def reset(self) -> None:
        self._pool.clear()
        self._memory = Unit("prefix", (), ())

    def build(self, units: Sequence[Unit], query: Sequence[int], context: Context, timer: StepTimer) -> PreparedPrompt:
        (memory,) = units
        invalidated, self._memory = self._pool.sync(memory.token_ids), memory
        layer_rows = self._retrieved_rows(len(context.ids))
        new = (*memory.token_ids[len(self._pool.tokens) :], *query)
        parts, token_layers = ([], 0) if layer_rows is not None else self._select(context.block, new, timer)
        computed, total = len(self._pool.tokens), len(memory.token_ids)
        parts += [(self._pool.tail_start, computed, self._pool.tail)] if self._pool.tail_start < computed else []
        parts += [(computed, total, None)] if computed < total else []
        pieces = memory.cut([edge for start, stop, _ in parts for edge in (start, stop)])[1::2]
        blocks = [block for _, _, block in parts]
        hits = [block is not None for block in blocks]
        if layer_rows is not None:
            pieces, blocks, hits = [layer_rows.unit, *pieces], [None, *blocks], [True, *hits]
        placements = place(pieces, len(context.ids), blocks, hits)
        layout = lay_out(context.ids, placements, query, True, self._engine.device)
        if self._construction.positions == "coupled":
            layout = _with_transcript_positions(layout, parts, total)
        return PreparedPrompt(
            layout, context.block, query_token_layers=token_layers, invalidated=invalidated,
            layer_rows=layer_rows,
        )  # fmt: skip

    def store_rows(self, prompt: PreparedPrompt, result: PrefillResult) -> None:
        """Harvest the new rows, together with those of the last turn that filled no block."""
        ids, layout, begin = prompt.layout.token_ids.tolist(), prompt.layout, self._pool.tail_start
        tokens = (*self._memory.token_ids, *ids[layout.query :])
        stops = self._construction.stops(self._memory, begin, len(tokens))
        rows = torch.arange(layout.rows - len(tokens) + begin, layout.rows)
        selected = (self._pool.blocks[number].name for layer in result.trace.chosen_blocks for number in layer)
        where = [str(layout.positions[-1].item())] if self._construction.positions == "coupled" else []
        origin = " ".join([self._settings, *where, *(p.identity for p in prompt.layout.placements), *selected])
        name = identity(self._engine.model_key, ids[: layout.context], (), origin)
        self._pool.extend(tokens, stops, name, partial(self._engine.harvest, result.cache, rows))

    def _select(self, context: KVBlock | None, new: Sequence[int], timer: StepTimer) -> tuple[list[Part], int]:
        """Return the prompt's blocks, oldest first, and the number of rows x layers computed to select them."""
        blocks, token_layers, numbers = self._pool.blocks, 0, list(range(len(self._pool.blocks)))
        if self._choice is not None:
            numbers, token_layers = self._choice.choose(context, new, timer)
        latest_first = [(blocks[n].start, blocks[n].stop, self._pool.block(n)) for n in reversed(numbers)]
        return latest_first[::-1], token_layers  # the newest was read first, so that LRU evicts it first

    def _retrieved_rows(self, start: int) -> RetrievedRows | None:
        """Return rows for the blocks that each layer chooses; None if layers do not choose, or no block is stored."""
        if self._choice is None or not self._choice.retrieval.capabilities.per_layer:
            return None
        layer_rows = RetrievedRows(self._choice, start, self._construction.block_size, self._pool.block)
        return layer_rows if layer_rows.unit.token_ids else None


def _with_transcript_positions(layout: Layout, parts: Sequence[Part], total: int) -> Layout:
    """Give the rows of ``layout`` their positions in the whole transcript (of ``total`` tokens)."""
    rows = [*parts, (total, total + layout.rows - layout.query, None)]
    memory = torch.cat([torch.arange(start, stop) for start, stop, _ in rows]) + layout.context
    positions = torch.cat([torch.arange(layout.context), memory])
    return replace(layout, positions=positions.to(layout.positions.device))

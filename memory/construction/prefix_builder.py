"""An exact prefix: what an earlier prompt began with is reused, rows are harvested after the turn."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch

from memory.construction.base import Context, PreparedPrompt, PromptBuilder, storable
from memory.construction.layout import lay_out, place, uses
from memory.engine.results import PrefillResult
from memory.engine.transformers.engine import Engine
from memory.kv_cache.block_lease import BlockLease
from memory.kv_cache.prefix_index import PrefixIndex
from memory.reports.timing import StepTimer
from memory.stages import Unit


class PrefixBuilder(PromptBuilder):
    """The memory is one exact prefix: what an earlier prompt began with is reused, the rest is fresh and harvested."""

    harvests = True

    def __init__(
        self, engine: Engine, holder: BlockLease, block_size: int, namespace: str, whole: bool, exact: bool
    ) -> None:
        """``whole``: the query becomes part of the next prompt's memory, so its rows are harvested too.

        ``exact``: the method as a whole is, so that what it computes may enter the prefix index.
        """
        self._engine, self._holder, self._size = engine, holder, block_size
        self._namespace, self._whole, self._exact = namespace, whole, exact
        self._index: PrefixIndex | None = None
        self.reset()

    def reset(self) -> None:
        self._previous: tuple[int, ...] = ()
        self._present = self._previous

    def assemble(
        self, units: Sequence[Unit], query: Sequence[int], context: Context, clock: StepTimer
    ) -> PreparedPrompt:
        if self._index is None:
            key = self._engine.model_key
            self._index = PrefixIndex(self._holder, self._size, key, context.ids, self._namespace)
        memory, own = Unit.joined(units), storable(units, self._namespace)
        total, stored = len(memory.token_ids), sum(len(unit.token_ids) for unit in own)
        told = [*memory.token_ids[:stored], *(query if self._whole and stored == total else ())]
        names = self._index.chain(told)
        found = self._index.match(names[: stored // self._size])
        stops = [self._size * number for number in range(1, len(found) + 1)]
        pieces = memory.cut([*stops, total] if (stops or [0])[-1] < total else stops)
        blocks = [*found, *[None] * (len(pieces) - len(found))]
        placed = place(pieces, len(context.ids), blocks, [block is not None for block in blocks])
        layout = lay_out(context.ids, placed, query, True, self._engine.decoder.device)
        lost = len(self._previous) - common_prefix(self._previous, told[:stored])
        self._present = memory.token_ids[:stored]
        prefix = len(context.ids) + len(found) * self._size
        return PreparedPrompt(
            layout, uses(placed), context.block, invalidated=lost, chain=tuple(names), found=len(found), prefix=prefix
        )

    def after(self, prompt: PreparedPrompt, result: PrefillResult) -> None:
        """Harvest the full blocks that were not found."""
        self._previous, first = self._present, prompt.found
        if first == len(prompt.chain) or self._index is None:
            return
        start = prompt.layout.context
        rows = torch.arange(start + first * self._size, start + len(prompt.chain) * self._size)
        self._index.insert(prompt.chain, first, self._engine.harvest(result.cache, rows), self._exact)


def common_prefix(a: Sequence[int], b: Sequence[int]) -> int:
    """Length of the common beginning."""
    size = min(len(a), len(b))
    different = np.flatnonzero(np.asarray(a[:size]) != np.asarray(b[:size]))
    return int(different[0]) if different.size else size

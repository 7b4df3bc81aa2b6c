"""From units to a prompt the engine can prefill: look-up, encoding of what is missing, and the layout of the rows."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Protocol

import numpy as np
import torch

from memory.block import KVBlock, identity
from memory.clock import Clock
from memory.engine.engine import Engine
from memory.engine.trace import PrefillResult
from memory.index import PrefixIndex
from memory.pool import Holder
from memory.report import UnitUse
from memory.stages import Layout, Placement, Span, Unit
from memory.store import SegmentStore


@dataclass(frozen=True)
class Context:
    """The context prefix of a session with its exact block, and what isolated units see of it."""

    ids: tuple[int, ...] = ()
    block: KVBlock | None = None
    seen_ids: tuple[int, ...] = ()
    seen_block: KVBlock | None = None


@dataclass(frozen=True)
class Assembled:
    """A prompt before its prefill."""

    layout: Layout
    units: tuple[UnitUse, ...]
    context_block: KVBlock | None = None
    encoded: int = 0  # tokens encoded for it
    invalidated: int = 0  # tokens of the last prompt's blocks that are of no use any more
    chain: tuple[str, ...] = ()  # names of the blocks of an exact prefix


class Assembler(Protocol):
    """One way to get keys and values for a prompt's units."""

    harvests: bool  # rows are taken from the working cache after the prefill

    def assemble(self, units: Sequence[Unit], query: Sequence[int], context: Context, clock: Clock) -> Assembled: ...
    def after(self, prompt: Assembled, result: PrefillResult) -> None: ...
    def reset(self) -> None: ...


class Fresh:
    """Nothing is stored: every row is fresh, the context's too."""

    harvests = False

    def __init__(self, engine: Engine) -> None:
        self._device = engine.decoder.device

    def assemble(self, units: Sequence[Unit], query: Sequence[int], context: Context, clock: Clock) -> Assembled:
        placed = place(units, len(context.ids))
        return Assembled(lay_out(context.ids, placed, query, False, self._device), uses(placed))

    def after(self, prompt: Assembled, result: PrefillResult) -> None:
        """Nothing is kept."""

    def reset(self) -> None:
        """Nothing was kept."""


class Blocks:
    """Every unit has a block of its own; what the storage lacks is encoded in one packed forward."""

    harvests = False

    def __init__(self, engine: Engine, holder: Holder, store: SegmentStore, namespace: str) -> None:
        self._engine, self._holder, self._namespace = engine, holder, namespace
        self._store = store
        self.reset()

    def reset(self) -> None:
        self._names: dict[tuple[tuple[int, ...], str], str] = {}
        self._previous: dict[str, Unit] = {}
        self._cursor = 0

    def assemble(self, units: Sequence[Unit], query: Sequence[int], context: Context, clock: Clock) -> Assembled:
        names = [self._name(unit, context) for unit in units]
        blocks = {name: self._holder.get(name) for name in dict.fromkeys(names) if name}
        missing = {name: unit for name, unit in zip(names, units, strict=True) if name and blocks[name] is None}
        if missing:
            with clock.part("encode"):
                made = self._engine.encode([(context.seen_block, u.token_ids) for u in missing.values()], list(missing))
                for block in made:
                    self._holder.put(block)
                    blocks[block.identity] = block
        hits = [bool(name) and name not in missing for name in names]
        placed = place(units, len(context.ids), [blocks.get(name) for name in names], hits)
        return Assembled(
            lay_out(context.ids, placed, query, True, self._engine.decoder.device),
            uses(placed),
            context.block,
            encoded=sum(len(unit.token_ids) for unit in missing.values()),
            invalidated=self._invalidated(names, units),
        )

    def after(self, prompt: Assembled, result: PrefillResult) -> None:
        """Blocks were stored when they were encoded."""

    def _name(self, unit: Unit, context: Context) -> str:
        """Identity of a unit; "" if it is never stored."""
        if not unit.reusable or not unit.token_ids:
            return ""
        key = unit.token_ids, unit.namespace or self._namespace
        found = self._names.get(key)
        if found is None:
            if len(self._names) > 50_000:
                self._names.clear()
            found = self._names[key] = identity(self._engine.model_key, context.seen_ids, *key)
        return found

    def _invalidated(self, names: Sequence[str], units: Sequence[Unit]) -> int:
        """Tokens of the last prompt's blocks that a change of a segment, a shift or a flip of a group made useless.

        A block that is missing only because its segments were not chosen this time is still good.
        """
        history = self._store.history
        changed = {change.id for change in history[self._cursor :]}
        chosen = {span.segment for unit in units for span in unit.spans}
        now = dict(zip(names, units, strict=True))
        lost = 0
        for name, unit in self._previous.items():
            segments = {span.segment for span in unit.spans}
            if name not in now and (segments & changed or segments <= chosen):
                lost += len(unit.token_ids)
        self._previous, self._cursor = now, len(history)
        return lost


class Chain:
    """The memory is one exact prefix: what an earlier prompt began with is reused, the rest is fresh and harvested."""

    harvests = True

    def __init__(
        self, engine: Engine, holder: Holder, block_size: int, namespace: str, whole: bool, exact: bool
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

    def assemble(self, units: Sequence[Unit], query: Sequence[int], context: Context, clock: Clock) -> Assembled:
        if self._index is None:
            key = self._engine.model_key
            self._index = PrefixIndex(self._holder, self._size, key, context.ids, self._namespace)
        (memory,) = units
        total = len(memory.token_ids)
        names = self._index.chain([*memory.token_ids, *query] if self._whole else memory.token_ids)
        found = self._index.match(names[: total // self._size])
        stops = [self._size * number for number in range(1, len(found) + 1)]
        pieces = memory.cut([*stops, total] if (stops or [0])[-1] < total else stops)
        blocks = [*found, *[None] * (len(pieces) - len(found))]
        placed = place(pieces, len(context.ids), blocks, [block is not None for block in blocks])
        layout = lay_out(context.ids, placed, query, True, self._engine.decoder.device)
        lost = len(self._previous) - common_prefix(self._previous, memory.token_ids)
        self._previous = memory.token_ids
        return Assembled(layout, uses(placed), context.block, invalidated=lost, chain=tuple(names))

    def after(self, prompt: Assembled, result: PrefillResult) -> None:
        """Harvest the full blocks that were not found."""
        first = sum(unit.hit for unit in prompt.units)
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


def place(
    units: Sequence[Unit], start: int, blocks: Sequence[KVBlock | None] = (), hits: Sequence[bool] = ()
) -> list[Placement]:
    """Units one after another from row ``start`` on; without ``blocks`` none has one."""
    placed = []
    for number, unit in enumerate(units):
        placed.append(Placement(unit, start, blocks[number], hits[number]) if blocks else Placement(unit, start))
        start = placed[-1].stop
    return placed


def uses(placed: Sequence[Placement]) -> tuple[UnitUse, ...]:
    return tuple(
        UnitUse(
            kind=p.unit.kind,
            start=p.start,
            tokens=len(p.unit.token_ids),
            segments=tuple(span.segment for span in p.unit.spans),
            identity="" if p.block is None else p.block.identity,
            hit=p.hit,
        )
        for p in placed
    )


def lay_out(
    context: Sequence[int], placed: Sequence[Placement], query: Sequence[int], known: bool, device: torch.device
) -> Layout:
    """Rows of a prompt; ``known``: the context rows have keys and values."""
    ids = [*context, *chain.from_iterable(p.unit.token_ids for p in placed), *query]
    first, last = len(context), len(ids) - len(query)
    segments = _segments(placed)
    owner = np.full(len(ids), -1)
    for number, span in enumerate(segments):
        owner[span.start : span.stop] = number
    fresh = np.zeros(len(ids), bool)
    fresh[last:] = True
    fresh[:first] = not known
    for p in placed:
        fresh[p.start : p.stop] = p.block is None
    return Layout(
        token_ids=torch.tensor(ids, dtype=torch.long, device=device),
        positions=torch.arange(len(ids), device=device),
        context=first,
        query=last,
        placements=tuple(placed),
        segments=tuple(segments),
        segment_of=torch.from_numpy(owner).to(device),
        fresh=torch.from_numpy(fresh).to(device),
    )


def _segments(placed: Sequence[Placement]) -> list[Span]:
    """Spans in prompt rows; the parts of a segment that was cut are one span again."""
    spans: list[Span] = []
    for p in placed:
        for span in p.unit.spans:
            start, stop = p.start + span.start, p.start + span.stop
            if spans and spans[-1].segment == span.segment and spans[-1].stop == start:
                start = spans.pop().start
            spans.append(Span(span.segment, start, stop))
    return spans

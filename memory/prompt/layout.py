"""Layout of a prompt: its rows, the units that they belong to, and the stored blocks that cover them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain, pairwise
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    import torch
    from numpy.typing import NDArray

    from memory.kv_cache.block import KVBlock


@dataclass(frozen=True, slots=True)
class SegmentSpan:
    """Rows ``start:stop`` of one segment, within a unit or within a prompt."""

    segment: str
    start: int
    stop: int


@dataclass(frozen=True, slots=True)
class Unit:
    """Tokens encoded together. An isolated unit attends only to itself, the context and ``preceding``."""

    kind: str  # "static_group" | "segment" | "block" | "prefix" | "new" | "slots": each layer chooses their blocks
    token_ids: tuple[int, ...]
    spans: tuple[SegmentSpan, ...]  # numbered from the unit's first row; a fixed-size block may hold parts of segments
    namespace: str = ""
    reusable: bool = True  # False: these rows are always fresh (never looked up or stored)
    preceding: tuple[tuple[int, ...], ...] = ()  # token ids of earlier units that it attends to, in order

    @classmethod
    def of(
        cls, kind: str, parts: Iterable[tuple[str, Sequence[int]]], preceding: tuple[tuple[int, ...], ...] = ()
    ) -> Unit:
        """Make a unit of whole segments; ``parts`` are pairs of segment id and token ids, in order."""
        tokens: list[int] = []
        spans = []
        for id, ids in parts:
            spans.append(SegmentSpan(id, len(tokens), len(tokens) + len(ids)))
            tokens.extend(ids)
        return cls(kind, tuple(tokens), tuple(spans), preceding=preceding)

    @classmethod
    def join(cls, units: Sequence[Unit]) -> Unit:
        """Concatenate units into one, of the last unit's kind."""
        tokens: list[int] = []
        spans: list[SegmentSpan] = []
        for unit in units:
            spans += [SegmentSpan(s.segment, len(tokens) + s.start, len(tokens) + s.stop) for s in unit.spans]
            tokens += unit.token_ids
        return replace(units[-1], token_ids=tuple(tokens), spans=tuple(spans))

    def cut(self, stops: Sequence[int]) -> list[Unit]:
        """Return the pieces that end at ``stops`` (ascending, the last is the unit's end), with their spans."""
        pieces, start, first = [], 0, 0
        for stop in stops:
            spans = []
            while first < len(self.spans) and self.spans[first].stop <= start:
                first += 1
            for span in self.spans[first:]:
                if span.start >= stop:
                    break
                spans.append(SegmentSpan(span.segment, max(span.start, start) - start, min(span.stop, stop) - start))
            pieces.append(replace(self, token_ids=self.token_ids[start:stop], spans=tuple(spans)))
            start = stop
        return pieces


def common_prefix(a: Sequence[int], b: Sequence[int]) -> int:
    """Return the length of the common prefix."""
    size = min(len(a), len(b))
    different = np.flatnonzero(np.asarray(a[:size]) != np.asarray(b[:size]))
    return int(different[0]) if different.size else size


BRIDGE = 16  # gaps of fewer rows between two runs of rows are transferred with the runs


@dataclass(frozen=True, slots=True)
class Placement:
    """A unit in a prompt: its rows ``start:stop``, and its block if it is stored or was just encoded."""

    unit: Unit
    start: int
    block: KVBlock | None = None
    hit: bool = False  # the KV existed before this prompt: in ``block``, per-layer blocks or the session's cache
    exact: bool = False  # the block was computed after exactly the rows that precede it here
    fused: str = ""  # identity of the block that the prefill itself encodes (``block`` is None); "" if none
    prefix_block: KVBlock | None = None  # rows that a fused unit (at most one per prompt) attends to after the context
    stop: int = field(init=False)
    identity: str = field(init=False)  # identity of the block; "" without a block

    def __post_init__(self) -> None:
        object.__setattr__(self, "stop", self.start + len(self.unit.token_ids))
        object.__setattr__(self, "identity", self.fused if self.block is None else self.block.identity)


@dataclass(frozen=True)
class Layout:
    """A prompt row by row: ``[context prefix][units][query]``.

    ``segment_of`` is the index of a row's segment in ``segments``; -1 for rows of no segment, such as the query's.
    ``fresh`` marks rows without usable KV: they are active at every layer. Context rows are exact unless fresh.
    """

    token_ids: torch.Tensor  # (rows,) long
    positions: torch.Tensor  # (rows,) long
    context: int  # rows [0, context) are the context prefix
    query: int  # rows [query, rows) are the query
    placements: tuple[Placement, ...]
    segments: tuple[SegmentSpan, ...]  # rows numbered from the prompt's first
    segment_of: torch.Tensor  # (rows,) long
    fresh: torch.Tensor  # (rows,) bool
    rows: int = field(init=False)
    exact: torch.Tensor = field(init=False)  # (rows,) bool: the stored KV equals plain recomputation
    reused: torch.Tensor = field(init=False)  # (rows,) bool: the stored KV is not exact; recompute stages may repair it
    block_of: NDArray[np.int64] = field(init=False)  # (rows,) index of the placement whose block covers a row; -1: none

    def __post_init__(self) -> None:
        exact = ~self.fresh
        exact[self.context :] = False
        owner = np.full(len(self.token_ids), -1)
        for index, placement in enumerate(self.placements):
            rows = slice(placement.start, placement.stop)
            if placement.block is not None:
                owner[rows] = index
            if placement.exact and (placement.fused or placement.block is not None):
                exact[rows] = True
        derived = {"rows": len(owner), "exact": exact, "reused": ~self.fresh & ~exact, "block_of": owner}
        for name, value in derived.items():
            object.__setattr__(self, name, value)

    def runs(
        self, rows: NDArray[np.bool_], loaded: NDArray[np.bool_] | None = None
    ) -> list[tuple[int, tuple[int, int]]]:
        """Return runs of the marked ``rows`` that have a block: ``(index in placements, (start, stop) in the unit)``.

        A separate copy costs more than copying a few more rows. So a gap of fewer than `BRIDGE` rows within a unit is
        part of a run, unless some of its rows are ``loaded``. A layer that computes gap rows overwrites their copies.
        """
        owner = np.where(rows, self.block_of, -1)
        edges = np.flatnonzero(np.diff(owner, prepend=-1, append=-1)).tolist()
        runs: list[tuple[int, tuple[int, int]]] = []
        for first, last in pairwise(edges):
            index = int(owner[first])
            if index < 0:
                continue
            start = first - self.placements[index].start
            stop, gap = start + last - first, 0
            if runs and runs[-1][0] == index:
                gap = start - runs[-1][1][1]
            if 0 < gap < BRIDGE and (loaded is None or not loaded[first - gap : first].any()):
                start = runs.pop()[1][0]
            runs.append((index, (start, stop)))
        return runs

    def transfers(
        self, rows: NDArray[np.bool_], first: int, last: int, loaded: NDArray[np.bool_] | None = None
    ) -> list[Transfer]:
        """Make transfers of layers ``[first, last)`` for the `runs` of ``rows``, and mark these rows in ``loaded``."""
        runs = self.runs(rows, loaded) if rows.any() else []
        if loaded is not None:
            loaded |= self.covered(runs)
        return [Transfer(place, first, last, span) for place, span in runs]

    def covered(self, runs: Iterable[tuple[int, tuple[int, int]]]) -> NDArray[np.bool_]:
        """Return (rows,) bool: the rows that ``runs`` cover."""
        mask = np.zeros(self.rows, bool)
        for index, (start, stop) in runs:
            first = self.placements[index].start
            mask[first + start : first + stop] = True
        return mask


@dataclass(frozen=True, slots=True)
class Transfer:
    """Copy of layers ``[first, last)`` of the block with index ``placement`` into the cache of the prompt.

    ``rows`` (start, stop) is the run of the unit's rows to copy.
    """

    placement: int
    first: int
    last: int
    rows: tuple[int, int]


def place(
    units: Sequence[Unit], start: int, blocks: Sequence[KVBlock | None] = (), hits: Sequence[bool] = ()
) -> list[Placement]:
    """Place units one after another from row ``start`` on, with their ``blocks`` and ``hits`` if given."""
    placements: list[Placement] = []
    for number, unit in enumerate(units):
        row = placements[-1].stop if placements else start
        placements.append(Placement(unit, row, blocks[number], hits[number]) if blocks else Placement(unit, row))
    return placements


def lay_out(
    context: Sequence[int], placements: Sequence[Placement], query: Sequence[int], known: bool, device: torch.device
) -> Layout:
    """Lay out a prompt as tensors on ``device``; ``known``: the context rows have keys and values."""
    import torch  # imported here: simulations of loading use this module without torch

    ids = np.fromiter(chain(context, *(p.unit.token_ids for p in placements), query), np.int64)
    first, last = len(context), len(ids) - len(query)
    owner, fresh = np.full(len(ids), -1), np.zeros(len(ids), bool)
    fresh[last:], fresh[:first] = True, not known
    segments: list[SegmentSpan] = []
    for p in placements:
        fresh[p.start : p.stop] = p.block is None and not p.hit and not p.fused
        for span in p.unit.spans:
            start, stop = p.start + span.start, p.start + span.stop
            if segments and segments[-1].segment == span.segment and segments[-1].stop == start:
                start = segments.pop().start  # the parts of a segment that was cut are one span again
            segments.append(SegmentSpan(span.segment, start, stop))
            owner[start:stop] = len(segments) - 1
    return Layout(
        token_ids=torch.from_numpy(ids).to(device),
        positions=torch.arange(len(ids), device=device),
        context=first,
        query=last,
        placements=tuple(placements),
        segments=tuple(segments),
        segment_of=torch.from_numpy(owner).to(device),
        fresh=torch.from_numpy(fresh).to(device),
    )

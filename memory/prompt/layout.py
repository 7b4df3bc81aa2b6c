"""Layout of a prompt: its rows, the units that they belong to, and the stored blocks that cover them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import chain, pairwise
from typing import TYPE_CHECKING

import numpy as np
import torch

from memory.prompt.units import Span, Unit

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from memory.kv_cache.block import KVBlock

BRIDGE = 16  # rows


@dataclass(frozen=True, slots=True)
class Placement:
    """A unit in a prompt: its first row, and its block if one could be had (stored or just encoded)."""

    unit: Unit
    start: int
    block: KVBlock | None = None
    hit: bool = False  # served from storage, not encoded in this step; without a block: rows that slots fill
    exact: bool = False  # the block was computed behind exactly the rows that stand before it here
    fused: str = ""  # identity of the block that the prefill makes on its way; it has none until then
    behind: KVBlock | None = None  # what a fused unit, one of a prompt at most, sees beside the context

    @property
    def stop(self) -> int:
        return self.start + len(self.unit.token_ids)


@dataclass(frozen=True)
class Layout:
    """A prompt row by row: ``[context prefix][units][query]``.

    ``segment_of`` numbers the row's segment as an index into ``segments``; -1 for context and query rows.
    ``fresh`` marks rows without usable KV: they are active at every layer. Context rows carry exact KV.
    """

    token_ids: torch.Tensor  # (rows,) long
    positions: torch.Tensor  # (rows,) long
    context: int  # rows [0, context) are the context prefix
    query: int  # rows [query, rows) are the query
    placements: tuple[Placement, ...]
    segments: tuple[Span, ...]  # in prompt coordinates
    segment_of: torch.Tensor  # (rows,) long
    fresh: torch.Tensor  # (rows,) bool

    @property
    def rows(self) -> int:
        return self.token_ids.numel()

    @cached_property
    def exact(self) -> torch.Tensor:
        """(rows,) bool: rows whose stored keys and values are what plain recomputation would give."""
        found = ~self.fresh
        found[self.context :] = False
        for placement in self.placements:
            if placement.exact and (placement.fused or placement.block is not None):
                found[placement.start : placement.stop] = True
        return found

    @cached_property
    def reused(self) -> torch.Tensor:
        """(rows,) bool: rows whose stored keys and values are not exact, which a recompute stage may repair."""
        return ~self.fresh & ~self.exact

    @cached_property
    def block_of(self) -> NDArray[np.int64]:
        """(rows,) index of the placement whose block covers the row, -1 where there is none."""
        owner = np.full(self.rows, -1)
        for index, placement in enumerate(self.placements):
            if placement.block is not None:
                owner[placement.start : placement.stop] = index
        return owner

    def runs(
        self, wanted: NDArray[np.bool_], there: NDArray[np.bool_] | None = None
    ) -> list[tuple[int, tuple[int, int]]]:
        """``(placement, (start, stop) in unit rows)`` of the runs of ``wanted`` (rows,) bool that have a block.

        Gaps of less than `BRIDGE` rows within a unit are moved along, unless some of them are ``there``: one copy more
        costs more than a few rows. It does no harm, for a slice comes before its layer, which writes what it computes.
        """
        owner = np.where(wanted, self.block_of, -1)
        edges = np.flatnonzero(np.diff(owner, prepend=-1, append=-1)).tolist()
        found: list[tuple[int, tuple[int, int]]] = []
        for first, last in pairwise(edges):
            index = int(owner[first])
            if index < 0:
                continue
            start = first - self.placements[index].start
            stop, gap = start + last - first, 0
            if found and found[-1][0] == index:
                gap = start - found[-1][1][1]
            if 0 < gap < BRIDGE and (there is None or not there[first - gap : first].any()):
                start = found.pop()[1][0]
            found.append((index, (start, stop)))
        return found

    def covered(self, runs: Iterable[tuple[int, tuple[int, int]]]) -> NDArray[np.bool_]:
        """(rows,) bool: the rows of such runs."""
        mask = np.zeros(self.rows, bool)
        for index, (start, stop) in runs:
            at = self.placements[index].start
            mask[at + start : at + stop] = True
        return mask


@dataclass(frozen=True, slots=True)
class Transfer:
    """Move layers ``[first, last)`` of the block at ``placement`` into the working cache.

    ``rows`` are unit rows (start, stop) to move: one contiguous run.
    """

    placement: int
    first: int
    last: int
    rows: tuple[int, int]


def place(
    units: Sequence[Unit], start: int, blocks: Sequence[KVBlock | None] = (), hits: Sequence[bool] = ()
) -> list[Placement]:
    """Units one after another from row ``start`` on; without ``blocks`` none has one."""
    placed = []
    for number, unit in enumerate(units):
        placed.append(Placement(unit, start, blocks[number], hits[number]) if blocks else Placement(unit, start))
        start = placed[-1].stop
    return placed


def lay_out(
    context: Sequence[int], placed: Sequence[Placement], query: Sequence[int], known: bool, device: torch.device
) -> Layout:
    """Rows of a prompt; ``known``: the context rows have keys and values."""
    ids = np.fromiter(chain(context, *(p.unit.token_ids for p in placed), query), np.int64)
    first, last = len(context), len(ids) - len(query)
    segments = _segments(placed)
    owner = np.full(len(ids), -1)
    for number, span in enumerate(segments):
        owner[span.start : span.stop] = number
    fresh = np.zeros(len(ids), bool)
    fresh[last:] = True
    fresh[:first] = not known
    for p in placed:
        fresh[p.start : p.stop] = p.block is None and not p.hit and not p.fused
    return Layout(
        token_ids=torch.from_numpy(ids).to(device),
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

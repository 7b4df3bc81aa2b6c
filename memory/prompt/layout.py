"""Layout of a prompt: its rows, the units that they belong to, and the stored blocks that cover them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import pairwise
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    import torch
    from numpy.typing import NDArray

    from memory.kv_cache.block import KVBlock


@dataclass(frozen=True, slots=True)
class Span:
    """Rows ``start:stop`` of one segment, within a unit or within a prompt."""

    segment: str
    start: int
    stop: int


@dataclass(frozen=True, slots=True)
class Unit:
    """Tokens whose keys and values are computed jointly, seeing only themselves, the context prefix and ``behind``."""

    kind: str  # "static_group" | "segment" | "block" | "prefix" | "new"
    token_ids: tuple[int, ...]
    spans: tuple[Span, ...]  # in unit coordinates; a fixed-size block may hold parts of segments
    namespace: str = ""
    reusable: bool = True  # False: these rows are always fresh (never looked up or stored)
    behind: tuple[tuple[int, ...], ...] = ()  # token ids of units it is computed behind, each behind those before it

    @classmethod
    def of(cls, kind: str, parts: Iterable[tuple[str, Sequence[int]]]) -> Unit:
        """A unit of whole segments, one after another: ``(segment id, its token ids)`` each."""
        tokens: list[int] = []
        spans = []
        for id, ids in parts:
            spans.append(Span(id, len(tokens), len(tokens) + len(ids)))
            tokens.extend(ids)
        return cls(kind, tuple(tokens), tuple(spans))

    @classmethod
    def joined(cls, units: Sequence[Unit]) -> Unit:
        """One unit of the last one's kind: the tokens of all, one after another."""
        tokens: list[int] = []
        spans: list[Span] = []
        for unit in units:
            spans += [Span(s.segment, len(tokens) + s.start, len(tokens) + s.stop) for s in unit.spans]
            tokens += unit.token_ids
        return replace(units[-1], token_ids=tuple(tokens), spans=tuple(spans))

    def cut(self, stops: Sequence[int]) -> list[Unit]:
        """Pieces that end at ``stops`` (rising, the last is the unit's end), with the parts of segments in them."""
        pieces, start, first = [], 0, 0
        for stop in stops:
            spans = []
            while first < len(self.spans) and self.spans[first].stop <= start:
                first += 1
            for span in self.spans[first:]:
                if span.start >= stop:
                    break
                spans.append(Span(span.segment, max(span.start, start) - start, min(span.stop, stop) - start))
            pieces.append(replace(self, token_ids=self.token_ids[start:stop], spans=tuple(spans)))
            start = stop
        return pieces


def common_prefix(a: Sequence[int], b: Sequence[int]) -> int:
    """Length of the common beginning."""
    size = min(len(a), len(b))
    different = np.flatnonzero(np.asarray(a[:size]) != np.asarray(b[:size]))
    return int(different[0]) if different.size else size


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

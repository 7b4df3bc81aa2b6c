"""The six questions a memory method answers, as Protocols, and the frozen results they hand on.

A stage is one small class in one small file. The engine calls these Protocols and nothing else;
`method.py` binds one choice for each into a method. Row numbers are prompt rows, counted from 0.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import pairwise
from typing import TYPE_CHECKING, Protocol

import numpy as np

if TYPE_CHECKING:
    import torch
    from numpy.typing import NDArray

    from memory.kv_cache.block import KVBlock
    from memory.kv_cache.cache_ledger import Entry
    from memory.kv_cache.cache_view import CacheView
    from memory.kv_cache.key_boxes import KeyBoxIndex
    from memory.segments.segment import Segment
    from memory.segments.store import SegmentStore


BRIDGE = 16  # rows


@dataclass(frozen=True, slots=True)
class Capabilities:
    """What a stage does to exactness and to rows; laws and compositions are a matrix over these."""

    exact: bool = True  # equals plain recomputation
    moves_blocks: bool = False  # serves a block at a position other than the one it was computed at
    harvests: bool = False  # takes rows from the working cache after the turn
    evicts: bool = False  # hides rows
    per_layer: bool = False  # visible rows differ from layer to layer
    reads_blocks: bool = True  # False: computes every row, so blocks are neither looked up nor encoded
    repairs: bool = False  # recomputes rows that blocks already cover
    by_mass: bool = False  # chooses rows by attention mass alone: needs nothing of a layer behind its queries and keys
    latent: bool = False  # chooses stored blocks by query states, not segments by text
    persists: bool = False  # what was flushed outlives the process


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


@dataclass(frozen=True, slots=True)
class Placement:
    """A unit in a prompt: its first row, and its block if one could be had (stored or just encoded)."""

    unit: Unit
    start: int
    block: KVBlock | None = None
    hit: bool = False  # served from storage, not encoded in this step; without a block: rows that slots fill
    exact: bool = False  # the block was computed behind exactly the rows that stand before it here
    carried: str = ""  # identity of the block that the prefill makes on its way; it has none until then
    behind: KVBlock | None = None  # what a carried unit, one of a prompt at most, sees beside the context

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
            if placement.exact and (placement.carried or placement.block is not None):
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


class Probe(Protocol):
    """What a recompute stage may ask the engine after the attention of a layer. Everything is lazy."""

    layer: int

    def mass_from_query(self) -> torch.Tensor:
        """(segments,) attention from the query to each segment: mean over heads, query rows and its tokens."""
        ...

    def mass_between(self, chosen: torch.Tensor, causal: bool = True) -> torch.Tensor:
        """(len(chosen), segments) the same from each ``chosen`` segment's active rows: the edges of a hop.

        ``causal=False`` scores later segments too (for importance only; attention itself stays causal).
        """
        ...

    def mass_on_rows(self, sources: torch.Tensor) -> torch.Tensor:
        """(prompt rows,) attention that the active rows ``sources`` give to each row: sum over them and heads."""
        ...

    def fresh_kv(self, layer: int, rows: torch.Tensor, kinds: str = "kv") -> tuple[torch.Tensor, ...]:
        """Per kind (``k``: unrotated) the (kv_heads, len(rows), head_dim) that ``layer`` would compute for ``rows``."""
        ...

    def cached_kv(self, layer: int, rows: torch.Tensor, kinds: str = "kv") -> tuple[torch.Tensor, ...]:
        """What the blocks hold for the same rows."""
        ...

    def report(self, hops: int, edges: Sequence[tuple[int, int, float]] = ()) -> None:
        """Tell the trace how this layer's choice came about: hops needed, ``(from segment, to segment, mass)`` edges.

        Segment -1 stands for the query.
        """
        ...


class Retrieval(Protocol):
    """Which segments enter this prompt, in what order?"""

    capabilities: Capabilities

    def select(self, query: str, store: SegmentStore, budget: int) -> list[str]: ...


class LatentRetrieval(Retrieval, Protocol):
    """Which stored blocks enter this prompt? Asked with query states, against the boxes around the blocks' keys."""

    top_k: int

    def voters(self, layers: int) -> tuple[int, ...]:
        """Numbers of the layers whose query states are wanted, in a model of ``layers``."""
        ...

    def most(self, tokens: int) -> int:
        """How many blocks of ``tokens`` tokens can be chosen at most."""
        ...

    def takes_all(self, index: KeyBoxIndex) -> bool:
        """Whether nothing is left out, whatever the query."""
        ...

    def choose(self, queries: Iterable[torch.Tensor], index: KeyBoxIndex) -> list[int]:
        """Block numbers, rising, one for each copy; ``queries`` (heads, tokens, head_dim) unrotated, one per layer."""
        ...

    def select_layer(self, layer: int, query: torch.Tensor, index: KeyBoxIndex) -> list[int]:
        """The same for one layer that chooses for itself."""
        ...


class Slots(Protocol):
    """Prompt rows whose keys and values are chosen layer by layer, by the query states of that layer."""

    rows: slice

    def choose(self, layer: int, query: torch.Tensor) -> tuple[int, ...]:
        """Numbers of the blocks to attend to at ``layer``; ``query`` (heads, active rows, head_dim) is unrotated."""
        ...

    def block(self, number: int) -> KVBlock:
        """Keys, unrotated, and values of one of them; all have as many rows."""
        ...


class Construction(Protocol):
    """Which chosen segments are encoded together?"""

    capabilities: Capabilities
    assembly: str  # how its units come to keys and values: a name of `memory.method.ASSEMBLIES`

    def plan(self, segments: Sequence[Segment], store: SegmentStore, step: int) -> list[Unit]: ...


class Recompute(Protocol):
    """Which rows get fresh keys and values at each layer? Results are sorted row numbers, fresh rows included."""

    capabilities: Capabilities

    def first(self, layout: Layout, layers: int) -> torch.Tensor:
        """Rows active at layer 0."""
        ...

    def narrow(self, layer: int, active: torch.Tensor, probe: Probe) -> torch.Tensor:
        """Rows active at ``layer + 1``, a subset of ``active``; called after the attention of ``layer``."""
        ...


class Loading(Protocol):
    """When does each block's layer slice move to the compute device?"""

    capabilities: Capabilities
    overlaps: bool  # whether it is asked as soon as the rows of a layer are known, else when the layer is due

    def schedule(self, layout: Layout, layer: int, active: torch.Tensor, layers: int) -> list[Transfer]:
        """Transfers that may start once the rows active at ``layer`` are known. Called for layer 0, 1, ... in order.

        Every row not active at a layer must have been transferred for that layer, by this call or an earlier one.
        """
        ...


class Retention(Protocol):
    """Which rows survive this turn, under what budget in tokens? Asked after every prefill; rows never move."""

    capabilities: Capabilities
    budget: int | None  # live rows that may stay; None: all
    window: int  # of so many last rows it wants to see the queries, beside those of the query span
    counts_mass: bool  # whether it wants the attention that rows have received

    def open(self, weights_key: str, head_dim: int) -> None:
        """Rows of this model will be shown; every session says so at its start. Raises ModelError if they cannot be."""
        ...

    def keep(self, view: CacheView) -> torch.Tensor:
        """(live rows,) bool: those that stay, the forced ones among them."""
        ...


class Storage(Protocol):
    """Where and in what format do blocks rest?"""

    capabilities: Capabilities

    def open(self, model_key: str) -> None:
        """Blocks of this model will be put and asked for; every session says so at its start."""
        ...

    def put(self, block: KVBlock) -> None: ...
    def get(self, identity: str) -> KVBlock | None: ...

    def contains(self, identity: str) -> bool:
        """Whether it rests here, as far as is known without reading it."""
        ...

    def verify(self, identity: str) -> bool:
        """Whether it is stored undamaged: reads what was not verified yet, and deletes it if it is damaged."""
        ...

    def delete(self, identity: str) -> None: ...

    def entries(self) -> Sequence[Entry]:
        """What rests here, the least recently used first."""
        ...

    def stats(self) -> dict[str, int]: ...

    def flush(self) -> None:
        """Let what is stored outlive the process, where the storage persists."""
        ...

"""Six stages of a memory method, as Protocols: the questions that every method answers.

    retrieval     which segments (or stored blocks) enter this prompt, in what order?
    construction  which are encoded together, what became stale, how do they become rows?
    recompute     which rows get fresh keys and values at each layer?
    loading       when does each block's layer slice move to the compute device?
    retention     which rows survive this turn?
    storage       where and in what format do blocks rest?

A stage is one small class in one small file; `memory.method` binds one choice for each into a method. Construction,
which makes the prompts of a session, has its Protocol in `memory.construction.base`. Rows are prompt rows, from 0.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    import torch

    from memory.kv_cache.block import Entry, KVBlock
    from memory.kv_cache.cache_view import CacheView
    from memory.kv_cache.key_boxes import KeyBoxIndex
    from memory.prompt.layout import Layout, Transfer
    from memory.segments.store import SegmentStore


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
    selectable: bool = False  # a latent retrieval may choose among its blocks
    uniform: bool = False  # its blocks are of one size and fit any position, so that layers may choose different ones
    pins: bool = False  # its sessions may pin blocks that outlive them
    keeps_cache: bool = False  # the session's own cache goes on with the next turn
    in_memory: bool = False  # blocks rest in this process alone


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

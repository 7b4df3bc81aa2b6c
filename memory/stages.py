"""Six stages of a memory method, as Protocols.

    retrieval     selects the segments (or stored blocks) of a prompt, and their order
    construction  groups segments into units (encoded together), finds or encodes their blocks, and lays out the rows
    recompute     selects the rows that get fresh keys and values at each layer
    loading       schedules the transfers of each block's layer slices to the compute device
    retention     selects the rows that survive a turn
    storage       keeps blocks in one place (such as memory or disk) and one format

Segments are remembered facts as text. A block holds a unit's keys and values. Rows are a prompt's tokens,
numbered from 0; a row is active at the layers that compute it. The Protocol of constructions is in
`memory.construction.base`.
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


SCHEDULES = ("linear", "cosine", "step")  # how the recomputed share falls over the layers


@dataclass(frozen=True, slots=True)
class Capabilities:
    """Properties of a stage. They decide which stages can be combined, and which guarantees the tests check."""

    exact: bool = True  # keys and values equal those of full recomputation
    moves_blocks: bool = False  # uses a block at a position other than the one it was computed at
    harvests: bool = False  # copies computed rows from the prompt's cache into blocks, after the turn
    evicts: bool = False  # drops rows, so that later rows cannot attend to them
    per_layer: bool = False  # layers may attend to different stored rows
    reads_blocks: bool = True  # False: computes every row, so blocks are neither looked up nor encoded
    repairs: bool = False  # recomputes rows that blocks already cover
    by_mass: bool = False  # chooses rows by attention weights alone, before these are applied to values
    latent: bool = False  # chooses stored blocks by query states, not segments by text
    persists: bool = False  # blocks outlive the process after `flush`
    selectable: bool = False  # a latent retrieval may choose among the construction's blocks
    uniform: bool = False  # blocks have one size and fit any position, so that each layer may choose other blocks
    pins: bool = False  # sessions may pin blocks, which outlive the sessions
    keeps_cache: bool = False  # the session keeps one cache from turn to turn
    in_memory: bool = False  # blocks are only in the memory of this process


class Probe(Protocol):
    """State of the current layer, by which a recompute stage chooses rows. All values are computed on demand."""

    layer: int

    def mass_from_query(self) -> torch.Tensor:
        """Return (segments,) attention from the query: mean over heads, query rows and a segment's tokens."""
        ...

    def peak_from_query(self) -> torch.Tensor:
        """Return (segments,) the greatest share, over heads and query rows, of a row's attention to all segments."""
        ...

    def mass_between(self, segments: torch.Tensor, causal: bool = True) -> torch.Tensor:
        """Return (len(segments), all segments): mean attention from each of ``segments``; 0 without active rows.

        :param causal: False: also score segments after the source, to which the model itself never attends
        """
        ...

    def mass_on_rows(self, sources: torch.Tensor) -> torch.Tensor:
        """Return (prompt rows,) attention from the active rows ``sources``, summed over these rows and all heads."""
        ...

    def fresh_kv(self, layer: int, rows: torch.Tensor, kinds: str = "kv") -> tuple[torch.Tensor, ...]:
        """Compute keys before RoPE ("k"), values ("v") or both of active ``rows``: (kv_heads, len(rows), head_dim).

        :raises ConfigError: ``layer`` is neither the probe's layer nor the next, or a row is not active
        """
        ...

    def cached_kv(self, layer: int, rows: torch.Tensor, kinds: str = "kv") -> tuple[torch.Tensor, ...]:
        """Read stored keys, values or both, shaped as above. Raises ConfigError for no rows, or one without a block."""
        ...

    def report(self, hops: int, edges: Sequence[tuple[int, int, float]] = ()) -> None:
        """Record a choice in the trace: the ``hops`` made; edges (source, -1: the query; chosen segment; attention)."""
        ...


class Retrieval(Protocol):
    """Selection of the segments of a prompt, and their order."""

    capabilities: Capabilities

    def select(self, query: str, store: SegmentStore, budget: int) -> list[str]: ...


class LatentRetrieval(Retrieval, Protocol):
    """Selection of stored blocks by query states, compared with bounding boxes of the blocks' keys."""

    top_k: int

    def scoring_layers(self, layers: int) -> tuple[int, ...]:
        """Return the ascending numbers of the layers whose query states are needed, in a model of ``layers`` layers."""
        ...

    def max_blocks(self, tokens: int) -> int:
        """Return the largest number of blocks of ``tokens`` tokens that can be chosen."""
        ...

    def chooses_all(self, index: KeyBoxIndex) -> bool:
        """Tell whether every query chooses all blocks."""
        ...

    def choose(self, queries: Iterable[torch.Tensor], index: KeyBoxIndex) -> list[int]:
        """Return the ascending numbers of the chosen blocks; a block that enters the prompt n times occurs n times.

        :param queries: query states before RoPE, (heads, tokens, head_dim), for each of ``index.layers``
        """
        ...

    def select_layer(self, layer: int, query: torch.Tensor, index: KeyBoxIndex) -> list[int]:
        """Return the block numbers that one layer's query chooses."""
        ...


class PerLayerRows(Protocol):
    """Prompt rows whose keys and values are chosen layer by layer, by the query states of that layer."""

    rows: slice

    def choose(self, layer: int, query: torch.Tensor) -> tuple[int, ...]:
        """Return the numbers of the blocks for ``layer``; ``query`` (heads, active rows, head_dim) is before RoPE."""
        ...

    def block(self, number: int) -> KVBlock:
        """Return a block's keys (before RoPE) and values; all blocks have the same number of rows."""
        ...


class Recompute(Protocol):
    """Selection of the rows to compute at each layer: sorted row numbers, always with all rows without stored KV."""

    capabilities: Capabilities

    def first(self, layout: Layout, layers: int) -> torch.Tensor:
        """Return the rows that are active at layer 0."""
        ...

    def narrow(self, layer: int, active: torch.Tensor, probe: Probe) -> torch.Tensor:
        """Return the rows active at ``layer + 1``, a subset of ``active``, by the state of ``layer``."""
        ...


class Loading(Protocol):
    """Schedule of the transfers of each block's layer slices to the compute device."""

    capabilities: Capabilities
    overlaps: bool  # True: `schedule` is called when a layer's active rows are known; False: just before the layer

    def schedule(self, layout: Layout, layer: int, active: torch.Tensor, layers: int) -> list[Transfer]:
        """Return transfers that may start when the rows active at ``layer`` are known; called for layers 0, 1, ...

        The slices of stored rows not active at a layer must be requested by the layer's call, or an earlier call.
        """
        ...


class Retention(Protocol):
    """Selection of the rows that survive a turn, made after each prefill."""

    capabilities: Capabilities
    budget: int | None  # most rows that stay; None: all stay
    window: int  # number of last rows whose query states it needs; those of the last query are always known
    counts_mass: bool  # needs the attention that each row has received so far

    def open(self, weights_key: str, head_dim: int) -> None:
        """Prepare for rows of this model, at the start of a session. Raises ModelError if that is impossible."""
        ...

    def keep(self, view: CacheView) -> torch.Tensor:
        """Return (live rows,) bool: True for the rows that stay, among them all ``view.forced`` rows."""
        ...


class Storage(Protocol):
    """Place and format of stored blocks."""

    capabilities: Capabilities

    def open(self, model_key: str) -> None:
        """Prepare for blocks of this model, at the start of a session."""
        ...

    def put(self, block: KVBlock) -> None: ...
    def get(self, identity: str) -> KVBlock | None: ...

    def contains(self, identity: str) -> bool:
        """Tell whether a block is stored, without reading it."""
        ...

    def verify(self, identity: str) -> bool:
        """Read a block's unverified parts, and tell whether it is stored undamaged. A damaged block is deleted."""
        ...

    def delete(self, identity: str) -> None: ...

    def entries(self) -> Sequence[Entry]:
        """List the stored blocks, the least recently used first."""
        ...

    def stats(self) -> dict[str, int]: ...

    def flush(self) -> None:
        """Make the stored blocks outlive the process, if the storage persists."""
        ...

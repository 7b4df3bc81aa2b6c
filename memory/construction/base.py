"""Construction: the Protocol of the stage that turns chosen segments into the rows of a prompt.

`Construction.plan` groups the segments into units that are encoded together. `Construction.builder` makes the
`PromptBuilder` of one session, which finds or computes the units' keys and values.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import takewhile
from typing import TYPE_CHECKING, Protocol

from memory.engine.base import Engine, PrefillResult
from memory.kv_cache.block_store import BlockLease
from memory.prompt.layout import Layout, Placement, Unit, lay_out, place
from memory.prompt.report import StepTimer
from memory.segments.store import SegmentStore
from memory.stages import Capabilities, PerLayerRows, Recompute, Retention, Retrieval, Storage

if TYPE_CHECKING:
    from memory.engine.base import CacheProvider, SessionCache
    from memory.kv_cache.block import KVBlock
    from memory.kv_cache.pinned_blocks import PinnedPool
    from memory.kv_cache.segment_index import SegmentIndex
    from memory.segments.segment import Segment


@dataclass(frozen=True)
class Context:
    """Context prefix of a session with its block (keys and values), and the part that units encoded alone attend to."""

    ids: tuple[int, ...] = ()
    block: KVBlock | None = None
    unit_context_ids: tuple[int, ...] = ()
    unit_context: KVBlock | None = None


class Composition(Protocol):
    """Parts of a memory method that its construction reads: the other stages, and the stores that sessions share."""

    retrieval: Retrieval
    recompute: Recompute
    retention: Retention
    storage: Storage
    layout: str
    capabilities: Capabilities
    pinned: PinnedPool
    segment_index: SegmentIndex

    def cache_provider(self, engine: Engine) -> CacheProvider: ...


@dataclass(frozen=True)
class SessionResources:
    """Parts of a session that a prompt builder uses."""

    engine: Engine
    method: Composition
    lease: BlockLease
    store: SegmentStore
    namespace: str = ""  # scope within which blocks are shared


@dataclass(frozen=True)
class PreparedPrompt:
    """A prompt before its prefill."""

    layout: Layout
    context_block: KVBlock | None = None
    unit_context: KVBlock | None = None  # the context that units encoded by the prefill attend to
    encoded: int = 0  # tokens of the units that are encoded for this prompt
    query_token_layers: int = 0  # rows x layers of the pass that computes only query states, to choose blocks
    invalidated: int = 0  # stored tokens of the last prompt that can no longer be used
    chain: tuple[str, ...] = ()  # names of the memory's blocks in the prefix index, in prompt order
    stored: int = 0  # number of leading blocks of ``chain`` that were found in storage
    missing: Mapping[str, Placement] = field(default_factory=dict)  # units to copy from the cache, by segment hash
    layer_rows: PerLayerRows | None = None  # rows for which each layer chooses blocks
    cache: SessionCache | None = None  # the session's cache with the first ``prefix`` rows; None: make a new one
    prefix: int = 0  # number of first rows whose keys and values come from an equal earlier prefix


class PromptBuilder(Protocol):
    """Builder of one session's prompts from units. The default methods suit builders that keep nothing but blocks."""

    harvests: bool  # True: rows are copied from the prompt's cache after the prefill
    reads_context: bool = True  # True: needs the context's keys and values; False: needs only its token ids

    def build(self, units: Sequence[Unit], query: Sequence[int], context: Context, timer: StepTimer) -> PreparedPrompt:
        """Find stored keys and values of ``units``, encode missing ones, and lay out the prompt's rows."""
        ...

    def store_rows(self, prompt: PreparedPrompt, result: PrefillResult) -> None:
        """Keep computed rows for later prompts."""
        ...

    def reset(self) -> None:
        """Delete all state of the session's earlier prompts."""
        ...

    def temporary(self) -> PromptBuilder:
        """Return a builder whose prompts leave this one unchanged; ``self`` will do if only `store_rows` changes it."""
        return self

    def prepare(self, units: Sequence[Unit], context: Context, tokens: int) -> tuple[int, int]:
        """Encode about ``tokens`` missing tokens in the background; returns (tokens encoded, tokens still missing)."""
        return 0, 0

    def mark_instruction(self, tokens: int) -> None:
        """Mark the first ``tokens`` tokens of the next query as the instruction; 0: the last instruction stays."""

    def stop_sharing(self) -> None:
        """Stop sharing rows with other sessions. Stored blocks stay until the session's lease releases them."""


class PinningBuilder(PromptBuilder, Protocol):
    """A builder whose sessions may pin blocks that outlive them."""

    def pin(self, token_ids: Sequence[int], extra_key: str, context: Context) -> None:
        """Encode ``token_ids`` and pin their block for all look-ups with the same ``extra_key``."""
        ...

    def unpin(self, token_ids: Sequence[int], extra_key: str) -> None: ...
    def is_pinned(self, token_ids: Sequence[int], extra_key: str) -> bool: ...


class Construction(Protocol):
    """Stage that groups segments into units, and makes units the rows of a prompt."""

    capabilities: Capabilities
    layouts: tuple[str, ...]  # prompt layouts that it can build, from `memory.config.choices.LAYOUTS`

    def plan(self, segments: Sequence[Segment], store: SegmentStore, step: int) -> list[Unit]:
        """Return the units of the chosen ``segments``, in prompt order."""
        ...

    def builder(self, session: SessionResources) -> PromptBuilder:
        """Make the prompt builder of one session."""
        ...


def storable_units(units: Sequence[Unit], namespace: str) -> list[Unit]:
    """Return the leading units that are reusable and belong to ``namespace``: only these may be stored as a prefix."""
    return list(takewhile(lambda unit: unit.reusable and unit.namespace in ("", namespace), units))


class RecomputeAllBuilder(PromptBuilder):
    """Builder of prompts whose rows are all computed, the context's included."""

    harvests = reads_context = False

    def __init__(self, engine: Engine) -> None:
        self._device = engine.device

    def build(self, units: Sequence[Unit], query: Sequence[int], context: Context, timer: StepTimer) -> PreparedPrompt:
        placements = place(units, len(context.ids))
        return PreparedPrompt(lay_out(context.ids, placements, query, False, self._device))

    def store_rows(self, prompt: PreparedPrompt, result: PrefillResult) -> None:
        pass

    def reset(self) -> None:
        pass

"""Construction: the Protocol of the stage that turns chosen segments into the rows of a prompt.

A construction owns both halves of one idea. `Construction.plan` says which segments are encoded together, and
`Construction.builder` makes the `PromptBuilder` of one session, which finds or computes their keys and values.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import takewhile
from typing import TYPE_CHECKING, Protocol

from memory.engine.base import Engine, PrefillResult
from memory.kv_cache.block_lease import BlockLease
from memory.kv_cache.packed_rows import DamagedError
from memory.prompt.layout import Layout, Placement, Unit
from memory.prompt.report import StepTimer, UnitUse, uses
from memory.prompt.rows import lay_out, place
from memory.segments.store import SegmentStore
from memory.stages import Capabilities, Recompute, Retention, Retrieval, Slots, Storage

if TYPE_CHECKING:
    from memory.engine.base import CacheProvider, Engine, PrefillResult, SessionCache
    from memory.kv_cache.block import KVBlock
    from memory.kv_cache.block_lease import BlockLease
    from memory.kv_cache.pinned_blocks import PinnedPool
    from memory.kv_cache.segment_index import SegmentIndex
    from memory.segments.segment import Segment
    from memory.segments.store import SegmentStore


@dataclass(frozen=True)
class Context:
    """The context prefix of a session with its exact block, and the part of it that isolated units see."""

    ids: tuple[int, ...] = ()
    block: KVBlock | None = None
    seen_ids: tuple[int, ...] = ()
    seen_block: KVBlock | None = None


class Composition(Protocol):
    """The method that a construction belongs to: its other stages, and everything that its sessions share."""

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
    """Everything that a prompt builder may use of its session."""

    engine: Engine
    method: Composition
    lease: BlockLease
    store: SegmentStore
    namespace: str = ""


@dataclass(frozen=True)
class PreparedPrompt:
    """A prompt before its prefill."""

    layout: Layout
    units: tuple[UnitUse, ...]
    context_block: KVBlock | None = None
    seen_block: KVBlock | None = None  # the context that units see which the prefill encodes on its way
    encoded: int = 0  # tokens encoded for it
    query_token_layers: int = 0  # of the pass that only makes query states
    invalidated: int = 0  # tokens of the last prompt's blocks that are of no use any more
    chain: tuple[str, ...] = ()  # names of the blocks of an exact prefix
    stored: int = 0  # how many of them were stored, from the first on
    missing: Mapping[str, Placement] = field(default_factory=dict)  # by segment hash: units to harvest, and where
    slots: Slots | None = None
    cache: SessionCache | None = None  # the session's own, which holds the first ``prefix`` positions of the prompt
    prefix: int = 0


class PromptBuilder(Protocol):
    """Keys and values for the units of one session's prompts.

    The methods behind `reset` have bodies for builders that keep nothing from turn to turn but blocks.
    """

    harvests: bool  # rows are copied from the prompt's cache after the prefill
    reads_context: bool = True  # wants the context's exact block, else its ids alone

    def build(self, units: Sequence[Unit], query: Sequence[int], context: Context, timer: StepTimer) -> PreparedPrompt:
        """Find stored keys and values of ``units``, encode what is missing, and lay out the prompt's rows."""
        ...

    def after(self, prompt: PreparedPrompt, result: PrefillResult) -> None:
        """Keep what the prefill has computed for later prompts."""
        ...

    def reset(self) -> None:
        """Forget the session's earlier prompts."""
        ...

    def detached(self) -> PromptBuilder:
        """Return a builder for a prompt that leaves no trace in this one: itself, where only `after` leaves any."""
        return self

    def prepare(self, units: Sequence[Unit], context: Context, tokens: int) -> tuple[int, int]:
        """Encode about ``tokens`` missing tokens in the background; returns (tokens encoded, tokens still missing)."""
        return 0, 0

    def instruct(self, tokens: int) -> None:
        """Mark the first ``tokens`` of the next query as the instruction from now on; 0: the last one still holds."""

    def unshare(self) -> None:
        """Withdraw everything that this session shares with others beside its blocks."""


class PinningBuilder(PromptBuilder, Protocol):
    """A builder whose sessions may pin blocks that outlive them."""

    def pin(self, token_ids: Sequence[int], extra_key: str, context: Context) -> None:
        """Encode ``token_ids`` and pin their block under the extra key."""
        ...

    def unpin(self, token_ids: Sequence[int], extra_key: str) -> None: ...
    def is_pinned(self, token_ids: Sequence[int], extra_key: str) -> bool: ...


class Construction(Protocol):
    """Which segments are encoded together, what became stale, and how do they become rows of the prompt?"""

    capabilities: Capabilities
    layouts: tuple[str, ...]  # prompt layouts that it can build: of `memory.config.choices.LAYOUTS`

    def plan(self, segments: Sequence[Segment], store: SegmentStore, step: int) -> list[Unit]:
        """Units of the chosen ``segments``, in prompt order."""
        ...

    def builder(self, session: SessionResources) -> PromptBuilder:
        """Make the prompt builder of one session."""
        ...


def storable(units: Sequence[Unit], namespace: str) -> list[Unit]:
    """The leading units that an exact prefix may hold.

    It ends before the first unit that may not be stored, or not under the key that the prefix is stored under.
    """
    return list(takewhile(lambda unit: unit.reusable and unit.namespace in ("", namespace), units))


class Invalidation:
    """Comparison of one prompt's named units with those of the last. Units without a name have no block."""

    def __init__(self, store: SegmentStore) -> None:
        self._store = store
        self.reset()

    def reset(self) -> None:
        self._previous: dict[str, Unit] = {}
        self._cursor = 0
        self._present = self._previous, self._cursor

    def count(self, names: Sequence[str], units: Sequence[Unit]) -> int:
        """Tokens of the last prompt's blocks that became useless.

        Reasons are a changed segment, shifted tokens, a group that changed its kind, and the end of a task, whose log
        ends there. A block that is absent only because its segments were not chosen this time is still good.
        """
        changed = set(self._store.changed(self._cursor))
        chosen = {span.segment for unit in units for span in unit.spans}
        present = {name: unit for name, unit in zip(names, units, strict=True) if name}
        tokens = 0
        for name, unit in self._previous.items():
            segments = {span.segment for span in unit.spans}
            if name not in present and (segments & changed or segments <= chosen):
                tokens += len(unit.token_ids)
        self._present = present, self._store.changes
        return tokens

    def settle(self) -> None:
        """Make the units counted last those of the last prompt; a prompt that leaves no trace never settles."""
        self._previous, self._cursor = self._present


def with_retry(
    lease: BlockLease,
    timer: StepTimer,
    build: Callable[[], PreparedPrompt],
    compute: Callable[[PreparedPrompt], PrefillResult],
    encodes: bool,
) -> tuple[PreparedPrompt, PrefillResult]:
    """Build a prompt and compute it, again for each block that turns out to be damaged; no answer has read it.

    Damage seldom comes alone, so the other blocks of the prompt are verified before the next attempt. The time of a
    failed attempt is in the times of the turn, its token-layers are in no count; the blocks it encoded are counted,
    for they are stored.

    :param encodes: blocks that are put while a prompt is built were encoded for it
    :raises DamagedError: a block that was computed again is damaged again
    """
    damaged: set[str] = set()
    encoded: dict[str, int] = {}
    while True:
        prompt, stored = None, lease.watch()
        try:
            prompt = _counted(build(), encoded)
            return prompt, compute(prompt)
        except DamagedError as error:
            if error.identity in damaged:
                raise
            damaged.add(error.identity)
            lease.discard(error.identity)
        if encodes:
            encoded |= stored
        with timer.part("retrieve"):
            for unit in () if prompt is None else prompt.units:
                lease.verify(unit.identity)


def _counted(prompt: PreparedPrompt, encoded: Mapping[str, int]) -> PreparedPrompt:
    """Count the blocks of earlier attempts as encoded, not as hits; ``encoded`` has their tokens by identity."""
    if not encoded:
        return prompt
    units = (replace(unit, hit=unit.hit and unit.identity not in encoded) for unit in prompt.units)
    placements = (
        replace(p, hit=p.hit and (p.block is None or p.block.identity not in encoded)) for p in prompt.layout.placements
    )
    layout = replace(prompt.layout, placements=tuple(placements))
    return replace(prompt, units=tuple(units), layout=layout, encoded=prompt.encoded + sum(encoded.values()))


class RecomputeAllBuilder(PromptBuilder):
    """Prompts without stored rows; those of the context are fresh, too."""

    harvests = False
    reads_context = False

    def __init__(self, engine: Engine) -> None:
        self._device = engine.device

    def build(self, units: Sequence[Unit], query: Sequence[int], context: Context, timer: StepTimer) -> PreparedPrompt:
        placements = place(units, len(context.ids))
        return PreparedPrompt(lay_out(context.ids, placements, query, False, self._device), uses(placements))

    def after(self, prompt: PreparedPrompt, result: PrefillResult) -> None:
        """Keep nothing."""

    def reset(self) -> None:
        """Forget nothing: nothing was kept."""

"""What an assembler is: units in, a prompt the engine can prefill out."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import takewhile
from typing import Protocol

from memory.engine.results import PrefillResult
from memory.kv_cache.block import KVBlock
from memory.kv_cache.dense import KVCache
from memory.reports.prefill import UnitUse
from memory.reports.timing import StepTimer
from memory.stages import Layout, Placement, Slots, Unit


@dataclass(frozen=True)
class Context:
    """The context prefix of a session with its exact block, and what isolated units see of it."""

    ids: tuple[int, ...] = ()
    block: KVBlock | None = None
    seen_ids: tuple[int, ...] = ()
    seen_block: KVBlock | None = None


@dataclass(frozen=True)
class PreparedPrompt:
    """A prompt before its prefill."""

    layout: Layout
    units: tuple[UnitUse, ...]
    context_block: KVBlock | None = None
    seen_block: KVBlock | None = None  # what units that the prefill encodes on its way see of the context
    encoded: int = 0  # tokens encoded for it
    asked: int = 0  # token-layers of the pass that only makes query states
    invalidated: int = 0  # tokens of the last prompt's blocks that are of no use any more
    chain: tuple[str, ...] = ()  # names of the blocks of an exact prefix
    found: int = 0  # how many of them were stored, from the first on
    missing: Mapping[str, Placement] = field(default_factory=dict)  # by virtual hash: units to harvest, and where
    slots: Slots | None = None
    cache: KVCache | None = None  # a session's own, which holds the first ``prefix`` positions of the prompt
    prefix: int = 0


def storable(units: Sequence[Unit], namespace: str) -> list[Unit]:
    """The leading units that an exact prefix may hold.

    It ends before the first unit that may not be stored, or not under the key that the prefix is stored under.
    """
    return list(takewhile(lambda unit: unit.reusable and unit.namespace in ("", namespace), units))


class PromptBuilder(Protocol):
    """One way to get keys and values for a prompt's units.

    What follows `reset` has a body for those that keep nothing from turn to turn but blocks.
    """

    harvests: bool  # rows are taken from the working cache after the prefill
    reads_context: bool = True  # wants the context's exact block, else its ids alone

    def assemble(
        self, units: Sequence[Unit], query: Sequence[int], context: Context, clock: StepTimer
    ) -> PreparedPrompt: ...
    def after(self, prompt: PreparedPrompt, result: PrefillResult) -> None: ...
    def reset(self) -> None: ...

    def aside(self) -> PromptBuilder:
        """One that goes on from here and leaves no trace in this one: itself, where only `after` leaves any."""
        return self

    def prepare(self, units: Sequence[Unit], context: Context, tokens: int) -> tuple[int, int]:
        """Encode about so many tokens of what is lacking, behind every plan; (encoded, still lacking)."""
        return 0, 0

    def instruct(self, tokens: int) -> None:
        """The first ``tokens`` of the next query say what is to be done from now on; 0: what was said still holds."""

    def unshare(self) -> None:
        """Take out of what sessions share whatever this one has put there beside its blocks."""

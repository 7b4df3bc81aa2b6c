"""A memory method: one choice for each of the six stages, and the refusal of choices that make no sense together."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property

from keep_agent.errors import ConfigError
from memory.config.choices import CONTEXTS, LAYOUTS
from memory.kv_cache.block_lease import BlockPool
from memory.kv_cache.pinned_blocks import PinnedPool
from memory.kv_cache.quantization import PackFormat
from memory.kv_cache.segment_index import SegmentIndex
from memory.retention.keep_all import KeepAll
from memory.segments.groups import Grouping
from memory.stages import Capabilities, Construction, Loading, Recompute, Retention, Retrieval, Storage
from memory.storage.ram import Ram

ASSEMBLIES = ("blocks", "chain", "reuse", "history", "turns")
CALLS = {
    "retrieval": "select",
    "construction": "plan",
    "recompute": "narrow",
    "loading": "schedule",
    "retention": "keep",
    "storage": "get",
}


@dataclass(frozen=True)
class MemoryMethod:
    """Everything that tells one memory from another. Sessions of one method share its storage.

    ``layout``: ``memory`` rebuilds the prompt at every step, ``append`` only ever adds turns. ``context`` is what an
    isolated unit sees before itself when it is encoded: nothing, the start token, or the whole context prefix.
    ``grouping`` belongs to the setting: methods that are compared share it, so that all choose the same segments.
    ``pinned`` is what sessions of a method that looks segments up by their tokens may pin; others have no use for it.
    """

    name: str
    retrieval: Retrieval
    construction: Construction
    recompute: Recompute
    loading: Loading
    retention: Retention = field(default_factory=KeepAll)
    storage: Storage = field(default_factory=Ram)
    pinned: PinnedPool = field(default_factory=PinnedPool)
    layout: str = "memory"
    context: str = "system"
    grouping: Grouping = field(default_factory=Grouping)
    paper: str = ""  # arXiv id

    def __post_init__(self) -> None:
        for problem in self._problems():
            raise ConfigError(f"memory method {self.name!r}: {problem}")

    @property
    def chains(self) -> bool:
        """Are exact rows harvested after the turn and found again as a prefix?"""
        return self.construction.assembly == "chain"

    @property
    def capabilities(self) -> Capabilities:
        """Of the whole: exact if every part is, otherwise what any part does."""
        parts = [getattr(self, stage).capabilities for stage in CALLS]
        reads = self.recompute.capabilities.reads_blocks
        resting = (self.construction, self.storage) if reads else ()
        return Capabilities(
            exact=all(part.capabilities.exact for part in (self.retrieval, self.retention, *resting)),
            moves_blocks=reads and any(part.moves_blocks for part in parts),
            harvests=any(part.harvests for part in parts),
            evicts=any(part.evicts for part in parts),
            per_layer=any(part.per_layer for part in parts),
            reads_blocks=reads,
            repairs=any(part.repairs for part in parts),
            latent=self.retrieval.capabilities.latent,
        )

    @property
    def packs(self) -> PackFormat | None:
        """The format of its storage, if that packs what it stores."""
        return getattr(self.storage, "format", None)

    @property
    def trained(self) -> str | None:
        """A hash of what was trained for it besides the model: a retention head. None if nothing was."""
        return getattr(self.retention, "trained", None)

    @cached_property
    def pool(self) -> BlockPool:
        return BlockPool(self.storage)

    @cached_property
    def shelves(self) -> dict[str, object]:
        """What the sessions that go on from turn to turn share, by the key of their model."""
        return {}

    @cached_property
    def virtual(self) -> SegmentIndex:
        return SegmentIndex(self.pool)

    def _problems(self) -> list[str]:
        """Why this composition cannot work, in sentences."""
        wrong = [
            f"{stage} is {type(getattr(self, stage)).__name__}, which has no {call}(): name a class of memory.{stage}"
            for stage, call in CALLS.items()
            if not hasattr(getattr(self, stage), call)
        ]
        if self.layout not in LAYOUTS:
            wrong.append(f"layout={self.layout!r} is unknown: use one of {', '.join(LAYOUTS)}")
        assembly = getattr(self.construction, "assembly", None)
        if assembly not in ASSEMBLIES:
            wrong.append(f"construction.assembly={assembly!r} is unknown: use one of {', '.join(ASSEMBLIES)}")
        if self.context not in CONTEXTS:
            wrong.append(f"context={self.context!r} is unknown: use one of {', '.join(CONTEXTS)}")
        return wrong or self._senseless()

    def _senseless(self) -> list[str]:
        kind = {stage: type(getattr(self, stage)).__name__ for stage in CALLS}
        reads, repairs = self.recompute.capabilities.reads_blocks, self.recompute.capabilities.repairs
        wrong = []
        exact = self.construction.capabilities.exact and self.retrieval.capabilities.exact
        if exact and repairs:
            wrong.append(
                f"construction {kind['construction']} reuses exact rows only, so recompute {kind['recompute']} has "
                "nothing to repair: use recompute Nothing, or a construction of isolated units"
            )
        if self.construction.capabilities.harvests and not reads:
            wrong.append(
                f"recompute {kind['recompute']} computes every row, so nothing that construction "
                f"{kind['construction']} harvests would be read: use recompute Nothing"
            )
        turns = self.construction.assembly == "turns"
        if turns and not isinstance(self.storage, Ram):
            wrong.append(
                f"construction {kind['construction']} keeps its rows in the session's working cache, so storage "
                f"{kind['storage']} would stay empty: use storage Ram, or Quantized to pack the cache, or "
                "construction Prefix, which stores blocks"
            )
        if exact and not self.storage.capabilities.exact and not (turns and self.packs is not None):
            wrong.append(
                f"storage {kind['storage']} changes what it stores, but construction {kind['construction']} promises "
                "exact rows: use storage Ram"
            )
        if self.layout == "append" and self.construction.assembly in ("blocks", "reuse"):
            wrong.append(
                "layout append grows one transcript whose earlier turns are reused as an exact prefix, which "
                f"construction {kind['construction']} does not do: use construction Prefix, or layout memory"
            )
        if self.layout == "memory" and self.construction.assembly == "history":
            wrong.append(
                f"construction {kind['construction']} keeps what earlier turns said, but layout memory rebuilds its "
                "prompt and says nothing twice: use layout append"
            )
        wrong += self._senseless_latent()
        if turns and self.packs is not None and self.retention.counts_mass:
            wrong.append(
                f"retention {kind['retention']} counts attention weights, which attention over the packed rows of "
                f"storage {kind['storage']} never has at once: use storage Ram, or retention SnapKV"
            )
        if turns and self.packs is not None and self.construction.survivors == "move":
            wrong.append(
                f"survivors=move computes keys anew for other positions, but storage {kind['storage']} keeps them "
                "packed as they were: use survivors=stay, or storage Ram"
            )
        if self.retention.capabilities.evicts and not turns:
            wrong.append(
                f"retention {kind['retention']} drops rows of a cache that goes on from turn to turn, but construction "
                f"{kind['construction']} begins every prompt with an empty one: use construction Turns"
            )
        return wrong

    def _senseless_latent(self) -> list[str]:
        """The same of a retrieval that chooses among stored blocks."""
        asked, construction, wrong = self.retrieval.capabilities, self.construction, []
        kind = type(construction).__name__
        if asked.latent and not self.recompute.capabilities.reads_blocks:
            wrong.append(
                f"retrieval {type(self.retrieval).__name__} chooses among stored blocks, but recompute "
                f"{type(self.recompute).__name__} reads none: use recompute Nothing"
            )
        if asked.latent and construction.assembly == "reuse":
            wrong.append(
                f"construction {kind} computes the segments it lacks within the prompt, but a latent retrieval chooses "
                "among stored blocks: use construction PerSegment, StaticDynamic or History"
            )
        if asked.latent and (self.chains or construction.assembly == "turns"):
            wrong.append(
                f"construction {kind} reuses an unbroken prefix, of which a latent retrieval would leave out parts: "
                "use construction History, or one of isolated units"
            )
        if asked.per_layer and not (construction.assembly == "history" and construction.uniform):
            wrong.append(
                f"layers=each puts other blocks into the same rows at every layer, but those of construction {kind} "
                "differ in length or position: use construction History with cut=tokens and positions=decoupled"
            )
        if asked.per_layer and self.recompute.capabilities.repairs:
            wrong.append(
                f"recompute {type(self.recompute).__name__} repairs rows from layer to layer, but with layers=each a "
                "row is another token at each: use recompute Nothing"
            )
        return wrong

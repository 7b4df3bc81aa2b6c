"""Memory method: one choice for each of the six stages; compositions that make no sense are refused."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING

from keep_agent.errors import ConfigError
from memory.config.choices import CONTEXTS, LAYOUTS
from memory.construction.base import Construction
from memory.kv_cache.block_lease import BlockPool
from memory.kv_cache.pinned_blocks import PinnedPool
from memory.kv_cache.quantization import PackFormat
from memory.kv_cache.segment_index import SegmentIndex
from memory.retention.keep_all import KeepAll
from memory.segments.groups import Grouping
from memory.stages import Capabilities, Loading, Recompute, Retention, Retrieval, Storage
from memory.storage.ram import Ram

if TYPE_CHECKING:
    from memory.engine.base import CacheProvider, Engine

MEMBERS = {
    "retrieval": ("select",),
    "construction": ("plan", "builder", "layouts"),
    "recompute": ("first", "narrow"),
    "loading": ("schedule",),
    "retention": ("keep",),
    "storage": ("get",),
}


@dataclass(frozen=True)
class MemoryMethod:
    """One choice for each stage, and the settings that belong to none. Sessions of one method share its storage.

    ``layout``: ``memory`` rebuilds the prompt at every step, ``append`` only ever adds turns. ``context`` is the prefix
    that an isolated unit sees when it is encoded: none, the start token, or the whole context prefix. ``grouping``
    belongs to the setting: methods that are compared share it, so that all choose the same segments. ``pinned`` holds
    the blocks that sessions pin; only constructions that look segments up by their tokens use it.
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
    def capabilities(self) -> Capabilities:
        """Capabilities of the whole: exact if every part is, otherwise those of any part."""
        parts = [getattr(self, stage).capabilities for stage in MEMBERS]
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
            keeps_cache=reads and self.construction.capabilities.keeps_cache,
        )

    @property
    def packs(self) -> PackFormat | None:
        """The format of its storage, if that packs what it stores."""
        return getattr(self.storage, "format", None)

    @property
    def trained(self) -> str | None:
        """Hash of the part that was trained for it besides the model: a retention head; None without one."""
        return getattr(self.retention, "trained", None)

    @cached_property
    def pool(self) -> BlockPool:
        return BlockPool(self.storage)

    @cached_property
    def segment_index(self) -> SegmentIndex:
        return SegmentIndex(self.pool)

    def cache_provider(self, engine: Engine) -> CacheProvider:
        """Session caches on ``engine``, shared by the method's sessions; packed if the storage packs."""
        if engine.model_key not in self._providers:
            sizes = self.construction.block_size, self.construction.prefix_tokens
            self._providers[engine.model_key] = engine.cache_provider(self.packs, *sizes)
        return self._providers[engine.model_key]

    @cached_property
    def _providers(self) -> dict[str, CacheProvider]:
        return {}

    def _problems(self) -> list[str]:
        """Sentences that say why this composition cannot work."""
        wrong = [
            f"{stage} is {type(getattr(self, stage)).__name__}, which has no {name}: name a class of memory.{stage}"
            for stage, names in MEMBERS.items()
            for name in names
            if not hasattr(getattr(self, stage), name)
        ]
        if self.layout not in LAYOUTS:
            wrong.append(f"layout={self.layout!r} is unknown: use one of {', '.join(LAYOUTS)}")
        if self.context not in CONTEXTS:
            wrong.append(f"context={self.context!r} is unknown: use one of {', '.join(CONTEXTS)}")
        return wrong or [*self._senseless(), *self._senseless_latent(), *self._senseless_cache()]

    def _senseless(self) -> list[str]:
        """Sentences about stages that do not fit together."""
        kind = {stage: type(getattr(self, stage)).__name__ for stage in MEMBERS}
        construction, recompute = self.construction.capabilities, self.recompute.capabilities
        exact, wrong = construction.exact and self.retrieval.capabilities.exact, []
        if exact and recompute.repairs:
            wrong.append(
                f"construction {kind['construction']} reuses exact rows only, so recompute {kind['recompute']} has "
                "nothing to repair: use recompute Nothing, or a construction of isolated units"
            )
        if construction.harvests and not recompute.reads_blocks:
            wrong.append(
                f"recompute {kind['recompute']} computes every row, so the rows that construction "
                f"{kind['construction']} harvests would never be read: use recompute Nothing"
            )
        if exact and not self.storage.capabilities.exact and not (construction.keeps_cache and self.packs is not None):
            wrong.append(
                f"storage {kind['storage']} changes what it stores, but construction {kind['construction']} promises "
                "exact rows: use storage Ram"
            )
        if self.layout not in self.construction.layouts:
            layouts = " or ".join(self.construction.layouts)
            wrong.append(
                f"construction {kind['construction']} builds prompts of layout {layouts}, not of layout {self.layout}: "
                f"use layout {layouts}, or construction Prefix"
            )
        return wrong

    def _senseless_latent(self) -> list[str]:
        """Sentences about a retrieval that chooses among stored blocks."""
        latent, construction, wrong = self.retrieval.capabilities, self.construction.capabilities, []
        kind, recompute = type(self.construction).__name__, type(self.recompute).__name__
        if latent.latent and not self.recompute.capabilities.reads_blocks:
            wrong.append(
                f"retrieval {type(self.retrieval).__name__} chooses among stored blocks, but recompute {recompute} "
                "reads none: use recompute Nothing"
            )
        if latent.latent and not construction.selectable:
            wrong.append(
                f"retrieval {type(self.retrieval).__name__} chooses among stored blocks and leaves out others, which "
                f"construction {kind} cannot do: use construction History, PerSegment or StaticDynamic"
            )
        if latent.per_layer and not construction.uniform:
            wrong.append(
                f"layers=each puts other blocks into the same rows at every layer, but those of construction {kind} "
                "differ in length or position: use construction History with cut=tokens and positions=decoupled"
            )
        if latent.per_layer and self.recompute.capabilities.repairs:
            wrong.append(
                f"recompute {recompute} repairs rows from layer to layer, but with layers=each a row is another token "
                "at each: use recompute Nothing"
            )
        return wrong

    def _senseless_cache(self) -> list[str]:
        """Sentences about caches that go on from turn to turn."""
        kind = {stage: type(getattr(self, stage)).__name__ for stage in MEMBERS}
        if not self.construction.capabilities.keeps_cache:
            if not self.retention.capabilities.evicts:
                return []
            return [
                f"retention {kind['retention']} drops rows of a cache that goes on from turn to turn, but construction "
                f"{kind['construction']} begins every prompt with an empty one: use construction Turns"
            ]
        wrong = []
        if not self.storage.capabilities.in_memory:
            wrong.append(
                f"construction {kind['construction']} keeps its rows in the session's cache, so storage "
                f"{kind['storage']} would stay empty: use storage Ram, or Quantized to pack the cache, or "
                "construction Prefix, which stores blocks"
            )
        if self.packs is not None and self.retention.counts_mass:
            wrong.append(
                f"retention {kind['retention']} counts attention weights, which attention over the packed rows of "
                f"storage {kind['storage']} never has at once: use storage Ram, or retention SnapKV"
            )
        if self.packs is not None and self.construction.survivors == "move":
            wrong.append(
                f"survivors=move computes keys again for other positions, but storage {kind['storage']} keeps them "
                "packed as they were: use survivors=stay, or storage Ram"
            )
        return wrong

"""Memory method: one stage of each of the six kinds, and the rules by which stages fit together."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING

from keep_agent.errors import ConfigError
from memory.config.choices import CONTEXTS, LAYOUTS
from memory.construction.base import Construction
from memory.kv_cache.block_store import BlockPool
from memory.kv_cache.pinned_blocks import PinnedPool
from memory.kv_cache.quantization import PackFormat
from memory.kv_cache.segment_index import SegmentIndex
from memory.retention.keep_all import KeepAll
from memory.segments.groups import Grouping
from memory.stages import Capabilities, Loading, Recompute, Retention, Retrieval, Storage
from memory.storage.ram import Ram

if TYPE_CHECKING:
    from memory.engine.base import CacheProvider, Engine

MEMBERS = {  # methods and attributes that identify a class of each stage
    "retrieval": ("select",),
    "construction": ("plan", "builder", "layouts"),
    "recompute": ("first", "narrow"),
    "loading": ("schedule",),
    "retention": ("keep",),
    "storage": ("get",),
}


@dataclass(frozen=True)
class MemoryMethod:
    """One stage of each kind, and settings of the whole method. Sessions of one method share its storage.

    ``layout``: ``memory`` rebuilds the prompt at every step, ``append`` only adds turns. ``context`` is the part of the
    context prefix that segments encoded alone attend to: ``none``, the start token (``bos``), or all (``system``).
    ``grouping`` should be equal in methods that are compared, so that all choose the same segments. ``pinned`` holds
    the blocks that sessions pin, for constructions that look segments up by their tokens.
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
        """Merged capabilities of the stages.

        ``exact`` depends on retrieval and retention and, if blocks are read, on construction and storage.
        """
        parts = [getattr(self, stage).capabilities for stage in MEMBERS]
        reads = self.recompute.capabilities.reads_blocks
        exact_parts = (self.retrieval, self.retention, *((self.construction, self.storage) if reads else ()))
        names = "moves_blocks", "harvests", "evicts", "per_layer", "repairs"
        merged = {name: any(getattr(part, name) for part in parts) for name in names}
        return Capabilities(
            exact=all(part.capabilities.exact for part in exact_parts),
            reads_blocks=reads,
            latent=self.retrieval.capabilities.latent,
            keeps_cache=reads and self.construction.capabilities.keeps_cache,
            **merged | {"moves_blocks": reads and merged["moves_blocks"]},
        )

    @property
    def packs(self) -> PackFormat | None:
        """Format in which the storage packs (quantizes) blocks; None: unpacked."""
        return getattr(self.storage, "format", None)

    @property
    def trained(self) -> str | None:
        """Hash of the retention stage's trained head; None without a head."""
        return getattr(self.retention, "trained", None)

    @cached_property
    def pool(self) -> BlockPool:
        return BlockPool(self.storage)

    @cached_property
    def segment_index(self) -> SegmentIndex:
        return SegmentIndex(self.pool)

    def cache_provider(self, engine: Engine) -> CacheProvider:
        """Return the provider of the sessions' caches on ``engine``; caches are packed if the storage packs blocks."""
        if engine.model_key not in self._providers:
            sizes = self.construction.block_size, self.construction.prefix_tokens
            self._providers[engine.model_key] = engine.cache_provider(self.packs, *sizes)
        return self._providers[engine.model_key]

    @cached_property
    def _providers(self) -> dict[str, CacheProvider]:
        return {}

    def _problems(self) -> list[str]:
        """Return an error text for each reason why this composition cannot work."""
        problems = [
            f"{stage} is {type(getattr(self, stage)).__name__}, which has no {name}: name a class of memory.{stage}"
            for stage, names in MEMBERS.items()
            for name in names
            if not hasattr(getattr(self, stage), name)
        ]
        for name, value, choices in (("layout", self.layout, LAYOUTS), ("context", self.context, CONTEXTS)):
            if value not in choices:
                problems.append(f"{name}={value!r} is unknown: use one of {', '.join(choices)}")
        return problems or [problem for conflict, problem in self._rules() if conflict]

    def _rules(self) -> Iterator[tuple[bool, str]]:
        """Yield (whether the rule is broken, its error text) for each rule by which stages fit together."""
        retrieval, construction, recompute, retention, storage = (
            f"{stage} {type(getattr(self, stage)).__name__}"
            for stage in ("retrieval", "construction", "recompute", "retention", "storage")
        )
        selects, builds, computes = (s.capabilities for s in (self.retrieval, self.construction, self.recompute))
        exact, layouts = builds.exact and selects.exact, " or ".join(self.construction.layouts)
        yield (
            exact and computes.repairs,
            f"{construction} reuses exact rows only, so {recompute} has nothing to repair: use recompute Nothing, or a "
            "construction that encodes segments alone, such as StaticDynamic",
        )
        yield (
            builds.harvests and not computes.reads_blocks,
            f"{recompute} computes every row, so the rows that {construction} harvests are never read: use "
            "recompute Nothing",
        )
        yield (
            exact and not self.storage.capabilities.exact and not (builds.keeps_cache and self.packs is not None),
            f"{storage} changes what it stores, but {construction} promises exact rows: use storage Ram",
        )
        yield (
            self.layout not in self.construction.layouts,
            f"{construction} builds prompts of layout {layouts}, not of layout {self.layout}: use layout {layouts}, or "
            "construction Prefix",
        )
        yield (
            selects.latent and not computes.reads_blocks,
            f"{retrieval} chooses among stored blocks, but {recompute} reads none: use recompute Nothing",
        )
        yield (
            selects.latent and not builds.selectable,
            f"{retrieval} chooses some of the stored blocks, but {construction} cannot leave out the rest: use "
            "construction History, PerSegment or StaticDynamic",
        )
        yield (
            selects.per_layer and not builds.uniform,
            "layers=each puts different blocks into the same rows at every layer, but blocks of "
            f"{construction} differ in length or position: use construction History with cut=tokens and "
            "positions=decoupled",
        )
        yield (
            selects.per_layer and computes.repairs,
            f"{recompute} repairs rows from layer to layer, but with layers=each a row is another token at each layer: "
            "use recompute Nothing",
        )
        if not builds.keeps_cache:
            yield (
                self.retention.capabilities.evicts,
                f"{retention} drops rows of a cache that continues from turn to turn, but {construction} begins every "
                "prompt with an empty cache: use construction Turns",
            )
            return
        yield (
            not self.storage.capabilities.in_memory,
            f"{construction} keeps its rows in the session's cache, so {storage} would stay empty: use storage Ram, or "
            "Quantized to pack the cache, or construction Prefix, which stores blocks",
        )
        yield (
            self.packs is not None and self.retention.counts_mass,
            f"{retention} needs all attention weights of a layer, but attention over the packed rows of {storage} "
            "computes them in parts: use storage Ram, or retention SnapKV",
        )
        yield (
            self.packs is not None and self.construction.survivors == "move",
            f"survivors=move rotates keys to new positions, but {storage} keeps keys packed at their first positions: "
            "use survivors=stay, or storage Ram",
        )

"""Report of one prefill: logits and cache, the units of the prompt, counts and times."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, replace
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch

    from memory.engine.base import KVCache, ReadCounts
    from memory.engine.trace import PrefillTrace
    from memory.prompt.layout import Layout
    from memory.segments.groups import Flip


@dataclass(slots=True)
class StepTimer:
    """Seconds by part of `Timings`: a prompt builder adds ``encode`` and ``ask``, the session all other times."""

    seconds: Counter[str] = field(default_factory=Counter)

    @contextmanager
    def part(self, name: str) -> Iterator[None]:
        began = time.perf_counter()
        try:
            yield
        finally:
            self.seconds[name] += time.perf_counter() - began


@dataclass(frozen=True, slots=True)
class UnitUse:
    """Unit of a prompt (tokens encoded together), and the source of its keys and values."""

    kind: str
    start: int  # prompt row
    tokens: int
    segments: tuple[str, ...]
    identity: str  # "" for rows without a block
    hit: bool  # its KV existed before this prompt


@dataclass(frozen=True, slots=True)
class Timings:
    """Milliseconds from the call of `MemorySession.prefill` to the logits, in parts that do not overlap."""

    update: float = 0.0  # updating the groups
    embed: float = 0.0  # the sentence encoder
    encode: float = 0.0  # encoding missing blocks and the context prefix
    retrieve: float = 0.0  # choosing segments, planning units, looking up blocks, laying out rows
    ask: float = 0.0  # the pass that computes only query states, by which blocks are chosen
    load: float = 0.0  # waiting for transfers
    prefill: float = 0.0

    @property
    def total(self) -> float:
        return sum(asdict(self).values())


@dataclass(frozen=True, slots=True)
class Counts:
    """Rows of one prompt (context, memory and query), and token-layers: rows computed, summed over layers."""

    layers: int
    prompt_tokens: int
    memory_tokens: int
    fresh_tokens: int  # rows whose keys and values did not exist before this prompt
    hit_tokens: int  # memory rows whose keys and values existed before this prompt
    invalidated_tokens: int  # stored rows of the last prompt that can no longer be used
    token_layers: int
    recomputed_token_layers: int  # those of memory rows that had a block, at layers 1 to the last
    encoded_token_layers: int  # for encoding blocks and the context prefix, and for query states (`ask`)
    loaded_bytes: int
    prefix_tokens: int = 0  # leading rows (context included) with KV of an earlier prompt that began alike
    live_tokens: int = 0  # rows in the cache after retention
    longest_tokens: int = 0  # length of the longest prompt counted here

    @property
    def computed_ratio(self) -> float:
        return self.token_layers / (self.prompt_tokens * self.layers)

    @property
    def recomputed_ratio(self) -> float:
        """Recomputed rows that had a block, summed over layers 1 to the last, per memory row and layer."""
        possible = self.memory_tokens * (self.layers - 1)
        return self.recomputed_token_layers / possible if possible else 0.0

    @property
    def kv_hit_rate(self) -> float:
        return self.hit_tokens / self.memory_tokens if self.memory_tokens else 0.0


@dataclass(frozen=True)
class Prefill:
    """Prefilled prompt, ready for scoring or decoding, with its counts and times."""

    logits: torch.Tensor  # (1, vocab) of the last row
    cache: KVCache
    trace: PrefillTrace
    layout: Layout
    units: tuple[UnitUse, ...]
    flips: tuple[Flip, ...]
    counts: Counts
    timings: Timings
    cold: bool  # True: no earlier prompt with ``persist`` since the session began or deleted its blocks
    after_ms: float  # milliseconds after the logits: copying rows from the cache to blocks, and eviction
    reads: ReadCounts  # rows read from the cache for this prompt, and for decoding and scoring after it so far

    def with_costs_of(self, earlier: Prefill) -> Prefill:
        """Return a copy with the costs of an ``earlier`` prefill added; ``reads`` are added in place."""
        self.reads.add(earlier.reads.raw, earlier.reads.live)
        counts = _sums(self.counts, earlier.counts) | {
            "layers": self.counts.layers,
            "live_tokens": self.counts.live_tokens,
            "longest_tokens": max(self.counts.longest_tokens, earlier.counts.longest_tokens),
        }
        return replace(
            self,
            flips=(*earlier.flips, *self.flips),
            counts=Counts(**counts),
            timings=Timings(**_sums(self.timings, earlier.timings)),
            cold=self.cold or earlier.cold,
            after_ms=self.after_ms + earlier.after_ms,
        )


def _sums(first: Timings | Counts, second: Timings | Counts) -> dict[str, Any]:
    """Add two dataclasses of one type field by field."""
    return {name: value + getattr(second, name) for name, value in asdict(first).items()}

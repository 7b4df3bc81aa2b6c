"""Report of one prefill: the engine's result, the units of the prompt, counts and times."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, fields, replace
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import numpy as np
    import torch
    from numpy.typing import NDArray

    from memory.engine.base import KVCache, PrefillResult, ReadCounts
    from memory.engine.trace import PrefillTrace
    from memory.prompt.layout import Layout, Placement
    from memory.segments.groups import Flip
    from memory.segments.sentence_encoder import SentenceEncoder


class StepTimer:
    """Seconds per part. A part inside another interrupts it, so nothing is counted twice."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}
        self._stack: list[str] = []
        self._since = 0.0

    @contextmanager
    def part(self, name: str) -> Iterator[None]:
        self._turn()
        self._stack.append(name)
        try:
            yield
        finally:
            self._turn()
            self._stack.pop()

    def add(self, name: str, seconds: float) -> None:
        """Count time that was measured elsewhere."""
        self.seconds[name] = self.seconds.get(name, 0.0) + seconds

    def _turn(self) -> None:
        now = time.perf_counter()
        if self._stack:
            self.add(self._stack[-1], now - self._since)
        self._since = now


class TimedEncoder:
    """Sentence encoder whose time is the timer's part ``embed``."""

    def __init__(self, inner: SentenceEncoder) -> None:
        self.name = inner.name
        self.timer = StepTimer()
        self._inner = inner

    def encode(self, texts: Sequence[str]) -> NDArray[np.float32]:
        with self.timer.part("embed"):
            return self._inner.encode(texts)


@dataclass(frozen=True, slots=True)
class UnitUse:
    """One unit in a prompt, and where its keys and values came from."""

    kind: str
    start: int  # prompt row
    tokens: int
    segments: tuple[str, ...]
    identity: str  # "" for rows that have no block
    hit: bool  # served from storage


@dataclass(frozen=True, slots=True)
class Timings:
    """Milliseconds from the observation to the logits of the last prompt row, in parts that add up."""

    update: float = 0.0  # groups follow the changed segments
    embed: float = 0.0  # the sentence encoder
    encode: float = 0.0  # blocks that were missing
    retrieve: float = 0.0  # choice, plan, look-up and layout
    ask: float = 0.0  # the pass that only makes query states, for a latent choice
    load: float = 0.0  # waiting for transfers
    prefill: float = 0.0

    def __add__(self, other: Timings) -> Timings:
        return Timings(**_sums(self, other))

    @property
    def total(self) -> float:
        return sum(getattr(self, field.name) for field in fields(self))


@dataclass(frozen=True, slots=True)
class Counts:
    """Rows and row-layers of one prompt; context, memory and query make up ``prompt_tokens``."""

    layers: int
    prompt_tokens: int
    memory_tokens: int
    fresh_tokens: int  # rows for which nothing usable was stored when the step began
    hit_tokens: int  # memory rows served from stored blocks
    invalidated_tokens: int  # rows of the last prompt's blocks that changes made useless
    token_layers: int
    recomputed_token_layers: int  # memory rows that had a block, layer 0 left out
    encoded_token_layers: int  # blocks, the context prefix, and the pass that only makes query states
    loaded_bytes: int
    prefix_tokens: int = 0  # rows in front whose KV an identical prefix left behind, the context's included
    live_tokens: int = 0  # rows that survive the turn
    longest_tokens: int = 0  # of the prompts counted here, the longest

    def behind(self, other: Counts) -> Counts:
        """Those of this prompt and of one that was asked aside before it; what stays are this one's rows."""
        longest = max(self.longest_tokens, other.longest_tokens)
        alone = {"layers": self.layers, "live_tokens": self.live_tokens, "longest_tokens": longest}
        return Counts(**(_sums(self, other) | alone))

    @property
    def computed_ratio(self) -> float:
        return self.token_layers / (self.prompt_tokens * self.layers)

    @property
    def recomputed_ratio(self) -> float:
        """Recomputed rows' share of memory rows x layers, but layer 0; rows without a block are fresh and not in it."""
        possible = self.memory_tokens * (self.layers - 1)
        return self.recomputed_token_layers / possible if possible else 0.0

    @property
    def kv_hit_rate(self) -> float:
        return self.hit_tokens / self.memory_tokens if self.memory_tokens else 0.0


def _sums(one: Timings | Counts, other: Timings | Counts) -> dict[str, Any]:
    """By field, of two of a kind."""
    return {name: value + getattr(other, name) for name, value in asdict(one).items()}


@dataclass(frozen=True)
class Prefill:
    """A prefilled prompt, ready for scoring or decoding, with everything that happened on the way."""

    result: PrefillResult
    layout: Layout
    units: tuple[UnitUse, ...]
    flips: tuple[Flip, ...]
    counts: Counts
    timings: Timings
    cold: bool  # the first prompt since the session was reset that leaves anything to the next
    after_ms: float  # harvesting and forgetting, after the logits
    reads: ReadCounts  # of the cache for this prompt and all that was decoded and scored behind it: grows

    def behind(self, other: Prefill) -> Prefill:
        """This prompt, with what another cost that had to be asked first; ``reads`` counts it from now on."""
        self.reads.note(other.reads.raw, other.reads.live)
        return replace(
            self,
            flips=(*other.flips, *self.flips),
            counts=self.counts.behind(other.counts),
            timings=other.timings + self.timings,
            cold=self.cold or other.cold,
            after_ms=self.after_ms + other.after_ms,
        )

    @property
    def logits(self) -> torch.Tensor:
        return self.result.logits

    @property
    def cache(self) -> KVCache:
        return self.result.cache

    @property
    def trace(self) -> PrefillTrace:
        return self.result.trace


def count(
    layout: Layout,
    units: tuple[UnitUse, ...],
    trace: PrefillTrace,
    context_tokens: int,
    encoded: int,
    invalidated: int,
    query_token_layers: int = 0,
    prefix: int = 0,
    live: int | None = None,
) -> Counts:
    """Count the rows and token-layers of a prompt.

    :param context_tokens: tokens encoded for its context
    :param encoded: tokens encoded for its memory
    :param invalidated: tokens of the last prompt's blocks that it could no longer use
    :param query_token_layers: of the pass that only makes query states
    :param prefix: its first rows, which an identical prefix left in a cache
    :param live: rows that survive the turn; all, if left out
    """
    layers = len(trace.active_rows)
    query, memory = layout.rows - layout.query, layout.query - layout.context
    context = context_tokens + int(layout.fresh[: layout.context].sum())
    hit = sum(unit.tokens for unit in units if unit.hit)
    return Counts(
        layers=layers,
        prompt_tokens=layout.rows,
        memory_tokens=memory,
        fresh_tokens=context + memory - hit + query,
        hit_tokens=hit,
        invalidated_tokens=invalidated,
        token_layers=sum(trace.active_rows),
        recomputed_token_layers=sum(trace.recomputed_rows[1:]),
        encoded_token_layers=(context_tokens + encoded) * layers + query_token_layers,
        loaded_bytes=sum(load.nbytes for load in trace.loads),
        prefix_tokens=prefix,
        live_tokens=layout.rows if live is None else live,
        longest_tokens=layout.rows,
    )


def uses(placements: Sequence[Placement]) -> tuple[UnitUse, ...]:
    return tuple(
        UnitUse(
            kind=p.unit.kind,
            start=p.start,
            tokens=len(p.unit.token_ids),
            segments=tuple(span.segment for span in p.unit.spans),
            identity=p.fused if p.block is None else p.block.identity,
            hit=p.hit,
        )
        for p in placements
    )

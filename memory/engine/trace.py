"""Trace of one prefill: rows per layer, transfers, and times in seconds of ``time.perf_counter``."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class LoadInterval:
    """Interval of one transfer job, which moves stored rows of layers ``[first, last)`` into the working cache."""

    first: int
    last: int
    start: float
    end: float
    nbytes: int
    runs: int = 0  # number of contiguous runs of rows


@dataclass(frozen=True, slots=True)
class ComputeInterval:
    """Interval of one part (``kind``) of a layer: attention, importance (choice of the next layer's rows), or mlp.

    If rows are chosen by attention mass alone, the choice runs before attention, whose time is in the ``mlp`` interval.
    """

    layer: int
    start: float
    end: float
    kind: str


@dataclass(frozen=True, slots=True)
class HopReport:
    """Choice of rows at ``layer`` by hops from segment to segment: number of hops, and the edges followed."""

    layer: int
    hops: int
    edges: tuple[tuple[int, int, float], ...]  # source segment (-1: query), target segment, attention mass


@dataclass
class PrefillTrace:
    """Counts and times of one prefill. Rows are prompt rows, including the context prefix and the query."""

    rows: int
    active_rows: list[int] = field(default_factory=list)  # per layer: number of computed rows
    recomputed_rows: list[int] = field(default_factory=list)  # per layer: number of computed rows with stored KV
    last_layer: tuple[int, ...] = ()  # per segment: last layer with an active row, -1 if none
    hops: list[HopReport] = field(default_factory=list)
    chosen_blocks: list[tuple[int, ...]] = field(default_factory=list)  # blocks chosen by each layer (`PerLayerRows`)
    loads: list[LoadInterval] = field(default_factory=list)
    computes: list[ComputeInterval] = field(default_factory=list)
    timings: dict[str, float] = field(default_factory=dict)  # load: time spent waiting for transfers; prefill: the rest

    @property
    def token_layers(self) -> int:
        return sum(self.active_rows)

    @property
    def computed_ratio(self) -> float:
        """Token-layers / (prompt rows x layers)."""
        return self.token_layers / (self.rows * len(self.active_rows))

    @property
    def loaded_bytes(self) -> int:
        return sum(load.nbytes for load in self.loads)

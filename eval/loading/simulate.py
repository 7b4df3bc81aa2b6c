"""Simulator of a prefill with a loading stage, from given times; it loads in the order of the engine's loader.

One worker computes. With ``beside_mlp`` a second one chooses the next layer's rows. Another worker moves slices (keys
and values of rows at one layer), earliest layer first. KEEP's two rules synchronise them (arXiv 2602.23592, section 5):
layer l + 1 starts after the choice at layer l and the transfer of l + 1's slices; a choice starts after attention.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import accumulate, islice, pairwise

import numpy as np
from numpy.typing import NDArray

from eval.loading.timeline import COMPUTE, IMPORTANCE, LINK, Event, Timeline
from eval.loading.workload import BEFORE, BESIDE, LayerWork
from keep_agent.errors import ConfigError
from memory.prompt.layout import Transfer
from memory.stages import Loading

COPIES = 2  # keys and values are stored separately


@dataclass(frozen=True)
class Link:
    """Link to the device. A job takes latency + copies * per_copy + bytes / bandwidth; a run of rows is two copies."""

    name: str
    bandwidth: float  # bytes per second; infinite if host and device share memory
    latency: float = 0.0  # seconds from the request to the first byte
    per_copy: float = 0.0  # seconds to start one contiguous copy

    def __post_init__(self) -> None:
        if not self.bandwidth > 0 or min(self.latency, self.per_copy) < 0:
            raise ConfigError(
                f"link {self.name}: {self.bandwidth:g} bytes/s, latency {self.latency:g} s and {self.per_copy:g} s per "
                "copy; use a bandwidth above 0, and times of 0 or more"
            )

    @property
    def shared(self) -> bool:
        """Whether the device reads host memory, so that nothing is transferred."""
        return math.isinf(self.bandwidth)

    def seconds(self, nbytes: float, runs: int) -> float:
        """Return the seconds of a job that moves ``runs`` runs (adjacent rows); an empty job takes no time."""
        return self.latency + COPIES * runs * self.per_copy + nbytes / self.bandwidth if runs else 0.0


RowRun = tuple[int, int, int]  # index of a placement, and rows [start, stop) of its block


class SimulatedTransfers:
    """Worker that moves requested slices without pause. A job moves slices of one layer; earlier layers come first.

    Adjacent runs are copied as one. Jobs are not preempted. A job for a layer after the current one ends with the run
    that completes ``chunk`` bytes, so that prefetching does not delay urgent requests for long.
    `submit` and `arrival` advance the clock, and must be called in chronological order.
    """

    def __init__(self, link: Link, layers: int, row_bytes: int, chunk: float = math.inf) -> None:
        self._link, self._row_bytes, self._chunk = link, row_bytes, chunk
        self._queues: list[list[RowRun]] = [[] for _ in range(layers)]
        self._arrival_times = [0.0] * layers
        self._current_layer, self._free_at = -1, 0.0
        self.jobs: list[Event] = []

    def submit(self, layer: int, moment: float, transfers: Iterable[Transfer]) -> None:
        """Request the transfers of ``layer`` at ``moment``; a job that starts at this moment includes them."""
        while self._free_at < moment and any(self._queues):
            self._run_job()
        self._current_layer, self._free_at = layer, max(self._free_at, moment)
        for transfer in transfers:
            for queue in self._queues[transfer.first : transfer.last]:
                queue.append((transfer.placement, *transfer.rows))

    def arrival(self, layer: int) -> float:
        """Return the time at which all requested slices of ``layer`` arrive if nothing else is requested."""
        while any(self._queues[: layer + 1]):
            self._run_job()
        return self._arrival_times[layer]

    def _run_job(self) -> None:
        layer = next(layer for layer, runs in enumerate(self._queues) if runs)
        runs = sorted(self._queues[layer])  # by row
        limit = math.inf if layer <= self._current_layer else self._chunk
        sizes = accumulate(_rows([run]) * self._row_bytes for run in runs)
        count = 1 + sum(size < limit for size in islice(sizes, len(runs) - 1))
        job, self._queues[layer] = runs[:count], runs[count:]
        nbytes = 0 if self._link.shared else _rows(job) * self._row_bytes
        copies = 1 + sum(a[0] != b[0] or a[2] != b[1] for a, b in pairwise(job))
        start, self._free_at = self._free_at, self._free_at + self._link.seconds(nbytes, copies)
        self._arrival_times[layer] = self._free_at
        self.jobs.append(Event(LINK, "load", layer, start, self._free_at, nbytes, copies))


def _rows(runs: Iterable[RowRun]) -> int:
    return sum(stop - start for _, start, stop in runs)


def simulate(loading: Loading, work: LayerWork, link: Link, chunk: float = math.inf) -> Timeline:
    """Simulate a prefill; prefetch jobs end after ``chunk`` bytes. Raises ConfigError if a row lacks its keys."""
    transfers = SimulatedTransfers(link, work.layers, work.row_bytes, chunk)
    covered = np.zeros(work.resting.shape, bool)
    events: list[Event] = []
    transfers.submit(0, 0.0, _scheduled(loading, work, 0, covered))
    due = 0.0
    for layer in range(work.layers):
        start = max(due, transfers.arrival(layer))
        events += _pieces(work, layer, start)
        known, due = start + work.seconds_to_choice(layer), start + work.seconds_to_end(layer)
        if layer + 1 < work.layers:
            moment = known if loading.overlaps else due
            transfers.submit(layer + 1, moment, _scheduled(loading, work, layer + 1, covered))
    return Timeline.sorted([*events, *transfers.jobs])


def _pieces(work: LayerWork, layer: int, start: float) -> list[Event]:
    """Return the events of a layer's attention, choice and MLP; a choice without duration is omitted."""
    attended, known = start + work.times.attention[layer], start + work.seconds_to_choice(layer)
    importance, mlp = work.times.importance[layer], work.times.mlp[layer]
    mlp_start = known if work.choice_point == BEFORE else attended
    lane = IMPORTANCE if work.choice_point == BESIDE else COMPUTE
    pieces = [
        Event(COMPUTE, "attention", layer, start, attended),
        Event(lane, "importance", layer, known - importance, known),
        Event(COMPUTE, "mlp", layer, mlp_start, mlp_start + mlp),
    ]
    return [piece for piece in pieces if importance or piece.kind != "importance"]


def _scheduled(loading: Loading, work: LayerWork, layer: int, covered: NDArray[np.bool_]) -> list[Transfer]:
    """Return the transfers of ``layer``, and mark their rows in ``covered`` (layers, rows). Raises ConfigError."""
    transfers = loading.schedule(work.layout, layer, work.active[layer], work.layers)
    for transfer in transfers:
        start = work.layout.placements[transfer.placement].start
        covered[transfer.first : transfer.last, start + transfer.rows[0] : start + transfer.rows[1]] = True
    missing = np.flatnonzero(work.resting[layer] & ~covered[layer])
    if missing.size:
        raise ConfigError(
            f"{type(loading).__name__} left {missing.size} rows without keys at layer {layer}, first row "
            f"{missing[0]}; every row that is not active must be transferred"
        )
    return transfers

"""Simulated link, and its worker that moves slices, earliest deadline first."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import accumulate, islice, pairwise

from eval.loading.timeline import LINK, Event
from keep_agent.errors import ConfigError
from memory.prompt.layout import Transfer

COPIES = 2  # keys and values are stored separately


@dataclass(frozen=True)
class Link:
    """Link; a job takes ``latency + copies * per_copy + bytes / bandwidth``, one copy per run of keys or values.

    :param bandwidth: bytes per second; infinite if host and device share memory
    :param latency: seconds from the request to the first byte
    :param per_copy: seconds to start one contiguous copy
    """

    name: str
    bandwidth: float
    latency: float = 0.0
    per_copy: float = 0.0

    def __post_init__(self) -> None:
        if not self.bandwidth > 0 or min(self.latency, self.per_copy) < 0:
            raise ConfigError(
                f"link {self.name}: {self.bandwidth:g} bytes/s, latency {self.latency:g} s and {self.per_copy:g} s per "
                "copy; use a bandwidth above 0, and times of 0 or more"
            )

    @property
    def shared(self) -> bool:
        """Whether the device reads host memory, so that nothing moves."""
        return math.isinf(self.bandwidth)

    def seconds(self, nbytes: float, runs: int) -> float:
        """Return the seconds of a job that moves ``runs`` runs of rows; an empty job takes no time."""
        return self.latency + COPIES * runs * self.per_copy + nbytes / self.bandwidth if runs else 0.0


Run = tuple[int, int, int]  # a placement, and rows [start, stop) of its unit


class SimulatedTransfers:
    """Worker that moves requested slices without pause, in one job per layer, the layer that is due first.

    Adjacent runs of rows are one copy. A job is not interrupted; so that early loads do not delay urgent requests, a
    job for a later layer is cut after the run that completes ``chunk`` bytes.
    `submit` and `arrival` advance the clock, and must be called in the order of time.
    """

    def __init__(self, link: Link, layers: int, row_bytes: int, chunk: float = math.inf) -> None:
        self._link, self._row_bytes, self._chunk = link, row_bytes, chunk
        self._queues: list[list[Run]] = [[] for _ in range(layers)]
        self._arrival_times = [0.0] * layers
        self._turn, self._free = -1, 0.0
        self.jobs: list[Event] = []

    def submit(self, layer: int, moment: float, transfers: Iterable[Transfer]) -> None:
        """Request the transfers of ``layer`` at ``moment``; a job that starts at this moment includes them."""
        while self._free < moment and any(self._queues):
            self._run_job()
        self._turn, self._free = layer, max(self._free, moment)
        for transfer in transfers:
            for queue in self._queues[transfer.first : transfer.last]:
                queue.append((transfer.placement, *transfer.rows))

    def arrival(self, layer: int) -> float:
        """Return the arrival time of all requested slices of ``layer`` if nothing else is requested before."""
        while any(self._queues[: layer + 1]):
            self._run_job()
        return self._arrival_times[layer]

    def _run_job(self) -> None:
        layer = next(layer for layer, runs in enumerate(self._queues) if runs)
        job = self._next_job(layer)
        nbytes = 0 if self._link.shared else _rows(job) * self._row_bytes
        copies = 1 + sum(a[0] != b[0] or a[2] != b[1] for a, b in pairwise(job))
        start, self._free = self._free, self._free + self._link.seconds(nbytes, copies)
        self._arrival_times[layer] = self._free
        self.jobs.append(Event(LINK, "load", layer, start, self._free, nbytes, copies))

    def _next_job(self, layer: int) -> list[Run]:
        """Return the runs of the next job in the order of rows."""
        runs = sorted(self._queues[layer])
        limit = math.inf if layer <= self._turn else self._chunk
        sizes = accumulate(_rows([run]) * self._row_bytes for run in runs)
        count = 1 + sum(size < limit for size in islice(sizes, len(runs) - 1))
        self._queues[layer] = runs[count:]
        return runs[:count]


def _rows(runs: Iterable[Run]) -> int:
    return sum(stop - start for _, start, stop in runs)

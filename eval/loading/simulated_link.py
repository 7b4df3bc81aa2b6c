"""The one worker that moves slices, earliest deadline first."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import accumulate, islice, pairwise

from eval.loading.timeline import LINK, Event
from keep_agent.errors import ConfigError
from memory.stages import Transfer

COPIES = 2  # keys and values lie apart


@dataclass(frozen=True)
class Link:
    """What a job takes: ``latency + copies * per_copy + bytes / bandwidth``, a copy per run of rows of keys or values.

    :param bandwidth: bytes per second that arrive; infinite where host and device share memory
    :param latency: seconds from the decision to the first byte
    :param per_copy: seconds to ask for one contiguous copy
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
        """Whether nothing has to move: the device reads host memory."""
        return math.isinf(self.bandwidth)

    def seconds(self, nbytes: float, runs: int) -> float:
        """Of one job that moves ``runs`` runs of rows; nothing takes no time."""
        return self.latency + COPIES * runs * self.per_copy + nbytes / self.bandwidth if runs else 0.0


Run = tuple[int, int, int]  # a placement, and rows [start, stop) of its unit


class SimulatedTransfers:
    """Moves what is asked for without a break: of all that waits, the layer that is due first, in one job.

    Runs of rows that touch are one copy, whenever they were asked for. A job is not interrupted: so that what nobody
    waits for yet does not stand in the way of what is asked for a moment later, one for a layer whose turn has not come
    may be cut, and ends with the run that completes ``chunk`` bytes.
    Two calls advance its clock, and both must come in the order of time: `submit` and `arrival`.
    """

    def __init__(self, link: Link, layers: int, row_bytes: int, chunk: float = math.inf) -> None:
        self._link, self._row_bytes, self._chunk = link, row_bytes, chunk
        self._waiting: list[list[Run]] = [[] for _ in range(layers)]
        self._arrived = [0.0] * layers
        self._turn, self._free = -1, 0.0
        self.jobs: list[Event] = []

    def submit(self, layer: int, moment: float, transfers: Iterable[Transfer]) -> None:
        """It is ``layer``'s turn to ask for transfers; a job that begins at this very ``moment`` takes them along."""
        while self._free < moment and any(self._waiting):
            self._move()
        self._turn, self._free = layer, max(self._free, moment)
        for transfer in transfers:
            for waiting in self._waiting[transfer.first : transfer.last]:
                waiting.append((transfer.placement, *transfer.rows))

    def arrival(self, layer: int) -> float:
        """When all slices of ``layer`` that were asked for are there, if nothing else is asked for until then."""
        while any(self._waiting[: layer + 1]):
            self._move()
        return self._arrived[layer]

    def _move(self) -> None:
        layer = next(layer for layer, runs in enumerate(self._waiting) if runs)
        job = self._take(layer)
        nbytes = 0 if self._link.shared else _rows(job) * self._row_bytes
        copies = 1 + sum(a[0] != b[0] or a[2] != b[1] for a, b in pairwise(job))
        start, self._free = self._free, self._free + self._link.seconds(nbytes, copies)
        self._arrived[layer] = self._free
        self.jobs.append(Event(LINK, "load", layer, start, self._free, nbytes, copies))

    def _take(self, layer: int) -> list[Run]:
        """The next job, in the order of rows."""
        runs = sorted(self._waiting[layer])
        limit = math.inf if layer <= self._turn else self._chunk
        sizes = accumulate(_rows([run]) * self._row_bytes for run in runs)
        count = 1 + sum(size < limit for size in islice(sizes, len(runs) - 1))
        self._waiting[layer] = runs[count:]
        return runs[:count]


def _rows(runs: Iterable[Run]) -> int:
    return sum(stop - start for _, start, stop in runs)

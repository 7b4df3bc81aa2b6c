"""The one worker that moves slices, earliest deadline first."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

from eval.overlap.timeline import LINK, Event
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


class Courier:
    """Moves what is asked for, one layer at a time and without a break: of all that waits, the layer that is due first.

    Two calls advance its clock, and both must come in the order of time: `submit` and `arrival`.
    """

    def __init__(self, link: Link, layers: int, row_bytes: int) -> None:
        self._link, self._row_bytes = link, row_bytes
        self._rows, self._runs = [0] * layers, [0] * layers  # that wait, per layer
        self._arrived = [0.0] * layers
        self._free = 0.0
        self.jobs: list[Event] = []

    def submit(self, moment: float, transfers: Iterable[Transfer]) -> None:
        """Transfers are asked for at ``moment``; a job that begins just then takes them along."""
        while self._free < moment and self._waiting():
            self._move()
        self._free = max(self._free, moment)
        for transfer in transfers:
            for layer in range(transfer.first, transfer.last):
                self._rows[layer] += transfer.rows[1] - transfer.rows[0]
                self._runs[layer] += 1

    def arrival(self, layer: int) -> float:
        """When all slices of ``layer`` that were asked for are there, if nothing else is asked for until then."""
        while any(self._runs[: layer + 1]):
            self._move()
        return self._arrived[layer]

    def _waiting(self) -> bool:
        return any(self._runs)

    def _move(self) -> None:
        layer = next(layer for layer, runs in enumerate(self._runs) if runs)
        nbytes, runs = self._rows[layer] * self._row_bytes, self._runs[layer]
        start, self._free = self._free, self._free + self._link.seconds(nbytes, runs)
        self._rows[layer] = self._runs[layer] = 0
        self._arrived[layer] = self._free
        self.jobs.append(Event(LINK, "load", layer, start, self._free, nbytes, runs))

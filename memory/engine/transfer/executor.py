"""Executes transfers: where the loading stage says what moves when, this says in what order, and keeps the times.

The link works on one layer at a time, the one that is due first. All slices of it that wait move in one job, unless its
turn is still to come: such a job ends after some bytes, so that what is asked for a moment later does not wait long.
`eval.overlap` plays the same rules against given times.
"""

from __future__ import annotations

import threading
import time
from collections import defaultdict, deque
from collections.abc import Iterable
from itertools import accumulate, groupby, islice

import numpy as np
import torch
from numpy.typing import NDArray

from keep_agent.errors import ConfigError
from memory.engine.trace import LoadInterval
from memory.engine.transfer.kv_transfer import KVTransfer, Run
from memory.engine.transfer.link import Transport
from memory.prompt.layout import Transfer

IN_FLIGHT = 2  # jobs on a CUDA stream at once: more would be an order that nothing urgent can change


class TransferExecutor:
    """One request's transfers. On CUDA intervals are those of issuing the copies, and layers wait for their events."""

    def __init__(self, mover: KVTransfer, layers: int, transport: Transport) -> None:
        self.mover, self.transport = mover, transport
        self.intervals: list[LoadInterval] = []
        self.waited = 0.0  # seconds
        self._covered = np.zeros((layers, mover.layout.rows), dtype=bool)
        self._pending: dict[int, list[Run]] = defaultdict(list)  # by layer
        self._events: dict[int, list[torch.cuda.Event]] = defaultdict(list)
        self._sent: deque[torch.cuda.Event] = deque()
        self._changed = threading.Condition()
        self._busy = False  # whether the link's thread works for this request
        self._current: int | None = None  # the layer it moves
        self._turn = 0  # the layer that asked last
        self._asked = [0.0] * layers  # when the layer's latest slices were
        self._free = 0.0  # when a throttled link is done with the job before, and its next one was asked for
        self._error: BaseException | None = None
        if transport.stream is not None:
            transport.stream.wait_stream(torch.cuda.current_stream())  # the cache's memory is ready from here on

    def submit(self, layer: int, transfers: Iterable[Transfer]) -> None:
        """Start the transfers that ``layer``'s turn brings, or put them in line."""
        wanted = list(transfers)
        spans = self.mover.spans([(transfer.placement, transfer.rows) for transfer in wanted])
        for transfer, (start, stop) in zip(wanted, spans, strict=True):
            self._covered[transfer.first : transfer.last, start:stop] = True
        if self.transport.link is None:
            started = time.perf_counter()
            for first, last, runs in _deepest(wanted):
                self._run(first, last, runs)
            self.waited += time.perf_counter() - started
            return
        with self._changed:
            self._turn, now = layer, time.perf_counter()
            for transfer in wanted:
                for due in range(transfer.first, transfer.last):
                    self._pending[due].append((transfer.placement, transfer.rows))
                    self._asked[due] = now
            if self._pending and not self._busy:
                self.transport.link.submit(self._drain)
                self._busy = True  # not before: a link that takes no more work never ends it

    def note(self, layer: int, start: float, nbytes: int) -> None:
        """Count a copy that ``layer`` itself made, and waited for, since ``start``."""
        end = time.perf_counter()
        self.intervals.append(LoadInterval(layer, layer + 1, start, end, nbytes))
        self.waited += end - start

    def cover(self, rows: slice) -> None:
        """Count rows as present at every layer (the context prefix)."""
        self._covered[:, rows] = True

    def wait(self, layer: int, inactive: NDArray[np.bool_] | None) -> None:
        """Return when all slices of ``layer`` are there.

        :param inactive: (rows,) bool, the rows that must have been transferred; None if all rows are active
        :raises ConfigError: if the loading stage forgot some of them.
        """
        started = time.perf_counter()
        if inactive is not None and (inactive > self._covered[layer]).any():
            missing = np.flatnonzero(inactive & ~self._covered[layer])
            raise ConfigError(
                f"the loading stage left {missing.size} rows without keys at layer {layer}, first row {missing[0]}; "
                "every row that is not active must be transferred."
            )
        with self._changed:
            self._changed.wait_for(lambda: self._error or (layer not in self._pending and self._current != layer))
        self._raise()
        for event in self._events.pop(layer, ()):
            torch.cuda.current_stream().wait_event(event)
        self.waited += time.perf_counter() - started

    def finish(self) -> None:
        """Wait for everything, so that nothing writes into the cache after the prefill."""
        with self._changed:
            self._changed.wait_for(lambda: not self._busy)
        self._raise()
        for layer in list(self._events):
            for event in self._events.pop(layer):
                torch.cuda.current_stream().wait_event(event)

    def cancel(self) -> None:
        """Let what waits be, and return when nothing writes into the cache any more."""
        with self._changed:
            self._pending.clear()
            self._changed.wait_for(lambda: not self._busy)
        if self.transport.stream is not None:
            self.transport.stream.synchronize()

    def _raise(self) -> None:
        if self._error is not None:
            raise self._error

    def _drain(self) -> None:
        """On the link's thread: job after job until none waits."""
        try:
            with torch.inference_mode(), torch.cuda.stream(self.transport.stream):  # without a stream: nothing
                while (layer := self._next()) is not None:
                    self._run(layer, layer + 1, self._job)
        except BaseException as error:
            with self._changed:
                self._error, self._current, self._busy = error, None, False
                self._pending.clear()
                self._changed.notify_all()

    def _next(self) -> int | None:
        """The layer that is due first among those that wait."""
        with self._changed:
            self._current = min(self._pending, default=None)
            if self._current is None:
                self._busy = False
            else:
                self._job = self._take(self._current)
                self._free = max(self._free, self._asked[self._current])
            self._changed.notify_all()
            return self._current

    def _take(self, layer: int) -> list[Run]:
        """Runs of rows, those that touch made one, in the order of rows."""
        runs, count = sorted(self._pending.pop(layer)), 0
        if layer > self._turn:
            sizes = accumulate(self.mover.row_bytes * (stop - start) for _, (start, stop) in runs)
            count = 1 + sum(size < self.transport.chunk for size in islice(sizes, len(runs) - 1))
            if count < len(runs):
                self._pending[layer] = runs[count:]
        return _joined(runs[: count or None])

    def _run(self, first: int, last: int, runs: list[Run]) -> None:
        """Move one job."""
        started = time.perf_counter()
        nbytes = self.mover.move(first, last, runs)
        if self.transport.throttle is not None:
            begun = started if self.transport.link is None else self._free
            self._free = self.transport.throttle.hold(begun, nbytes)
        if self.transport.stream is not None:
            event = self.transport.stream.record_event()
            self._events[first].append(event)
            self._sent.append(event)
            if len(self._sent) > IN_FLIGHT:
                self._sent.popleft().synchronize()
        self.intervals.append(LoadInterval(first, last, started, time.perf_counter(), nbytes, len(runs)))


def _deepest(transfers: list[Transfer]) -> list[tuple[int, int, list[Run]]]:
    """(first layer, last, runs): transfers of the same layers together, and layers of the same runs, too.

    Where nothing overlaps, a job per layer would only be more calls.
    """
    jobs: list[tuple[int, int, list[Run]]] = []
    for (first, last), group in groupby(transfers, key=lambda t: (t.first, t.last)):
        runs = _joined([(t.placement, t.rows) for t in group])
        if jobs and jobs[-1][1] == first and jobs[-1][2] == runs:
            first = jobs.pop()[0]
        jobs.append((first, last, runs))
    return jobs


def _joined(runs: list[Run]) -> list[Run]:
    """Runs that touch made one: one copy each."""
    found: list[Run] = []
    for place, (start, stop) in runs:
        if found and found[-1][0] == place and found[-1][1][1] == start:
            start = found.pop()[1][0]
        found.append((place, (start, stop)))
    return found

"""Executes transfers: where the loading stage says what moves when, this says how, and keeps the times.

Transfers of the same layers are moved together: one gather, one rotation, one copy per run of rows.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from concurrent.futures import Executor, Future
from dataclasses import dataclass, field
from itertools import groupby

import numpy as np
import torch
from numpy.typing import NDArray

from keep_agent.errors import ConfigError
from memory.engine.cache import DenseCache
from memory.engine.rope import Angles, RopeTables
from memory.engine.trace import LoadInterval
from memory.stages import Layout, Transfer


@dataclass
class Mover:
    """Copies block slices into a working cache, rotated to the prompt's positions."""

    layout: Layout
    cache: DenseCache
    rope: RopeTables
    angles: Angles  # of all prompt rows

    def move(self, group: Sequence[Transfer]) -> int:
        """Move transfers that share their layers; returns the bytes moved."""
        first, last = group[0].first, group[0].last
        keys, values = self._gather(group)
        rows = self._rows(group)
        angles = {key: (cos[:, rows], sin[:, rows]) for key, (cos, sin) in self.angles.items()}
        device = self.cache.k.device
        if device.type == "cuda" and keys.device.type == "cpu":
            keys, values = keys.pin_memory(), values.pin_memory()
        keys, values = keys.to(device, non_blocking=True), values.to(device, non_blocking=True)
        self._write(self.cache.k[first:last, 0], rows, self.rope.rotate_layers(keys, angles, first))
        self._write(self.cache.v[first:last, 0], rows, values)
        if self.cache.raw is not None:
            self._write(self.cache.raw[first:last, 0], rows, keys)
        return keys.nbytes + values.nbytes

    def _gather(self, group: Sequence[Transfer]) -> tuple[torch.Tensor, torch.Tensor]:
        places = self.layout.placements
        parts = [(places[t.placement].block, slice(t.first, t.last), slice(*t.rows)) for t in group]
        if any(block is None for block, _, _ in parts):
            raise ConfigError("the loading stage asks for a unit that has no block; fresh units are never loaded.")
        keys = [block.k[layers, :, rows] for block, layers, rows in parts]
        values = [block.v[layers, :, rows] for block, layers, rows in parts]
        return (torch.cat(keys, 2), torch.cat(values, 2)) if len(parts) > 1 else (keys[0], values[0])

    def _rows(self, group: Sequence[Transfer]) -> slice | torch.Tensor:
        """Prompt rows of the group in its order: a slice if they form one run."""
        spans = [(self.layout.placements[t.placement].start + t.rows[0], t.rows[1] - t.rows[0]) for t in group]
        start, stop = spans[0][0], spans[0][0]
        for first, length in spans:
            if first != stop:
                return torch.cat([torch.arange(a, a + n, device=self.cache.k.device) for a, n in spans])
            stop = first + length
        return slice(start, stop)

    @staticmethod
    def _write(target: torch.Tensor, rows: slice | torch.Tensor, values: torch.Tensor) -> None:
        if isinstance(rows, slice):
            target[:, :, rows] = values
        else:
            target.index_copy_(2, rows, values)


@dataclass
class Loader:
    """Runs a request's transfers beside the computation, in the order given.

    ``executor`` is one thread; without it transfers run where they are submitted. On CUDA the copies go to ``stream``
    and a layer waits for their events; intervals are then those of issuing the copies.
    """

    mover: Mover
    layers: int
    executor: Executor | None = None
    stream: torch.cuda.Stream | None = None
    intervals: list[LoadInterval] = field(default_factory=list)
    waited: float = 0.0

    def __post_init__(self) -> None:
        self._covered = np.zeros((self.layers, self.mover.layout.rows), dtype=bool)
        self._pending: list[tuple[int, int, Future[torch.cuda.Event | None]]] = []
        if self.stream is not None:
            self.stream.wait_stream(torch.cuda.current_stream())  # the cache's memory is ready from here on

    def submit(self, transfers: Iterable[Transfer]) -> None:
        """Start transfers; those with equal layers that follow each other are moved together."""
        for (first, last), group in groupby(transfers, key=lambda t: (t.first, t.last)):
            together = list(group)
            for transfer in together:
                start = self.mover.layout.placements[transfer.placement].start
                self._covered[first:last, start + transfer.rows[0] : start + transfer.rows[1]] = True
            self._start(first, last, together)

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
        for first, last, future in self._pending:
            if first <= layer < last:
                self._join(future)
        self.waited += time.perf_counter() - started

    def finish(self) -> None:
        """Wait for everything, so that nothing writes into the cache after the prefill."""
        for _, _, future in self._pending:
            self._join(future)

    def _start(self, first: int, last: int, group: list[Transfer]) -> None:
        if self.executor is not None:
            self._pending.append((first, last, self.executor.submit(self._run, first, last, group)))
            return
        started = time.perf_counter()
        self._run(first, last, group)
        self.waited += time.perf_counter() - started

    def _run(self, first: int, last: int, group: list[Transfer]) -> torch.cuda.Event | None:
        """Move one group; on CUDA returns the event of its end."""
        start, event = time.perf_counter(), None
        with torch.inference_mode(), torch.cuda.stream(self.stream):  # without a stream this does nothing
            nbytes = self.mover.move(group)
            if self.stream is not None:
                event = self.stream.record_event()
        self.intervals.append(LoadInterval(first, last, start, time.perf_counter(), nbytes))
        return event

    @staticmethod
    def _join(future: Future[torch.cuda.Event | None]) -> None:
        event = future.result()
        if event is not None:
            torch.cuda.current_stream().wait_event(event)

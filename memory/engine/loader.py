"""Executes transfers: where the loading stage says what moves when, this says how, and keeps the times.

Transfers of the same layers are moved together: one gather, one rotation, one copy per run of rows.
"""

from __future__ import annotations

import time
from collections.abc import Iterable
from concurrent.futures import Executor, Future
from dataclasses import dataclass, field
from itertools import groupby, pairwise

import numpy as np
import torch
from numpy.typing import NDArray

from keep_agent.errors import ConfigError
from memory.engine.cache import DenseCache
from memory.engine.rope import Angles, RopeTables
from memory.engine.trace import LoadInterval
from memory.stages import Layout, Transfer


@dataclass(frozen=True, slots=True)
class Group:
    """Transfers of the same layers ``[first, last)``."""

    first: int
    last: int
    transfers: tuple[Transfer, ...]

    def spans(self, layout: Layout) -> list[tuple[int, int]]:
        """Prompt rows (start, stop) of each transfer."""
        starts = [layout.placements[t.placement].start for t in self.transfers]
        return [(a + t.rows[0], a + t.rows[1]) for a, t in zip(starts, self.transfers, strict=True)]

    def continues(self, other: Group) -> bool:
        """Whether this moves the layers behind ``other``'s, of the same rows."""
        return (
            other.last == self.first
            and len(self.transfers) == len(other.transfers)
            and all(
                a.placement == b.placement and a.rows == b.rows
                for a, b in zip(self.transfers, other.transfers, strict=True)
            )
        )


def _deepest(groups: Iterable[Group]) -> list[Group]:
    """Groups that only cut the same rows into layers made one: where nothing overlaps, chunks are only calls."""
    joined: list[Group] = []
    for group in groups:
        if joined and group.continues(joined[-1]):
            group = Group(joined.pop().first, group.last, group.transfers)
        joined.append(group)
    return joined


@dataclass
class Mover:
    """Copies block slices into a working cache, rotated to the prompt's positions."""

    layout: Layout
    cache: DenseCache
    rope: RopeTables
    angles: Angles  # of all prompt rows

    def move(self, group: Group) -> int:
        """Move transfers that share their layers; returns the bytes moved."""
        first, last = group.first, group.last
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

    def _gather(self, group: Group) -> tuple[torch.Tensor, torch.Tensor]:
        places, layers = self.layout.placements, slice(group.first, group.last)
        parts = [(places[t.placement].block, slice(*t.rows)) for t in group.transfers]
        if any(block is None for block, _ in parts):
            raise ConfigError("the loading stage asks for a unit that has no block; fresh units are never loaded.")
        keys = [block.k[layers, :, rows] for block, rows in parts]
        values = [block.v[layers, :, rows] for block, rows in parts]
        return (torch.cat(keys, 2), torch.cat(values, 2)) if len(parts) > 1 else (keys[0], values[0])

    def _rows(self, group: Group) -> slice | torch.Tensor:
        """Prompt rows of the group in its order: a slice if they form one run."""
        spans = group.spans(self.layout)
        if all(stop == start for (_, stop), (start, _) in pairwise(spans)):
            return slice(spans[0][0], spans[-1][1])
        rows = np.concatenate([np.arange(start, stop) for start, stop in spans])
        return torch.from_numpy(rows).to(self.cache.k.device)

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
        groups = [Group(*layers, tuple(group)) for layers, group in groupby(transfers, key=lambda t: (t.first, t.last))]
        for group in groups if self.executor is not None else _deepest(groups):
            covered = np.zeros(self._covered.shape[1], dtype=bool)
            for start, stop in group.spans(self.mover.layout):
                covered[start:stop] = True
            self._covered[group.first : group.last] |= covered
            self._start(group)

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
        for first, last, future in self._pending:
            if first <= layer < last:
                self._join(future)
        self.waited += time.perf_counter() - started

    def finish(self) -> None:
        """Wait for everything, so that nothing writes into the cache after the prefill."""
        for _, _, future in self._pending:
            self._join(future)

    def _start(self, group: Group) -> None:
        if self.executor is not None:
            self._pending.append((group.first, group.last, self.executor.submit(self._run, group)))
            return
        started = time.perf_counter()
        self._run(group)
        self.waited += time.perf_counter() - started

    def _run(self, group: Group) -> torch.cuda.Event | None:
        """Move one group; on CUDA returns the event of its end."""
        start, event = time.perf_counter(), None
        with torch.inference_mode(), torch.cuda.stream(self.stream):  # without a stream this does nothing
            nbytes = self.mover.move(group)
            if self.stream is not None:
                event = self.stream.record_event()
        self.intervals.append(LoadInterval(group.first, group.last, start, time.perf_counter(), nbytes))
        return event

    @staticmethod
    def _join(future: Future[torch.cuda.Event | None]) -> None:
        event = future.result()
        if event is not None:
            torch.cuda.current_stream().wait_event(event)

"""Transfer executor: moves slices (rows of one layer) of blocks into a cache, in the order in which layers need them.

The thread of the link (the path to the device) always moves slices of the lowest layer that has queued ones. All slices
of the layer that is computed next move in one job; jobs for later layers are short, so that urgent ones wait little.
"""

from __future__ import annotations

import threading
import time
from collections import Counter, defaultdict, deque
from collections.abc import Iterable, Sequence
from concurrent.futures import Executor, ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import cached_property
from itertools import accumulate, groupby, islice, pairwise

import numpy as np
import torch
from numpy.typing import NDArray

from keep_agent.errors import ConfigError, check_choice
from memory.config.choices import IMPORTANCE, TRANSPORTS
from memory.engine.attention.function import Angles, RopeTables, at_rows
from memory.engine.trace import LoadInterval
from memory.engine.transfer.link import CHUNK, ChooserThread, Throttle, choose_device
from memory.kv_cache.dense import DenseCache, write_rows
from memory.kv_cache.packed_rows import PackedRows
from memory.prompt.layout import Layout, Transfer

Run = tuple[int, tuple[int, int]]  # number of a placement (place of a block in the prompt), block rows (start, stop)
Piece = torch.Tensor | PackedRows  # (layers, kv_heads, rows, head_dim)


BUFFERS = 3  # pinned buffers per name: one is filled while earlier ones are copied to the device


class Staging:
    """Staging buffers of transfers; each grows to its largest job, so that later jobs allocate nothing."""

    def __init__(self) -> None:
        self._buffers: dict[tuple[str, torch.dtype], torch.Tensor] = {}
        self._turns: Counter[str] = Counter()  # number of jobs copied from pinned memory, by name
        self._copied: dict[str, torch.cuda.Event] = {}  # by pinned buffer: event after the copy out of it

    def take(self, name: str, shape: tuple[int, ...], like: torch.Tensor, pinned: bool = False) -> torch.Tensor:
        """Return a buffer of ``shape``, valid until ``name`` is taken again; ``like`` gives dtype and device.

        :param pinned: use page-locked host memory
        """
        count, key = torch.Size(shape).numel(), (name, like.dtype)
        buffer = self._buffers.get(key)
        if buffer is None or buffer.numel() < count:
            device = torch.device("cpu") if pinned else like.device
            buffer = torch.empty(count, dtype=like.dtype, device=device, pin_memory=pinned)
            self._buffers[key] = buffer
        return buffer[:count].view(shape)

    def next_pinned(self, name: str, shape: tuple[int, ...], like: torch.Tensor) -> torch.Tensor:
        """Return the next of `BUFFERS` page-locked buffers of ``shape``, once the last copy out of it is done."""
        buffer = self._buffer(name)
        if (event := self._copied.pop(buffer, None)) is not None:
            event.synchronize()
        return self.take(buffer, shape, like, pinned=True)

    def record_copy_out(self, name: str) -> None:
        """Record that a copy out of the last `next_pinned` buffer was issued on the current stream."""
        self._copied[self._buffer(name)] = torch.cuda.current_stream().record_event()
        self._turns[name] += 1

    def _buffer(self, name: str) -> str:
        return f"{name} pinned {self._turns[name] % BUFFERS}"


@dataclass
class KVTransfer:
    """Copier of runs (consecutive rows of a block) into a cache. Packed rows are unpacked on the cache's device."""

    layout: Layout
    cache: DenseCache
    rope: RopeTables
    angles: Angles  # of all prompt rows
    staging: Staging

    def move(self, first: int, last: int, runs: Sequence[Run]) -> int:
        """Move ``runs`` of layers ``[first, last)``; returns the bytes moved."""
        keys, values = self._pieces("k", first, last, runs), self._pieces("v", first, last, runs)
        rows, nbytes = self._rows(runs), sum(piece.nbytes for piece in (*keys, *values))
        k, v = self.gather("k", keys), self.gather("v", values)
        rotated = self.rope.rotate_layers(k, at_rows(self.angles, rows), first)
        write_rows(self.cache.k[first:last, 0], rows, rotated)
        write_rows(self.cache.v[first:last, 0], rows, v)
        if self.cache.raw is not None:
            write_rows(self.cache.raw[first:last, 0], rows, k)
        return nbytes

    @cached_property
    def row_bytes(self) -> int:
        """Return the approximate bytes of one row of a layer, keys and values."""
        block = next((place.block for place in self.layout.placements if place.block is not None), None)
        return 0 if block is None else block.nbytes // (block.k.shape[0] * block.tokens)

    def spans(self, runs: Sequence[Run]) -> list[tuple[int, int]]:
        """Return the prompt rows (start, stop) of each run."""
        starts = [self.layout.placements[place].start for place, _ in runs]
        return [(at + rows[0], at + rows[1]) for at, (_, rows) in zip(starts, runs, strict=True)]

    def cut(self, stored: Piece, first: int, last: int, start: int, stop: int) -> Piece:
        """Select layers and rows of a block's keys or values, without unpacking them."""
        if isinstance(stored, PackedRows):
            return stored.narrow(2, start, stop - start).layers(first, last)
        return stored[first:last, :, start:stop]

    def gather(self, name: str, pieces: Sequence[Piece]) -> torch.Tensor:
        """Concatenate pieces on the cache's device, (layers, kv_heads, rows, head_dim).

        :param name: buffer of the result, which is valid until the next `gather` with this name
        """
        device = self.cache.k.device
        unpacked = [p.to(device)[:] if isinstance(p, PackedRows) else p for p in pieces]
        if len(unpacked) == 1 and unpacked[0].device == device:
            return unpacked[0]
        layers, heads, _, width = unpacked[0].shape
        bounds = [0, *accumulate(piece.shape[2] for piece in unpacked)]
        if device.type != "cuda":
            whole = self.staging.take(name, (layers, heads, bounds[-1], width), self.cache.k)
            return torch.cat([piece.to(device) for piece in unpacked], 2, out=whole)
        # rows before heads, as blocks in pinned memory: a run of a layer's rows is contiguous
        whole = self.staging.take(name, (layers, bounds[-1], heads, width), self.cache.k)
        if all(piece.device.type == "cpu" for piece in unpacked):
            whole.copy_(self._join_pinned(name, unpacked), non_blocking=True)
            self.staging.record_copy_out(name)
        else:
            torch.cat([piece.to(device).transpose(1, 2) for piece in unpacked], 1, out=whole)
        return whole.transpose(1, 2)

    def _join_pinned(self, name: str, pieces: Sequence[torch.Tensor]) -> torch.Tensor:
        """Concatenate ``pieces`` in pinned host memory, (layers, rows, kv_heads, head_dim).

        They then need one copy to the device. With one copy per block of 40 tokens, issuing them would take most time.
        """
        rows = [piece.transpose(1, 2) for piece in pieces]
        if len(rows) == 1 and rows[0].is_pinned():
            return rows[0]
        layers, _, heads, width = rows[0].shape
        shape = (layers, sum(piece.shape[1] for piece in rows), heads, width)
        return torch.cat(rows, 1, out=self.staging.next_pinned(name, shape, self.cache.k))

    def _pieces(self, side: str, first: int, last: int, runs: Sequence[Run]) -> list[Piece]:
        pieces = []
        for place, (start, stop) in runs:
            block = self.layout.placements[place].block
            if block is None:
                raise ConfigError("the loading stage requests rows without a block: leave fresh rows out.")
            pieces.append(self.cut(getattr(block, side), first, last, start, stop))
        return pieces

    def _rows(self, runs: Sequence[Run]) -> slice | torch.Tensor:
        """Return the prompt rows of the runs, in their order: a slice if they are contiguous."""
        spans = self.spans(runs)
        if all(stop == start for (_, stop), (start, _) in pairwise(spans)):
            return slice(spans[0][0], spans[-1][1])
        rows = np.concatenate([np.arange(start, stop) for start, stop in spans])
        return torch.from_numpy(rows).to(self.cache.k.device)


IN_FLIGHT = 2  # maximum number of jobs queued on a CUDA stream: more would delay urgent jobs


@dataclass(frozen=True)
class Transport:
    """Threads and streams of an engine's transfers.

    ``link`` runs transfers in one thread (None: they run synchronously in the calling thread), on the CUDA stream
    ``stream``. A job for a later layer moves about ``chunk`` bytes. ``chooser`` chooses rows in parallel with a layer's
    MLP; without it rows are chosen before the MLP.
    """

    link: Executor | None = None
    stream: torch.cuda.Stream | None = None
    throttle: Throttle | None = None
    chooser: ChooserThread | None = None
    chunk: float = CHUNK
    staging: Staging = field(default_factory=Staging)

    @classmethod
    def of(
        cls, kind: str, device: torch.device, throttle: Throttle | None, importance: str, chunk: float | None = None
    ) -> Transport:
        """Make the transport of ``kind``; ``auto`` is a stream on CUDA, a thread for a throttled link, else inline.

        :raises ConfigError: an unknown name, or a kind that does not work on ``device``
        """
        if chunk is None:
            chunk = CHUNK if throttle is None else throttle.chunk
        if chunk <= 0:
            raise ConfigError(f"chunk={chunk} is not a size of transfer jobs: use more than 0 bytes")
        check_choice("engine.importance", importance, IMPORTANCE)
        check_choice("engine.transport", kind, TRANSPORTS)
        if kind == "auto":
            kind = "stream" if device.type == "cuda" else "inline" if throttle is None else "thread"
        if kind == "stream" and device.type != "cuda":
            raise ConfigError(f"transport {kind!r} does not work on {device}; use inline or thread: stream needs CUDA.")
        link = None if kind == "inline" else ThreadPoolExecutor(1, "link", choose_device, (device,))
        stream = torch.cuda.Stream(device) if kind == "stream" else None
        return cls(link, stream, throttle, ChooserThread(device) if importance == "beside" else None, chunk)

    def close(self) -> None:
        """Stop the threads."""
        if self.link is not None:
            self.link.shutdown()
        if self.chooser is not None:
            self.chooser.close()


class TransferExecutor:
    """Transfers of one prefill. On CUDA ``intervals`` measure only the time to issue copies, not the copies.

    :param present: rows that need no transfer: context prefix, rows with other blocks per layer, units encoded here
    """

    def __init__(self, mover: KVTransfer, layers: int, transport: Transport, present: Iterable[slice] = ()) -> None:
        self.mover, self.transport = mover, transport
        self.intervals: list[LoadInterval] = []
        self.wait_seconds = 0.0
        self._covered = np.zeros((layers, mover.layout.rows), dtype=bool)
        for rows in present:
            self._covered[:, rows] = True
        self._pending: dict[int, list[Run]] = defaultdict(list)  # by layer
        self._events: dict[int, list[torch.cuda.Event]] = defaultdict(list)
        self._sent: deque[torch.cuda.Event] = deque()
        self._changed = threading.Condition()
        self._busy = False  # whether the link's thread runs jobs of this prefill
        self._current: int | None = None  # the layer that is being moved
        self._last_submitted = 0  # the layer that last submitted transfers
        self._submitted_at = [0.0] * layers  # by layer: time of the latest submission for it
        self._link_free_at = 0.0  # time at which a throttled link can start its next job
        self._error: BaseException | None = None
        if transport.stream is not None:
            transport.stream.wait_stream(torch.cuda.current_stream())  # the cache must be allocated first

    def submit(self, layer: int, transfers: Sequence[Transfer]) -> None:
        """Queue the transfers scheduled at ``layer`` for the link's thread; without a thread, run them."""
        spans = self.mover.spans([(transfer.placement, transfer.rows) for transfer in transfers])
        for transfer, (start, stop) in zip(transfers, spans, strict=True):
            self._covered[transfer.first : transfer.last, start:stop] = True
        if self.transport.link is None:
            started = time.perf_counter()
            for first, last, runs in _merge_layers(transfers):
                self._run(first, last, runs)
            self.wait_seconds += time.perf_counter() - started
            return
        with self._changed:
            self._last_submitted, moment = layer, time.perf_counter()
            for transfer in transfers:
                for due in range(transfer.first, transfer.last):
                    self._pending[due].append((transfer.placement, transfer.rows))
                    self._submitted_at[due] = moment
            if self._pending and not self._busy:
                self.transport.link.submit(self._drain)
                self._busy = True  # set last: submit may raise

    def record_copy(self, layer: int, start: float, nbytes: int) -> None:
        """Record a synchronous copy for ``layer`` that lasted from ``start`` until now."""
        end = time.perf_counter()
        self.intervals.append(LoadInterval(layer, layer + 1, start, end, nbytes))
        self.wait_seconds += end - start

    def wait(self, layer: int, inactive: NDArray[np.bool_] | None) -> None:
        """Wait until all slices of ``layer`` are loaded.

        :param inactive: (rows,) bool, the rows that must have been transferred; None if all rows are active
        :raises ConfigError: the loading stage omitted some of these rows
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
        self.wait_seconds += time.perf_counter() - started

    def finish(self) -> None:
        """Wait for all transfers, so that nothing writes into the cache after the prefill."""
        with self._changed:
            self._changed.wait_for(lambda: not self._busy)
        self._raise()
        for layer in list(self._events):
            for event in self._events.pop(layer):
                torch.cuda.current_stream().wait_event(event)

    def cancel(self) -> None:
        """Drop queued transfers, and wait until nothing writes into the cache."""
        with self._changed:
            self._pending.clear()
            self._changed.wait_for(lambda: not self._busy)
        if self.transport.stream is not None:
            self.transport.stream.synchronize()

    def _raise(self) -> None:
        if self._error is not None:
            raise self._error

    def _drain(self) -> None:
        """Run queued jobs, on the link's thread."""
        try:
            with torch.inference_mode(), torch.cuda.stream(self.transport.stream):  # no effect without a stream
                while (layer := self._next()) is not None:
                    self._run(layer, layer + 1, self._job)
        except BaseException as error:
            with self._changed:
                self._error, self._current, self._busy = error, None, False
                self._pending.clear()
                self._changed.notify_all()

    def _next(self) -> int | None:
        """Take the next job from the first layer with queued transfers; returns that layer."""
        with self._changed:
            self._current = min(self._pending, default=None)
            if self._current is None:
                self._busy = False
            else:
                self._job = self._take(self._current)
                self._link_free_at = max(self._link_free_at, self._submitted_at[self._current])
            self._changed.notify_all()
            return self._current

    def _take(self, layer: int) -> list[Run]:
        """Take all queued runs of a layer, or about ``chunk`` bytes of them for a later layer; joins adjacent runs."""
        runs, count = sorted(self._pending.pop(layer)), 0
        if layer > self._last_submitted:
            sizes = accumulate(self.mover.row_bytes * (stop - start) for _, (start, stop) in runs)
            count = 1 + sum(size < self.transport.chunk for size in islice(sizes, len(runs) - 1))
            if count < len(runs):
                self._pending[layer] = runs[count:]
        return _merge_adjacent(runs[: count or None])

    def _run(self, first: int, last: int, runs: list[Run]) -> None:
        started = time.perf_counter()
        nbytes = self.mover.move(first, last, runs)
        if self.transport.throttle is not None:
            start = started if self.transport.link is None else self._link_free_at
            self._link_free_at = self.transport.throttle.delay(start, nbytes)
        if self.transport.stream is not None:
            event = self.transport.stream.record_event()
            self._events[first].append(event)
            self._sent.append(event)
            if len(self._sent) > IN_FLIGHT:
                self._sent.popleft().synchronize()
        self.intervals.append(LoadInterval(first, last, started, time.perf_counter(), nbytes, len(runs)))


def _merge_layers(transfers: Sequence[Transfer]) -> list[tuple[int, int, list[Run]]]:
    """Group transfers into few jobs (first layer, layer after the last, runs), for a transport without a thread."""
    jobs: list[tuple[int, int, list[Run]]] = []
    for (first, last), group in groupby(transfers, key=lambda t: (t.first, t.last)):
        runs = _merge_adjacent([(t.placement, t.rows) for t in group])
        if jobs and jobs[-1][1] == first and jobs[-1][2] == runs:
            first = jobs.pop()[0]
        jobs.append((first, last, runs))
    return jobs


def _merge_adjacent(runs: list[Run]) -> list[Run]:
    joined: list[Run] = []
    for place, (start, stop) in runs:
        if joined and joined[-1][0] == place and joined[-1][1][1] == start:
            start = joined.pop()[1][0]
        joined.append((place, (start, stop)))
    return joined

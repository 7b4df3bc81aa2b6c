"""Per-layer retrieval (MemArt): every layer chooses its blocks; those that were not prefetched are then fetched."""

from __future__ import annotations

import time
from collections.abc import Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field

import torch

from memory.engine.trace import LoadInterval
from memory.engine.transfer.executor import TransferExecutor
from memory.kv_cache.block import KVBlock
from memory.stages import PerLayerRows

KV = tuple[torch.Tensor, torch.Tensor]


@dataclass(frozen=True, slots=True)
class PrefetchedChoice:
    """Predicted choice of ``layer``: blocks whose rows of this layer are being prefetched."""

    layer: int
    numbers: tuple[int, ...]
    transfer: Future[KV]
    event: torch.cuda.Event | None


@dataclass
class PerLayerRetrieval:
    """MemArt's per-layer selection. A transfer thread, if any, prefetches its blocks at the next layer, too."""

    layer_rows: PerLayerRows
    loader: TransferExecutor
    layers: int
    _prefetched: PrefetchedChoice | None = field(default=None, init=False)

    def take(self, layer: int, query: torch.Tensor) -> tuple[tuple[int, ...], KV]:
        """Choose blocks for ``query`` (heads, rows, head_dim).

        Returns their numbers, and unrotated keys and values (1, kv_heads, rows, head_dim) on the device.
        """
        numbers = self.layer_rows.choose(layer, query)
        began, nbytes, prefetched = time.perf_counter(), 0, self._prefetched
        present, rows = (), []
        if prefetched is not None and prefetched.layer == layer:
            present, rows = prefetched.numbers, [prefetched.transfer.result()]
            if prefetched.event is not None:
                torch.cuda.current_stream().wait_event(prefetched.event)
        missing = tuple(number for number in numbers if number not in present)
        if missing:
            rows_read, nbytes = self._fetch(layer, self._blocks(missing), "missing")
            rows.append(rows_read)
        self.loader.record_copy(layer, began, nbytes)
        kv = rows[0] if numbers == (*present, *missing) else _ordered(numbers, (*present, *missing), rows)
        self._prefetch(layer + 1, numbers)
        return numbers, kv

    def _prefetch(self, layer: int, numbers: tuple[int, ...]) -> None:
        transport, self._prefetched = self.loader.transport, None
        if transport.link is None or layer == self.layers or not numbers:
            return
        blocks, event = self._blocks(numbers), None
        if transport.stream is not None:
            transport.stream.wait_stream(torch.cuda.current_stream())  # whose work may still read the buffer
            event = torch.cuda.Event()

        def work() -> KV:
            with torch.inference_mode(), torch.cuda.stream(transport.stream):
                began = time.perf_counter()
                rows_read, nbytes = self._fetch(layer, blocks, f"guess {layer % 2}")
                if event is not None:
                    event.record()
                self.loader.intervals.append(LoadInterval(layer, layer + 1, began, time.perf_counter(), nbytes))
                return rows_read

        self._prefetched = PrefetchedChoice(layer, numbers, transport.link.submit(work), event)

    def _blocks(self, numbers: Sequence[int]) -> list[KVBlock]:
        return [self.layer_rows.block(number) for number in numbers]

    def _fetch(self, layer: int, blocks: Sequence[KVBlock], name: str) -> tuple[KV, int]:
        """Gather keys and values of ``blocks`` at ``layer``; returns them and the bytes moved."""
        began, mover = time.perf_counter(), self.loader.mover
        stored = [block.k for block in blocks], [block.v for block in blocks]
        sides = [[mover.cut(x, layer, layer + 1, 0, x.shape[2]) for x in side] for side in stored]
        nbytes = sum(piece.nbytes for side in sides for piece in side)
        keys, values = (mover.gather(f"{name} {side}", pieces) for side, pieces in zip("kv", sides, strict=True))
        if self.loader.transport.throttle is not None:
            self.loader.transport.throttle.delay(began, nbytes)
        return (keys, values), nbytes


def _ordered(numbers: Sequence[int], present: Sequence[int], rows: Sequence[KV]) -> KV:
    """Return the rows of the blocks ``numbers``, in that order, from ``rows`` of the blocks ``present``."""
    index = torch.tensor([present.index(number) for number in numbers], device=rows[0][0].device)
    keys, values = (torch.cat(side, 2) if len(side) > 1 else side[0] for side in zip(*rows, strict=True))
    size = keys.shape[2] // len(present)
    keys, values = (x.unflatten(2, (-1, size)).index_select(2, index).flatten(2, 3) for x in (keys, values))
    return keys, values

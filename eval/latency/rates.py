"""What the machine can do at its best, measured between the steps: products, copies, and copies onto the device."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch.nn import functional

ROWS = {"cpu": 1024, "cuda": 4096}  # of the product; it has twice as many inner and outer columns
COPY_BYTES = {"cpu": 128 << 20, "cuda": 256 << 20}  # bytes
REPEATS = {"cuda": 8}  # so that starting the work does not count


@dataclass(frozen=True, slots=True)
class Rates:
    """Per second: floating-point operations, bytes read or written on the device, bytes from pinned host memory."""

    flops: float
    moved: float
    carried: float | None = None  # None where host and device share memory: then what is loaded is moved

    @classmethod
    def median(cls, samples: Sequence[Rates]) -> Rates:
        carried = [rates.carried for rates in samples if rates.carried is not None]
        return cls(
            statistics.median(rates.flops for rates in samples),
            statistics.median(rates.moved for rates in samples),
            statistics.median(carried) if carried else None,
        )


class RateMeter:
    """Takes one sample at a time, with torch's present number of threads, in the model's dtype."""

    def __init__(self, device: torch.device, dtype: torch.dtype, link: float | None = None) -> None:
        """:param link: gigabytes per second of a link that is held back on purpose"""
        self._device, self._link = device, link
        self._repeats = REPEATS.get(device.type, 1)
        rows, size = ROWS.get(device.type, 1024), COPY_BYTES.get(device.type, 128 << 20)
        self._x = torch.randn(rows, 2 * rows, device=device).to(dtype)
        self._w = torch.randn(2 * rows, 2 * rows, device=device).to(dtype)
        self._source, self._target = (torch.ones(size, dtype=torch.uint8, device=device) for _ in range(2))
        self._pinned = torch.ones(size, dtype=torch.uint8, pin_memory=True) if device.type == "cuda" else None
        self.sample()  # what the first product sets up

    @torch.inference_mode()
    def sample(self) -> Rates:
        product = self._seconds(lambda: functional.linear(self._x, self._w))
        copy = self._seconds(lambda: self._target.copy_(self._source))
        carried = None if self._link is None else 1e9 * self._link
        if carried is None and self._pinned is not None:
            carried = self._pinned.numel() / self._seconds(lambda: self._target.copy_(self._pinned, non_blocking=True))
        flops = 2 * self._x.shape[0] * self._w.numel()
        return Rates(flops / product, 2 * self._source.numel() / copy, carried)

    def _seconds(self, work: Callable[[], object]) -> float:
        self._settle()
        began = time.perf_counter()
        for _ in range(self._repeats):
            work()
        self._settle()
        return (time.perf_counter() - began) / self._repeats

    def _settle(self) -> None:
        if self._device.type == "cuda":
            torch.cuda.synchronize(self._device)

"""Peak rates of the machine, measured between the steps: matrix products, copies, and copies to the device."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch.nn import functional

ROWS = {"cpu": 1024, "cuda": 4096}  # of a matrix product with twice as many inner and outer columns
COPY_BYTES = {"cpu": 128 << 20, "cuda": 256 << 20}  # bytes
REPEATS = {"cuda": 8}  # kernels per sample, so that launch time does not count


@dataclass(frozen=True, slots=True)
class Rates:
    """Rates per second: floating-point operations, bytes of device memory, bytes from pinned host memory."""

    flops: float
    bandwidth: float
    link: float | None = None  # None if host and device share memory

    @classmethod
    def median(cls, samples: Sequence[Rates]) -> Rates:
        link = [rates.link for rates in samples if rates.link is not None]
        return cls(
            statistics.median(rates.flops for rates in samples),
            statistics.median(rates.bandwidth for rates in samples),
            statistics.median(link) if link else None,
        )


class RateMeter:
    """Meter of the rates in the model's dtype, with torch's current number of threads."""

    def __init__(self, device: torch.device, dtype: torch.dtype, link_gigabytes: float | None = None) -> None:
        """:param link_gigabytes: gigabytes per second of a throttled link"""
        self._device, self._link_gigabytes = device, link_gigabytes
        self._repeats = REPEATS.get(device.type, 1)
        rows, size = ROWS.get(device.type, 1024), COPY_BYTES.get(device.type, 128 << 20)
        self._x = torch.randn(rows, 2 * rows, device=device).to(dtype)
        self._w = torch.randn(2 * rows, 2 * rows, device=device).to(dtype)
        self._source, self._target = (torch.ones(size, dtype=torch.uint8, device=device) for _ in range(2))
        self._pinned = torch.ones(size, dtype=torch.uint8, pin_memory=True) if device.type == "cuda" else None
        self.sample()  # exclude the setup of the first product

    @torch.inference_mode()
    def sample(self) -> Rates:
        product = self._seconds(lambda: functional.linear(self._x, self._w))
        copy = self._seconds(lambda: self._target.copy_(self._source))
        link = None if self._link_gigabytes is None else 1e9 * self._link_gigabytes
        if link is None and self._pinned is not None:
            link = self._pinned.numel() / self._seconds(lambda: self._target.copy_(self._pinned, non_blocking=True))
        flops = 2 * self._x.shape[0] * self._w.numel()
        return Rates(flops / product, 2 * self._source.numel() / copy, link)

    def _seconds(self, work: Callable[[], object]) -> float:
        self._settle()
        start = time.perf_counter()
        for _ in range(self._repeats):
            work()
        self._settle()
        return (time.perf_counter() - start) / self._repeats

    def _settle(self) -> None:
        if self._device.type == "cuda":
            torch.cuda.synchronize(self._device)

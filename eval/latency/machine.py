"""Machine on which times are measured: its description, its peak rates, and the peak memory of a piece of work."""

from __future__ import annotations

import ctypes
import os
import platform
import statistics
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import torch
from torch.nn import functional


@dataclass(frozen=True, slots=True)
class Machine:
    """Hardware and library versions, stored with every result."""

    cpu: str
    cores: int  # available to this process
    threads: int  # of torch
    gpu: str | None
    system: str
    python: str
    torch: str
    transformers: str

    @property
    def text(self) -> str:
        gpu = f", {self.gpu}" if self.gpu else ""
        return f"{self.cpu}, {self.cores} cores, {self.threads} torch threads{gpu}, torch {self.torch}"


def this_machine() -> Machine:
    import transformers

    lines: list[str] = []
    with suppress(OSError):
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    names = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return Machine(
        cpu=next(names, platform.processor() or platform.machine()),
        cores=len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1,
        threads=torch.get_num_threads(),
        gpu=torch.cuda.get_device_name() if torch.cuda.is_available() else None,
        system=f"{platform.system()} {platform.release()}",
        python=platform.python_version(),
        torch=torch.__version__,
        transformers=transformers.__version__,
    )


ROWS = {"cpu": 1024, "cuda": 4096}  # rows of x in the product x w; x has twice as many columns, w is square
COPY_BYTES = {"cpu": 128 << 20, "cuda": 256 << 20}  # size of a copy
REPEATS = {"cuda": 8}  # calls per sample, so that launch time hardly counts


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
        self.sample()  # discarded: the first sample includes set-up

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


STATUS, CLEAR_REFS = Path("/proc/self/status"), Path("/proc/self/clear_refs")
RESET_MARK = "5"  # resets the high-water mark of the resident set (Linux)


class MemoryPeak:
    """Growth of memory to its peak: of the allocator on CUDA, of the resident set on the CPU (Linux only).

    On the CPU the constructor first returns freed memory to the system, so that the work cannot reuse it. This
    causes page faults, so a step is either timed or measured here, never both.
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device if device.type == "cuda" else None
        self._start: int | None = None
        if self._device is not None:
            torch.cuda.reset_peak_memory_stats(self._device)
            self._start = torch.cuda.memory_allocated(self._device)
            return
        with suppress(OSError, AttributeError):
            ctypes.CDLL(None).malloc_trim(0)
        with suppress(OSError):
            CLEAR_REFS.write_text(RESET_MARK)
            self._start = _status("VmRSS")

    def growth(self) -> int | None:
        """Return the peak growth in bytes since the constructor; None if the system does not report it."""
        if self._start is None:
            return None
        top = torch.cuda.max_memory_allocated(self._device) if self._device is not None else _status("VmHWM")
        return max(0, top - self._start)


def _status(key: str) -> int:
    line = next(line for line in STATUS.read_text().splitlines() if line.startswith(f"{key}:"))
    return 1024 * int(line.split()[1])

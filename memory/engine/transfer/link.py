"""Simulated bandwidth of the link that loads blocks, and the thread that chooses rows during an MLP."""

from __future__ import annotations

import time
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch

from keep_agent.errors import ConfigError

CHUNK = 1e6  # bytes of a short job: 20 microseconds on a link of 50 GB/s, twice its latency


def choose_device(device: torch.device | None) -> None:
    """Make ``device``, if it is a GPU, the calling thread's current device, which torch uses by default."""
    if device is not None and device.type == "cuda":
        torch.cuda.set_device(device)


@dataclass(frozen=True)
class Throttle:
    """Simulated bandwidth of a slower link, such as PCIe or a disk.

    :param gigabytes: bandwidth in 1e9 bytes per second
    :param microseconds: latency before the first byte of a job
    """

    gigabytes: float
    microseconds: float = 0.0

    def __post_init__(self) -> None:
        if self.gigabytes <= 0 or self.microseconds < 0:
            raise ConfigError(f"{self} is not a link: use more than 0 GB/s, and 0 microseconds or more")

    def seconds(self, nbytes: int) -> float:
        return 1e-6 * self.microseconds + nbytes / (1e9 * self.gigabytes)

    @property
    def chunk(self) -> float:
        """Bytes moved in 1 ms, or in four latencies if that is longer: latency is at most a fifth of a job's time."""
        return 1e9 * self.gigabytes * max(1e-3, 4e-6 * self.microseconds)

    def delay(self, started: float, nbytes: int) -> float:
        """Sleep until the end of a job that began at ``started``; returns the end, when the next job may start."""
        end = started + self.seconds(nbytes)
        time.sleep(max(0.0, end - time.perf_counter()))
        return end


class ChooserThread:
    """Thread that chooses rows while a layer's MLP is computed; on CUDA with a stream of its own."""

    def __init__(self, device: torch.device) -> None:
        self._executor = ThreadPoolExecutor(1, "importance", choose_device, (device,))
        self._stream = torch.cuda.Stream(device) if device.type == "cuda" else None

    def submit(self, work: Any, *args: Any) -> Future[Any]:
        """Run ``work`` after the work queued on the caller's stream."""
        if self._stream is not None:
            self._caller = torch.cuda.current_stream()
            self.wait_for_caller()
        return self._executor.submit(work, *args)

    def wait_for_caller(self) -> None:
        """Make this thread's stream wait for the work queued on the caller's stream."""
        if self._stream is not None:
            self._stream.wait_stream(self._caller)

    @contextmanager
    def stream(self) -> Iterator[None]:
        """Run the body on this thread's stream, and wait for the stream at the end."""
        with torch.cuda.stream(self._stream):  # no effect without a stream
            try:
                yield
            finally:
                if self._stream is not None:
                    self._stream.synchronize()

    def close(self) -> None:
        self._executor.shutdown()

"""Transport of blocks: where transfers run, and over what link."""

from __future__ import annotations

import time
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch

from keep_agent.errors import ConfigError

CHUNK = 1e6  # bytes: far more than a link of 50 GB/s moves within a latency of 10 microseconds


def choose_device(device: torch.device | None) -> None:
    """Make a GPU this thread's own: else streams that are named without a device are those of the first."""
    if device is not None and device.type == "cuda":
        torch.cuda.set_device(device)


@dataclass(frozen=True)
class Throttle:
    """A link slower than this machine's: stands in for PCIe or a disk where there is none.

    :param gigabytes: per second, 1e9 bytes each
    :param microseconds: before the first byte of a job
    """

    gigabytes: float
    microseconds: float = 0.0

    def __post_init__(self) -> None:
        if self.gigabytes <= 0 or self.microseconds < 0:
            raise ConfigError(f"{self} is no link: use more than 0 GB/s, and 0 microseconds or more")

    def seconds(self, nbytes: int) -> float:
        """How long a job of so many bytes takes."""
        return 1e-6 * self.microseconds + nbytes / (1e9 * self.gigabytes)

    @property
    def chunk(self) -> float:
        """Bytes of a job that others hardly wait for, and beside which its latency does not count."""
        return 1e9 * self.gigabytes * max(1e-3, 4e-6 * self.microseconds)

    def hold(self, started: float, nbytes: int) -> float:
        """Return when a job that began at ``started`` would be done, and that moment.

        The next one begins there if it was waiting: waking up late is not the link's fault.
        """
        end = started + self.seconds(nbytes)
        time.sleep(max(0.0, end - time.perf_counter()))
        return end


class SideWorker:
    """The worker that chooses rows while the layer's MLP is computed; on CUDA it has a stream of its own."""

    def __init__(self, device: torch.device) -> None:
        self._executor = ThreadPoolExecutor(1, "importance", choose_device, (device,))
        self._stream = torch.cuda.Stream(device) if device.type == "cuda" else None

    def submit(self, work: Any, *args: Any) -> Future[Any]:
        """Run ``work`` behind what the caller's stream holds by now."""
        if self._stream is not None:
            self._caller = torch.cuda.current_stream()
            self.catch_up()
        return self._executor.submit(work, *args)

    def catch_up(self) -> None:
        """Let what the work does next begin behind what the caller's stream holds by now, too."""
        if self._stream is not None:
            self._stream.wait_stream(self._caller)

    @contextmanager
    def stream(self) -> Iterator[None]:
        """For the work: on this worker's stream; what it made is there at the end."""
        with torch.cuda.stream(self._stream):  # without a stream this does nothing
            try:
                yield
            finally:
                if self._stream is not None:
                    self._stream.synchronize()

    def close(self) -> None:
        self._executor.shutdown()

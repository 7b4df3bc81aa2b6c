"""Transport of blocks: where transfers run, and over what link."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch

from keep_agent.errors import ConfigError, check_choice
from memory.config.choices import IMPORTANCE, TRANSPORTS
from memory.engine.worker import choose_device

BUFFERS = 3  # of pinned memory per name: one is filled while others are copied
CHUNK = 1e6  # bytes: far more than a link of 50 GB/s moves within a latency of 10 microseconds


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


class Staging:
    """Buffers that slices pass through. They grow to the largest job's, so that later ones allocate nothing."""

    def __init__(self) -> None:
        self._held: dict[tuple[str, torch.dtype], torch.Tensor] = {}
        self._turns: Counter[str] = Counter()  # jobs that left pinned memory, by name
        self._copied: dict[str, torch.cuda.Event] = {}  # by pinned buffer: recorded behind the copy out of it

    def take(self, name: str, shape: tuple[int, ...], like: torch.Tensor, pinned: bool = False) -> torch.Tensor:
        """Room for ``shape``, valid until the same ``name`` is taken again; ``like`` gives dtype and device.

        :param pinned: in page-locked host memory instead
        """
        count, key = torch.Size(shape).numel(), (name, like.dtype)
        held = self._held.get(key)
        if held is None or held.numel() < count:
            device = torch.device("cpu") if pinned else like.device
            held = torch.empty(count, dtype=like.dtype, device=device, pin_memory=pinned)
            self._held[key] = held
        return held[:count].view(shape)

    def pinned(self, name: str, shape: tuple[int, ...], like: torch.Tensor) -> torch.Tensor:
        """Page-locked room for ``shape``: one of a few buffers in turn, free once the copy out of it is done."""
        buffer = self._buffer(name)
        if (event := self._copied.pop(buffer, None)) is not None:
            event.synchronize()
        return self.take(buffer, shape, like, pinned=True)

    def in_use(self, name: str) -> None:
        """Note that a copy out of the buffer last given by `pinned` was issued on the current stream."""
        self._copied[self._buffer(name)] = torch.cuda.current_stream().record_event()
        self._turns[name] += 1

    def _buffer(self, name: str) -> str:
        return f"{name} pinned {self._turns[name] % BUFFERS}"


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


@dataclass(frozen=True)
class Transport:
    """``link`` is one thread; without it transfers run where they are asked for. On CUDA they go to ``stream``.

    A job for a layer whose turn has not come moves about ``chunk`` bytes. ``beside`` chooses rows beside a layer's MLP;
    without it that is done before the MLP, which then leaves out dropped rows.
    """

    link: Executor | None = None
    stream: torch.cuda.Stream | None = None
    throttle: Throttle | None = None
    beside: SideWorker | None = None
    chunk: float = CHUNK
    staging: Staging = field(default_factory=Staging)

    @classmethod
    def of(
        cls, kind: str, device: torch.device, throttle: Throttle | None, importance: str, chunk: float | None = None
    ) -> Transport:
        """``auto`` is a thread and a stream on CUDA. Elsewhere it is ``inline``, or a thread in front of a slow link:
        host memory is as near as the working cache, and a thread would take the model's cores.

        :raises ConfigError: an unknown name, or a kind that does not work on ``device``
        """
        if chunk is None:
            chunk = CHUNK if throttle is None else throttle.chunk
        if chunk <= 0:
            raise ConfigError(f"chunk={chunk} is no size of a job: use more than 0 bytes")
        check_choice("engine.importance", importance, IMPORTANCE)
        check_choice("engine.transport", kind, TRANSPORTS)
        if kind == "auto":
            kind = "stream" if device.type == "cuda" else "inline" if throttle is None else "thread"
        if kind == "stream" and device.type != "cuda":
            raise ConfigError(f"transport {kind!r} does not work on {device}; use inline, thread, or stream on CUDA.")
        link = None if kind == "inline" else ThreadPoolExecutor(1, "link", choose_device, (device,))
        stream = torch.cuda.Stream(device) if kind == "stream" else None
        return cls(link, stream, throttle, SideWorker(device) if importance == "beside" else None, chunk)

    def close(self) -> None:
        """Stop the threads."""
        if self.link is not None:
            self.link.shutdown()
        if self.beside is not None:
            self.beside.close()

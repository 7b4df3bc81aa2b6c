"""Scheduler of many agents' requests on one model: decoding alternates with chunks of prompts."""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection
from dataclasses import dataclass, field
from types import TracebackType

import torch

from keep_agent.errors import ConfigError, ModelError
from memory.engine.base import ChunkSchedule, Engine
from memory.engine.scheduler.batch import BatchGroups, Member, batch_key
from memory.engine.scheduler.request_stream import FinishReason, Request, Stream, Tokens
from memory.engine.transformers.append import ChunkedPrefill
from memory.engine.transformers.decoder import most_likely

EndCallback = Callable[[Stream, FinishReason], None]


@dataclass(frozen=True)
class SchedulerConfig:
    """Limits of a turn.

    :param chunking: sizes of a prefill's chunks while there is no other request
    :param shared_chunk: maximum rows of a chunk while there are other requests; a request with at most this many new
        tokens is *warm*
    :param warm: maximum number of warm requests that one turn computes; they skip the queue
    :param batch: maximum number of sequences that decode together; further ones wait until one has ended
    """

    chunking: ChunkSchedule = field(default_factory=ChunkSchedule)
    shared_chunk: int = 256
    warm: int = 4
    batch: int = 16

    def __post_init__(self) -> None:
        if min(self.shared_chunk, self.warm, self.batch) < 1:
            raise ConfigError(f"shared_chunk={self.shared_chunk}, warm={self.warm}, batch={self.batch}: use 1 or more")


@dataclass(frozen=True)
class _SharedChunking(ChunkSchedule):
    """Chunk schedule with chunks of at most ``shared_chunk`` rows while there are other requests (``crowded()``)."""

    shared_chunk: int = 256
    crowded: Callable[[], bool] = bool

    def size(self, cached: int, remaining: int) -> int:
        size = super().size(cached, remaining)
        return min(self.shared_chunk, size) if self.crowded() else size


@dataclass(eq=False)
class _Job:
    stream: Stream
    done: EndCallback | None
    extension: ChunkedPrefill | None = None
    token: int = -1  # the next token to append to the cache
    started: bool = False

    def __post_init__(self) -> None:
        self.request, self.cache = self.stream.request, self.stream.request.cache
        self.names = {self.request.agent, id(self.cache)}  # one job at a time runs per name


class Scheduler:
    """Scheduler in turns. A turn decodes a token of each sequence, computes one queued chunk, then starts new requests.

    The queue is round-robin. With n requests in it, a request of c chunks has its first token at most n * c turns after
    its first chunk. Warm requests skip the queue; a turn computes the first ``warm`` of them. Requests of one agent (or
    cache) run one after another. A turn depends only on the requests and cancellations at its beginning. It runs on
    the engine's worker.

    A request that is cancelled or fails leaves the rows computed so far in its cache: whole chunks of its prompt, or
    the whole prompt and all decoded tokens but the last. A later request may continue from these rows.

    :param automatic: run turns while there is work; False: only in `turn` and `run_until_idle`
    """

    def __init__(self, engine: Engine, config: SchedulerConfig | None = None, automatic: bool = True) -> None:
        self.turns = 0
        self._config, self._automatic = config or SchedulerConfig(), automatic
        self._engine, self._decoder = engine, engine.decoder
        schedule = self._config.chunking
        self._chunking = _SharedChunking(1, schedule.steps, schedule.rest, self._config.shared_chunk, self._crowded)
        self._incoming: list[_Job] = []
        self._waiting: list[_Job] = []  # for the end of an earlier request of the same agent or cache
        self._warm: list[_Job] = []
        self._queue: list[_Job] = []
        self._active: list[_Job] = []
        self._groups, self._busy = BatchGroups(self._decoder), set[object]()
        self._idle = threading.Condition()
        self._running = self._closed = self._cancelling = False

    def submit(
        self, agent: str, cache: Member, token_ids: Tokens, max_new_tokens: int, stop_ids: Collection[int] = (),
        done: EndCallback | None = None,
    ) -> Stream:  # fmt: skip
        """Queue a request that appends ``token_ids`` to ``cache`` and decodes greedily; its stream yields the tokens.

        :param done: called on the worker when the request ends for any reason, before its stream ends and the agent's
            next request begins; if it raises an error, the stream ends with this error
        :raises ModelError: the scheduler or the engine is closed
        """
        batch_key(cache)
        stream = Stream(Request(agent, cache, token_ids, max_new_tokens, frozenset(stop_ids)), self.turns)
        with self._idle:
            if self._closed:
                raise ModelError("this scheduler is closed; build a new one.")
            if self._automatic and not self._running:
                self._engine.submit(self._run_turns)
                self._running = True
            self._incoming.append(_Job(stream, done))
            cache.requests += 1
        return stream

    def turn(self) -> bool:
        """Run one turn; returns whether work is left."""
        return self._engine.run(self._turn)

    def run_until_idle(self) -> None:
        """Run turns until all requests have ended; if turns are automatic, wait for them."""
        while not self._automatic and self.turn():
            pass
        with self._idle:
            self._idle.wait_for(lambda: not self._running)

    def close(self, cancel: bool = False) -> None:
        """Refuse new requests, and finish (or ``cancel``) the open ones. May be called twice."""
        with self._idle:
            self._closed, self._cancelling = True, self._cancelling or cancel
        self.run_until_idle()

    def __enter__(self) -> Scheduler:
        return self

    def __exit__(self, kind: type | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close(cancel=kind is not None)

    def _run_turns(self) -> None:
        """Run a turn, and queue the next one on the engine, after other work."""
        try:
            self._turn()
        except Exception as error:
            self._abandon(error)
        while True:
            with self._idle:  # if no work is left, the next `submit` starts the turns again
                self._running = bool(self._incoming or self._jobs)
                if not self._running:
                    self._idle.notify_all()
                    return
                try:
                    self._engine.submit(self._run_turns)
                    return
                except Exception as error:  # most likely the engine was closed
                    closed = error
            self._abandon(closed)

    def _abandon(self, error: Exception) -> None:
        self._receive()
        for job in self._jobs:
            self._end(job, FinishReason.ERROR, error)

    def _receive(self) -> None:
        with self._idle:
            self._waiting += self._incoming
            self._incoming.clear()

    @property
    def _jobs(self) -> list[_Job]:
        return [*self._active, *self._queue, *self._warm, *self._waiting]

    def _turn(self) -> bool:
        self.turns += 1
        self._receive()
        for job in self._jobs:
            if job.stream.cancelled or self._cancelling:
                self._end(job, FinishReason.CANCELLED)
        self._decode()
        if self._queue:
            self._compute(self._queue.pop(0))
        self._accept()
        return bool(self._incoming or self._jobs)

    def _end(self, job: _Job, reason: FinishReason, error: Exception | None = None) -> None:
        for jobs in (self._active, self._queue, self._warm, self._waiting):
            if job in jobs:
                jobs.remove(job)
        with self._idle:
            job.cache.requests -= 1
        try:
            if job.started:
                self._busy -= job.names
                self._groups.remove(job.cache)
        except Exception as failed:
            reason, error = FinishReason.ERROR, failed
        try:
            if job.done is not None:
                job.done(job.stream, reason)
        except Exception as failed:
            reason, error = FinishReason.ERROR, failed
        job.stream.end(reason, self.turns, error)

    def _decode(self) -> None:
        """Decode one token of each of the first ``batch`` sequences."""
        jobs = self._active[: self._config.batch]
        results = self._groups.step([job.cache for job in jobs], [job.token for job in jobs])
        for job, result in zip(jobs, results, strict=True):
            if isinstance(result, Exception):
                self._end(job, FinishReason.ERROR, result)
            elif len(job.stream) == job.request.max_new_tokens:
                self._end(job, FinishReason.LENGTH)
            else:
                self._emit(job, result)

    def _emit(self, job: _Job, logits: torch.Tensor) -> bool:
        """Emit the most likely token of ``logits`` (vocab,); returns False if it ends the request."""
        try:
            job.token = most_likely(logits, self._decoder.spec.dtype, job.cache)
        except Exception as error:  # a GPU's errors are raised at a synchronisation
            self._end(job, FinishReason.ERROR, error)
            return False
        if job.token in job.request.stop_ids:
            self._end(job, FinishReason.STOP)
            return False
        job.stream.emit(job.token, self.turns)
        return True

    def _crowded(self) -> bool:
        """Tell whether another request is queued, active or able to start."""
        return bool(self._queue or self._active or self._warm) or any(map(self._is_free, self._waiting))

    def _is_free(self, job: _Job) -> bool:
        return not self._busy & job.names

    def _compute(self, job: _Job) -> None:
        try:
            if job.extension.step():
                self._queue.append(job)
                return
            done = job.extension.result()
        except Exception as error:
            self._end(job, FinishReason.ERROR, error)
            return
        job.stream.trace, job.extension = done.trace, None
        if self._emit(job, done.logits[-1]):
            self._active.append(job)

    def _accept(self) -> None:
        """Start the requests that can run, and compute a chunk of the first warm requests."""
        for job in list(self._waiting):
            if self._is_free(job):
                self._waiting.remove(job)
                self._begin(job)
        for _ in range(min(self._config.warm, len(self._warm))):
            self._compute(self._warm.pop(0))

    def _begin(self, job: _Job) -> None:
        job.started = True
        self._busy |= job.names
        tokens = job.request.token_ids
        try:
            ids = tokens(job.cache) if callable(tokens) else tokens
            ids = torch.as_tensor(ids, dtype=torch.long, device=self._decoder.device)
            job.extension = ChunkedPrefill(self._decoder, job.cache, ids, self._chunking)
        except Exception as error:
            self._end(job, FinishReason.ERROR, error)
            return
        (self._warm if job.extension.remaining <= self._config.shared_chunk else self._queue).append(job)

"""Supervisor of several workers: assigns one episode at a time to each, and replaces workers that die."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Generic, Protocol, TypeVar

from keep_agent.errors import KeepError
from keep_agent.rollout.frames import Frames
from keep_agent.rollout.results import EpisodeResult


class WorkerError(KeepError, RuntimeError):
    """Workers died repeatedly, have different data or weights, or have no room left in the cluster."""


@dataclass(frozen=True)
class WorkerSetup:
    """Data and weights of one worker; they must be equal for all workers of a run."""

    weights: str | None  # hash of the model's weights
    episodes: int  # number of episodes in all shards
    node: str = field(compare=False)  # name of its machine, for error messages
    trained: str | None = None  # hash of a trained retention head


@dataclass(frozen=True)
class EpisodeRecord:
    """One finished episode, to be committed to a run folder."""

    result: EpisodeResult
    entries: Sequence[Mapping[str, Any]]  # lines of the trace; empty without eval.trace
    frames: Frames | None


W = TypeVar("W", bound=Hashable)
MAX_DEATHS = 3  # a run fails at this number of worker deaths during one episode, or in a row during setup


@dataclass(frozen=True)
class WorkerDeath:
    """Death of a worker, which aborts its current episode."""

    cause: str


class WorkerPool(Protocol[W]):
    """Worker processes on this or other machines, each with its own player (world and planner)."""

    def start(self) -> W:
        """Start a worker. `receive` returns its `WorkerSetup` when the worker is ready."""

    def assign(self, worker: W, index: int) -> None:
        """Assign an episode to an idle worker. If the worker is dead, `receive` later returns its `WorkerDeath`."""

    def receive(self) -> tuple[W, WorkerSetup | EpisodeRecord | WorkerDeath]:
        """Wait for the next message of any worker. Raises the error that a player raised."""

    def close(self, busy: Sequence[W]) -> None:
        """End all workers: busy ones at once, idle ones with time to clean up."""


class Supervisor(Generic[W]):
    """Runner that distributes episodes over ``count`` workers. The constructor returns when all workers are ready."""

    def __init__(self, pool: WorkerPool[W], count: int) -> None:
        self._pool = pool
        self._busy: dict[W, int | None] = {}  # episode of each busy worker; None during setup
        self._idle: list[W] = []
        self._todo: deque[int] = deque()
        self._deaths: Counter[int | None] = Counter()  # number by episode; None: during setup
        self._setup: WorkerSetup | None = None
        try:
            for _ in range(count):
                self._busy[pool.start()] = None
            while self._busy:
                self._advance()
        except BaseException:
            self.close()
            raise

    @property
    def setup(self) -> WorkerSetup:
        assert self._setup is not None, "no worker is ready"
        return self._setup

    def play(self, indices: Sequence[int]) -> Iterator[EpisodeRecord]:
        """Yield each episode once, in the order in which they finish. Raises WorkerError if workers die repeatedly."""
        self._todo.extend(indices)
        for _ in indices:
            while (record := self._advance()) is None:
                pass
            yield record

    def close(self) -> None:
        self._pool.close(list(self._busy))

    def _advance(self) -> EpisodeRecord | None:
        """Assign episodes to idle workers, then handle one message; return it if it is a finished episode."""
        while self._todo and self._idle:
            worker, index = self._idle.pop(), self._todo.popleft()
            self._busy[worker] = index
            self._pool.assign(worker, index)
        worker, message = self._pool.receive()
        if isinstance(message, WorkerDeath):
            self._replace(worker, message)
            return None
        self._busy.pop(worker)
        self._idle.append(worker)
        if isinstance(message, EpisodeRecord):
            return message
        self._deaths[None] = 0
        first = self._setup = self._setup or message
        if message != first:
            raise WorkerError(
                f"{message.node} has {message.episodes} episodes and weights {message.weights}, but {first.node} has "
                f"{first.episodes} and {first.weights}; put the same env.data and model on both"
            )
        return None

    def _replace(self, worker: W, death: WorkerDeath) -> None:
        """Start a worker in place of the dead ``worker``, whose episode is played next."""
        if worker in self._idle:
            self._idle.remove(worker)
        else:
            index = self._busy.pop(worker)
            self._deaths[index] += 1
            if self._deaths[index] == MAX_DEATHS:
                moment = "during setup" if index is None else f"during episode {index}"
                raise WorkerError(
                    f"workers have died {MAX_DEATHS} times {moment}, the last by {death.cause}; remove the cause: each "
                    "worker holds a world and a model, so if memory is short, lower eval.workers"
                )
            if index is not None:
                self._todo.appendleft(index)
        self._busy[self._pool.start()] = None

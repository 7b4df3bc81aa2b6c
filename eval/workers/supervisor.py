"""Many workers: each has one episode at a time, and who dies is replaced."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Hashable, Iterator, Sequence
from dataclasses import dataclass
from typing import Generic, Protocol, TypeVar

from eval.workers.base import CrewError, Played, Setup

W = TypeVar("W", bound=Hashable)
DEATHS = 3  # over one episode, or one after another while setting up: then it is no accident


@dataclass(frozen=True)
class Died:
    """A worker is gone, with whatever it was playing."""

    how: str


class Workers(Protocol[W]):
    """Processes somewhere, each with a player of its own."""

    def start(self) -> W:
        """A new one. It sets itself up, and is heard of when it has."""
        ...

    def give(self, worker: W, index: int) -> None:
        """Let one that does nothing play an episode. If it is dead, that is heard later."""
        ...

    def hear(self) -> tuple[W, Setup | Played | Died]:
        """Wait for the next answer. Raises what a player raised."""
        ...

    def close(self, busy: Sequence[W]) -> None:
        """End all of them; those that do nothing may take their time."""
        ...


class Crowd(Generic[W]):
    """A crew of ``count`` workers, all of which are set up when it is made."""

    def __init__(self, workers: Workers[W], count: int) -> None:
        self._workers = workers
        self._busy: dict[W, int | None] = {}  # with an episode, or with setting up
        self._idle: list[W] = []
        self._todo: deque[int] = deque()
        self._deaths: Counter[int | None] = Counter()
        self._setup: Setup | None = None
        try:
            for _ in range(count):
                self._busy[workers.start()] = None
            while self._busy:
                self._hear()
        except BaseException:
            self.close()
            raise

    @property
    def setup(self) -> Setup:
        assert self._setup is not None, "all have been set up"
        return self._setup

    def play(self, indices: Sequence[int]) -> Iterator[Played]:
        self._todo.extend(indices)
        for _ in indices:
            while (played := self._hear()) is None:
                pass
            yield played

    def close(self) -> None:
        self._workers.close(list(self._busy))

    def _hear(self) -> Played | None:
        """Give out what can be given out, and wait for one answer."""
        while self._todo and self._idle:
            worker, index = self._idle.pop(), self._todo.popleft()
            self._busy[worker] = index
            self._workers.give(worker, index)
        worker, answer = self._workers.hear()
        if isinstance(answer, Died):
            self._replace(worker, answer)
            return None
        self._busy.pop(worker)
        self._idle.append(worker)
        if isinstance(answer, Played):
            return answer
        self._agree(answer)
        return None

    def _replace(self, worker: W, death: Died) -> None:
        """Another worker takes its place, and its episode is played again, before all others."""
        if worker in self._idle:
            self._idle.remove(worker)
        else:
            index = self._busy.pop(worker)
            self._count(index, death)
            if index is not None:
                self._todo.appendleft(index)
        self._busy[self._workers.start()] = None

    def _count(self, index: int | None, death: Died) -> None:
        self._deaths[index] += 1
        if self._deaths[index] == DEATHS:
            what = "while they were set up" if index is None else f"over episode {index}"
            raise CrewError(
                f"workers have died {DEATHS} times {what}, at last by {death.how}; see what ends them: each holds a "
                "world and a model, so where memory is short lower eval.workers"
            )

    def _agree(self, setup: Setup) -> None:
        """Raises CrewError for a worker that would play something else than the first one."""
        self._deaths[None] = 0
        first = self._setup = self._setup or setup
        if setup != first:
            raise CrewError(
                f"{setup.where} has {setup.episodes} episodes and weights {setup.weights}, but {first.where} has "
                f"{first.episodes} and {first.weights}; put the same env.data and model on both"
            )

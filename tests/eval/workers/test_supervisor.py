"""Supervisor with scripted workers that die, or that have other data or weights."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Sequence

import pytest

from eval.workers.supervisor import MAX_DEATHS, EpisodeRecord, Supervisor, WorkerDeath, WorkerError, WorkerSetup
from keep_agent.rollout.results import EpisodeResult


class ScriptedPool:
    """Pool whose workers are numbers. ``deaths`` counts the workers that die in each episode (None: during setup)."""

    def __init__(self, deaths: dict[int | None, int] | None = None, setups: Sequence[WorkerSetup] = ()) -> None:
        self._deaths, self._setups = Counter(deaths or {}), deque(setups)
        self._started = 0
        self._pending: deque[tuple[int, int | None]] = deque()
        self.assigned: list[int] = []
        self.busy: Sequence[int] | None = None

    def start(self) -> int:
        self._started += 1
        self._pending.append((self._started, None))
        return self._started

    def assign(self, worker: int, index: int) -> None:
        self.assigned.append(index)
        self._pending.append((worker, index))

    def receive(self) -> tuple[int, WorkerSetup | EpisodeRecord | WorkerDeath]:
        worker, index = self._pending.popleft()
        if self._deaths[index]:
            self._deaths[index] -= 1
            return worker, WorkerDeath("SIGKILL")
        if index is None:
            return worker, self._setups.popleft() if self._setups else WorkerSetup("w", 9, "here")
        return worker, EpisodeRecord(EpisodeResult(index, str(index), (), (), 0.0), (), None)

    def close(self, busy: Sequence[int]) -> None:
        self.busy = busy


def play(supervisor: Supervisor[int], episodes: Sequence[int]) -> list[int]:
    return sorted(record.result.index for record in supervisor.play(episodes))


def test_every_episode_is_played_once_although_workers_die() -> None:
    pool = ScriptedPool({None: 1, 2: 2, 5: 1})
    assert play(Supervisor(pool, 3), range(9)) == list(range(9))
    assert Counter(pool.assigned) == Counter(range(9)) + Counter({2: 2, 5: 1})


def test_an_interrupted_episode_is_played_before_the_others() -> None:
    pool = ScriptedPool({0: 1})
    play(Supervisor(pool, 1), range(4))
    assert pool.assigned == [0, 0, 1, 2, 3]


@pytest.mark.parametrize("episode", [0, 3, 8])
def test_an_episode_that_kills_every_worker_ends_the_run(episode: int) -> None:
    pool = ScriptedPool({episode: MAX_DEATHS})
    supervisor = Supervisor(pool, 2)
    with pytest.raises(WorkerError, match=f"{MAX_DEATHS} times during episode {episode}, the last by SIGKILL"):
        play(supervisor, range(9))
    assert pool.assigned.count(episode) == MAX_DEATHS


def test_deaths_are_counted_per_episode() -> None:
    pool = ScriptedPool(dict.fromkeys(range(9), MAX_DEATHS - 1))
    assert play(Supervisor(pool, 2), range(9)) == list(range(9))


def test_workers_that_die_during_setup_are_not_restarted_forever() -> None:
    pool = ScriptedPool({None: MAX_DEATHS})
    with pytest.raises(WorkerError, match="during setup"):
        Supervisor(pool, 2)
    assert pool.busy is not None


@pytest.mark.parametrize("setup", [WorkerSetup("v", 9, "there"), WorkerSetup("w", 8, "there")])
def test_workers_with_other_data_or_weights_are_refused(setup: WorkerSetup) -> None:
    pool = ScriptedPool(setups=[WorkerSetup("w", 9, "here"), setup])
    with pytest.raises(WorkerError, match=f"there has {setup.episodes} episodes and weights {setup.weights}, but here"):
        Supervisor(pool, 2)
    assert pool.busy == []


def test_closing_early_names_the_busy_workers() -> None:
    pool = ScriptedPool()
    supervisor = Supervisor(pool, 3)
    assert next(iter(supervisor.play(range(9)))).result.index in (0, 1, 2)
    supervisor.close()
    assert len(pool.busy or ()) == 2

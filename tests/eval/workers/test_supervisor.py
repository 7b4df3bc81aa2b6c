"""Who plays what when workers die or see other data: with workers that do as they are told."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Sequence

import pytest

from eval.workers.base import CrewError, Played, Setup
from eval.workers.supervisor import DEATHS, Crowd, Died
from keep_agent.rollout.results import EpisodeResult


class Scripted:
    """Workers are numbers. ``deadly`` says how many workers each episode (or setting up: None) ends."""

    def __init__(self, deadly: dict[int | None, int] | None = None, setups: Sequence[Setup] = ()) -> None:
        self._deadly, self._setups = Counter(deadly or {}), deque(setups)
        self._started = 0
        self._asked: deque[tuple[int, int | None]] = deque()
        self.given: list[int] = []
        self.busy: Sequence[int] | None = None

    def start(self) -> int:
        self._started += 1
        self._asked.append((self._started, None))
        return self._started

    def give(self, worker: int, index: int) -> None:
        self.given.append(index)
        self._asked.append((worker, index))

    def hear(self) -> tuple[int, Setup | Played | Died]:
        worker, index = self._asked.popleft()
        if self._deadly[index]:
            self._deadly[index] -= 1
            return worker, Died("SIGKILL")
        if index is None:
            return worker, self._setups.popleft() if self._setups else Setup("w", 9, "here")
        return worker, Played(EpisodeResult(index, str(index), (), (), 0.0), (), None)

    def close(self, busy: Sequence[int]) -> None:
        self.busy = busy


def played(crowd: Crowd[int], episodes: Sequence[int]) -> list[int]:
    return sorted(one.result.index for one in crowd.play(episodes))


def test_every_episode_is_played_once_whoever_dies() -> None:
    workers = Scripted({None: 1, 2: 2, 5: 1})
    assert played(Crowd(workers, 3), range(9)) == list(range(9))
    assert Counter(workers.given) == Counter(range(9)) + Counter({2: 2, 5: 1})


def test_what_was_cut_off_comes_before_what_was_not_begun() -> None:
    workers = Scripted({0: 1})
    played(Crowd(workers, 1), range(4))
    assert workers.given == [0, 0, 1, 2, 3]


@pytest.mark.parametrize("episode", [0, 3, 8])
def test_an_episode_that_ends_every_worker_ends_the_run(episode: int) -> None:
    workers = Scripted({episode: DEATHS})
    crowd = Crowd(workers, 2)
    with pytest.raises(CrewError, match=f"{DEATHS} times over episode {episode}, at last by SIGKILL"):
        played(crowd, range(9))
    assert workers.given.count(episode) == DEATHS


def test_deaths_over_a_long_run_do_not_add_up() -> None:
    workers = Scripted(dict.fromkeys(range(9), DEATHS - 1))
    assert played(Crowd(workers, 2), range(9)) == list(range(9))


def test_workers_that_cannot_begin_are_not_started_for_ever() -> None:
    workers = Scripted({None: DEATHS})
    with pytest.raises(CrewError, match="while they were set up"):
        Crowd(workers, 2)
    assert workers.busy is not None


@pytest.mark.parametrize("other", [Setup("v", 9, "there"), Setup("w", 8, "there")])
def test_workers_with_other_data_or_weights_are_refused(other: Setup) -> None:
    workers = Scripted(setups=[Setup("w", 9, "here"), other])
    with pytest.raises(CrewError, match=f"there has {other.episodes} episodes and weights {other.weights}, but here"):
        Crowd(workers, 2)
    assert workers.busy == []


def test_a_run_that_is_left_tells_who_is_busy() -> None:
    workers = Scripted()
    crowd = Crowd(workers, 3)
    assert next(iter(crowd.play(range(9)))).result.index in (0, 1, 2)
    crowd.close()
    assert len(workers.busy or ()) == 2

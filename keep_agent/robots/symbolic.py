"""Symbolic world as a robot whose skills take time."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from threading import Event, Lock
from typing import Any

from envs.fact import Fact
from envs.outcome import Outcome, failed
from envs.setting import Episode, Setting
from envs.worlds import spec_of
from keep_agent.errors import ConfigError
from keep_agent.robots.executor import RobotError
from planners.prompts.text import UNEXPLAINED

GROUNDED = {"skills": "grounded", "observability": "partial"}  # the default setting of a robot


class SymbolicExecutor:
    """Executor of skills in the symbolic house of one episode, for one of its tasks at a time.

    :param seconds: duration of a successful skill, in seconds
    :param effect: share of the duration (0 to 1) after which the world changes, unless the skill was cancelled before
    :raises ConfigError: ``seconds`` or ``effect`` is out of range
    """

    def __init__(self, setting: Setting, episode: Episode, *, seconds: float = 0.0, effect: float = 0.5) -> None:
        if seconds < 0 or not 0 <= effect <= 1:
            raise ConfigError(f"seconds={seconds} must not be negative, effect={effect} must be from 0 to 1")
        self.setting, self.episode, self.seconds, self.effect = setting, episode, seconds, effect
        self.world = setting.begin(episode)
        self.knowledge = setting.knowledge(self.world)
        self._number = 0
        self._lock = Lock()  # guards world and knowledge
        self._skill_lock = Lock()
        self._cancelled = Event()

    @property
    def task(self) -> Any:
        return self.episode.tasks[self._number]

    @property
    def goal(self) -> tuple[int, int]:
        """Number of goal conditions met, and number of all."""
        with self._lock:
            return self.setting.conditions(self.world, self.task)

    @property
    def success(self) -> bool:
        met, total = self.goal
        return met == total

    def judge(self) -> Outcome:
        """Return the outcome of the task, for `RobotSession`."""
        met, total = self.goal
        return Outcome(True) if met == total else failed(f"{met} of {total} goal conditions hold")

    def next_task(self) -> bool:
        """Begin the episode's next task in the same house; return whether there is one."""
        if self._number + 1 == len(self.episode.tasks):
            return False
        with self._lock:
            self._number += 1
            self.world.begin_task()
        return True

    def skills(self) -> Sequence[str]:
        with self._lock:
            return self.setting.space.admissible(self.world, self.knowledge)

    def observe(self) -> Sequence[Fact]:
        with self._lock:
            return tuple(self.knowledge.update())

    def execute(self, skill: str, feedback: Callable[[str], None]) -> Outcome:
        """Carry out a skill. Raises SkillError for an unknown skill, RobotError while another one is running."""
        if not self._skill_lock.acquire(blocking=False):
            raise RobotError(f"{skill!r} cannot begin while another skill is running: cancel that skill")
        try:
            self._cancelled.clear()
            feedback("on the way")
            return self._run_skill(skill, feedback)
        finally:
            self._skill_lock.release()

    def cancel(self) -> None:
        self._cancelled.set()

    def _run_skill(self, skill: str, feedback: Callable[[str], None]) -> Outcome:
        if self._cancelled.wait(self.seconds * self.effect):
            return failed("cancelled before anything had changed")
        with self._lock:
            outcome = self.setting.space.execute(self.world, skill)
        feedback("it works" if outcome.ok else outcome.message or UNEXPLAINED)
        if outcome.ok and self._cancelled.wait(self.seconds * (1 - self.effect)):
            return failed("cancelled when it had already taken effect")
        return outcome


def symbolic(
    world: str = "keep_agent:Alfred-v0",
    episode: int = 0,
    *,
    split: str = "test",
    seconds: float = 0.0,
    effect: float = 0.5,
    **choices: Any,
) -> SymbolicExecutor:
    """Make a robot in a generated house. ``world`` is a gymnasium id; ``choices`` override options of `GROUNDED`."""
    spec = spec_of(world)
    house = spec.episodes(None, split, limit=episode + 1)[episode]
    return SymbolicExecutor(spec.setting(**GROUNDED | choices), house, seconds=seconds, effect=effect)

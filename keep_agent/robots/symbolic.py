"""Our symbolic worlds as a robot, with motions that take time."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from threading import Event, Lock
from typing import TYPE_CHECKING, Any

from envs.outcome import Outcome, failed
from envs.worlds import spec_of
from keep_agent.errors import ConfigError
from keep_agent.robots.executor import RobotError
from planners.prompts.text import UNEXPLAINED

if TYPE_CHECKING:
    from envs.fact import Fact
    from envs.setting import Episode, Setting

GROUNDED = {"skills": "grounded", "observability": "partial"}  # what a robot is closest to


class SymbolicExecutor:
    """Plays one episode: its house, and its tasks one after another.

    ``seconds`` is how long a skill takes; its effect shows after the share ``effect`` of that. A skill that is
    cancelled before has changed nothing. Raises ConfigError for values that cannot be.
    """

    def __init__(self, setting: Setting, episode: Episode, *, seconds: float = 0.0, effect: float = 0.5) -> None:
        if seconds < 0 or not 0 <= effect <= 1:
            raise ConfigError(f"seconds={seconds} must not be negative, effect={effect} must be from 0 to 1")
        self.setting, self.episode, self.seconds, self.effect = setting, episode, seconds, effect
        self.world = setting.begin(episode)
        self.knowledge = setting.knowledge(self.world)
        self._number = 0
        self._lock = Lock()  # of the world and what is known of it
        self._moving = Lock()
        self._cancelled = Event()

    @property
    def task(self) -> Any:
        """The one at hand; its ``instruction`` is what to tell the planner."""
        return self.episode.tasks[self._number]

    @property
    def goal(self) -> tuple[int, int]:
        """Goal conditions met now, and their total."""
        with self._lock:
            return self.setting.conditions(self.world, self.task)

    @property
    def reached(self) -> bool:
        met, total = self.goal
        return met == total

    def judge(self) -> Outcome:
        """Whether the task is done, for `RobotSession`."""
        met, total = self.goal
        return Outcome(True) if met == total else failed(f"{met} of {total} goal conditions hold")

    def next_task(self) -> bool:
        """Go on to the episode's next task, in the house as it is; whether there is one."""
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
        """Raises SkillError for what is no skill of this world, RobotError if another one is carried out."""
        if not self._moving.acquire(blocking=False):
            raise RobotError(f"{skill!r} cannot begin before the skill that is carried out has ended: cancel that")
        try:
            self._cancelled.clear()
            feedback("on the way")
            return self._move(skill, feedback)
        finally:
            self._moving.release()

    def cancel(self) -> None:
        self._cancelled.set()

    def _move(self, skill: str, feedback: Callable[[str], None]) -> Outcome:
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
    """An embedded house of a world by its gymnasium id; ``choices`` are those of its setting, else `GROUNDED`."""
    spec = spec_of(world)
    house = spec.episodes(None, split, limit=episode + 1)[episode]
    return SymbolicExecutor(spec.setting(**GROUNDED | choices), house, seconds=seconds, effect=effect)

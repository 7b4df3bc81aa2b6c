"""Setting of a world: how an episode begins, what can be done in it, how a task is scored, who could do it.

The environment, the recorder of training rollouts, the demonstration behind path weights and the worked examples all
play through this, whatever the world.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal, Protocol

from envs.fact import Fact
from envs.outcome import Outcome
from keep_agent.errors import ConfigError

Observability = Literal["full", "partial"]  # what the agent knows: everything, or what it has seen
OBSERVABILITIES: tuple[Observability, ...] = ("full", "partial")


class World(Protocol):
    """The complete state of a household, for skills, scores and the scripted expert."""

    def copy(self) -> World:
        """An independent one in the same state."""
        ...

    def begin_task(self) -> None:
        """Forget what belongs to the last task; everything stays where it is."""
        ...


class Knowledge(Protocol):
    """What the agent knows of a world."""

    def update(self) -> list[Fact]:
        """Look around, then return every fact that is new or different since the last call."""
        ...


class SkillSet(Protocol):
    """Stateless: all that a skill needs to remember lives in the world."""

    def execute(self, world: Any, skill: str) -> Outcome:
        """Do it. A skill that cannot work now is an Outcome that is not ok, with the reason where the world gives one;
        an unknown one raises SkillError.
        """
        ...

    def admissible(self, world: Any, knowledge: Any = None) -> tuple[str, ...]:
        """The skills to choose from now, in a fixed order; without knowledge everything counts as known."""
        ...


class Expert(Protocol):
    def act(self, world: Any, task: Any, knowledge: Any = None) -> str:
        """The next skill from the present state; "done" when the goal is reached or nothing more can be done."""
        ...


class Task(Protocol):
    id: str
    type: str
    instruction: str


class Episode(Protocol):
    """A scene and the tasks done in it one after another."""

    id: str
    scene: Any
    tasks: tuple[Any, ...]


class Setting(Protocol):
    """One kind of world with its choices made: skills, observability, how goals are matched."""

    skills: str
    observability: str
    max_steps: int  # per task

    @property
    def hides_failures(self) -> bool:
        """Whether the planner is not told that a skill failed, as in a benchmark that does not tell it."""
        ...

    @property
    def space(self) -> SkillSet: ...

    def begin(self, episode: Any) -> World:
        """A fresh world as the episode's scene says."""
        ...

    def knowledge(self, world: Any) -> Knowledge:
        """What the agent knows of it at first."""
        ...

    def conditions(self, world: Any, task: Any) -> tuple[int, int]:
        """Goal conditions met now, and their total."""
        ...

    def expert(self, observability: str | None = None) -> Expert:
        """The scripted expert, who knows what the agent knows, or what ``observability`` says."""
        ...

    def close(self) -> None:
        """Let go of simulators; no call comes after this."""
        ...


@dataclass(frozen=True, slots=True)
class TaskResult:
    """How a task ended: the goal conditions of its final state, and the steps it took."""

    task: Any
    success: bool
    met: int
    total: int
    steps: int


def checked_steps(max_steps: int | None, usual: int) -> int:
    """A limit, or the usual one. Raises ConfigError for one below a single step."""
    if max_steps is not None and max_steps < 1:
        raise ConfigError(f"max_steps is {max_steps}; a task needs at least 1 step")
    return max_steps or usual


def demonstrated(setting: Setting, world: World, task: Any, limit: int) -> list[str]:
    """The skills of the expert who knows everything, done in ``world``: at most so many, the last "done" if it ends."""
    expert = setting.expert("full")
    skills: list[str] = []
    while len(skills) < limit and "done" not in skills[-1:]:
        skills.append(expert.act(world, task))
        if skills[-1] != "done":
            setting.space.execute(world, skills[-1])
    return skills


def succeeded(setting: Setting, world: World, task: Task) -> bool:
    """Whether every goal condition holds now."""
    met, total = setting.conditions(world, task)
    return met == total

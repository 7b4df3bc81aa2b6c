"""Setting: the interface of a world, with its skills, observability, scoring and scripted expert."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal, Protocol

from envs.fact import Fact
from envs.outcome import Outcome
from keep_agent.errors import ConfigError

Observability = Literal["full", "partial"]  # the agent knows the whole state, or only the observed part
OBSERVABILITIES: tuple[Observability, ...] = ("full", "partial")


class WorldState(Protocol):
    """Full state of a household, for skills, scoring and the scripted expert."""

    def copy(self) -> WorldState:
        """Return an independent world in the same state."""

    def begin_task(self) -> None:
        """Clear the state that skills keep within a task; objects keep their places and states."""


class Knowledge(Protocol):
    """Part of a world's state that the agent knows."""

    def update(self) -> list[Fact]:
        """Observe the world and return every fact that is new or has changed since the last call."""


class SkillSet(Protocol):
    """Stateless set of skills. The state that skills keep within a task is part of the world."""

    def execute(self, world: Any, skill: str) -> Outcome:
        """Execute a skill. An impossible skill gives a failed Outcome, an unknown one raises SkillError."""

    def admissible(self, world: Any, knowledge: Any = None) -> tuple[str, ...]:
        """Return the skills to choose from, in a fixed order; without ``knowledge`` every object counts as known."""


class Expert(Protocol):
    def act(self, world: Any, task: Any, knowledge: Any = None) -> str:
        """Return the next skill, chosen from the current state; "done" if the goal is reached or no step helps."""


class Task(Protocol):
    id: str
    type: str
    instruction: str


class Episode(Protocol):
    """A scene and a sequence of tasks in it."""

    id: str
    scene: Any
    tasks: tuple[Any, ...]


class Setting(Protocol):
    """A world's options, such as skills and observability, and the operations that depend on them."""

    skills: str
    observability: str
    max_steps: int  # per task

    @property
    def hides_failures(self) -> bool:
        """Whether failures are reported to the planner as successes, as in LoTA-Bench."""

    @property
    def space(self) -> SkillSet: ...

    def begin(self, episode: Any) -> WorldState:
        """Return a new world in the start state of the episode's scene."""

    def knowledge(self, world: Any) -> Knowledge:
        """Return the agent's initial knowledge of a world."""

    def conditions(self, world: Any, task: Any) -> tuple[int, int]:
        """Return the number of goal conditions met now, and their total."""

    def expert(self, observability: str | None = None) -> Expert:
        """Return the scripted expert for an observability, by default the setting's."""

    def close(self) -> None:
        """Release simulators, after the last use of the setting."""


@dataclass(frozen=True, slots=True)
class TaskResult:
    """Result of a task: ``met`` of ``total`` goal conditions hold in the final state, after ``steps`` skills."""

    task: Any
    success: bool
    met: int
    total: int
    steps: int


def checked_steps(max_steps: int | None, default: int) -> int:
    """Return ``max_steps``, or ``default`` if it is None. Raises ConfigError for a limit below 1."""
    if max_steps is not None and max_steps < 1:
        raise ConfigError(f"max_steps is {max_steps}; a task needs at least 1 step")
    return max_steps or default


def demonstrate(setting: Setting, world: WorldState, task: Any, limit: int) -> list[str]:
    """Play in ``world`` with the expert for full observability. Returns at most ``limit`` skills, "done" included."""
    expert = setting.expert("full")
    skills: list[str] = []
    while len(skills) < limit and "done" not in skills[-1:]:
        skills.append(expert.act(world, task))
        if skills[-1] != "done":
            setting.space.execute(world, skills[-1])
    return skills


def goal_reached(setting: Setting, world: WorldState, task: Task) -> bool:
    """Return whether every goal condition holds now."""
    met, total = setting.conditions(world, task)
    return met == total

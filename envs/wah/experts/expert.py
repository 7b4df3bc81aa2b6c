"""Scripted expert: solves a task as far as the skills allow, from the current state only."""

from __future__ import annotations

from envs.setting import Observability
from envs.wah.action import Rules
from envs.wah.experts.grounded import GroundedPlan
from envs.wah.experts.lota import LotaPlan
from envs.wah.goals import goal_of
from envs.wah.knowledge import Knowledge
from envs.wah.lota import LotaSkills
from envs.wah.scene import Task
from envs.wah.state import HomeState
from keep_agent.errors import ConfigError


class Expert:
    """Stateless expert that uses the whole state of the household.

    Exception: with instance-level skills and observability ``partial``, it uses the agent's knowledge and searches for
    unknown things.
    """

    def __init__(self, skills: str, observability: Observability = "full", rules: Rules = "lota") -> None:
        if skills not in ("lota", "grounded"):
            raise ConfigError(f"there is no expert for skills={skills!r}; use lota or grounded")
        self._lota = LotaSkills(rules) if skills == "lota" else None
        self.observability = observability

    def act(self, home: HomeState, task: Task, knowledge: Knowledge | None = None) -> str:
        """Return the next skill; "done" if the goal is reached or no step helps."""
        goal = goal_of(task)
        if self._lota is not None:
            return LotaPlan(home, goal, self._lota).next_skill()
        if knowledge is None or self.observability == "full":
            knowledge = Knowledge(home, "full")
        return GroundedPlan(home, goal, knowledge).next_skill()

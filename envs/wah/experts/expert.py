"""The scripted expert: does a task as well as the skills allow, from the present state alone."""

from __future__ import annotations

from envs.setting import Observability
from envs.wah.checks import Rules
from envs.wah.experts.grounded import grounded_skill
from envs.wah.experts.lota import lota_skill
from envs.wah.goals import goal_of
from envs.wah.knowledge import Knowledge
from envs.wah.lota import LotaSkills
from envs.wah.scene import Task
from envs.wah.state import HomeState
from keep_agent.errors import ConfigError


class Expert:
    """Memoryless: one object may serve many episodes. ``full`` knows everything, ``partial`` what was seen."""

    def __init__(self, skills: str, observability: Observability = "full", rules: Rules = "lota") -> None:
        if skills not in ("lota", "grounded"):
            raise ConfigError(f"there is no expert for skills={skills!r}; use lota or grounded")
        self._lota = LotaSkills(rules) if skills == "lota" else None
        self.observability = observability

    def act(self, home: HomeState, task: Task, knowledge: Knowledge | None = None) -> str:
        """The next skill; "done" when the goal is reached or nothing more can be done."""
        goal = goal_of(task)
        if self._lota is not None:
            return lota_skill(home, goal, self._lota)
        if knowledge is None or self.observability == "full":
            knowledge = Knowledge(home, "full")
        return grounded_skill(home, goal, knowledge)

"""Scripted expert: an oracle planner that demonstrates every task in either skill set."""

from __future__ import annotations

from envs.alfred.experts.grounded import grounded_skill
from envs.alfred.experts.lota import lota_skill
from envs.alfred.experts.strategy import View
from envs.alfred.knowledge import Knowledge
from envs.alfred.scene import Task
from envs.alfred.world import World
from envs.setting import OBSERVABILITIES, Observability
from keep_agent.errors import ConfigError, check_choice

_SKILLS = {"lota": lota_skill, "grounded": grounded_skill}


class Expert:
    """Chooses the next skill from the present state alone.

    With ``observability="partial"`` it uses only the facts in the agent's knowledge, and looks into unseen receptacles.
    """

    def __init__(self, skills: str = "lota", observability: Observability = "full") -> None:
        """Check the choices. Raises ConfigError for an unknown skill set or observability."""
        check_choice("skills", skills, _SKILLS)
        check_choice("observability", observability, OBSERVABILITIES)
        self.skills = skills
        self.observability = observability

    def act(self, world: World, task: Task, knowledge: Knowledge | None = None) -> str:
        """Return the next skill. ``knowledge`` is required (and used) under partial observability only.

        Raises ConfigError if it is missing there.
        """
        if self.observability == "partial" and knowledge is None:
            raise ConfigError("under partial observability the expert needs the agent's knowledge; pass knowledge=")
        view = View(world, knowledge if self.observability == "partial" else None)
        return _SKILLS[self.skills](view, task)

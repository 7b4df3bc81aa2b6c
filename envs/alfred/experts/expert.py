"""The scripted expert: an oracle planner that demonstrates every task in either skill set."""

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
    """Chooses the next skill from the present state; keeps nothing between calls.

    With ``observability="partial"`` only what the knowledge holds is used, and unseen receptacles are looked into.
    """

    def __init__(self, skills: str = "lota", observability: Observability = "full") -> None:
        """Raises ConfigError for an unknown skill set or observability."""
        check_choice("skills", skills, _SKILLS)
        check_choice("observability", observability, OBSERVABILITIES)
        self.skills = skills
        self.observability = observability

    def act(self, world: World, task: Task, knowledge: Knowledge | None = None) -> str:
        """The next skill string. ``knowledge`` is needed (and used) under partial observability only.

        Raises ConfigError if it is missing there.
        """
        if self.observability == "partial" and knowledge is None:
            raise ConfigError("the expert sees only what is known under partial observability; pass the knowledge")
        view = View(world, knowledge if self.observability == "partial" else None)
        return _SKILLS[self.skills](view, task)

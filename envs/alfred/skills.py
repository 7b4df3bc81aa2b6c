"""What a skill set is: strings a planner may say, and what they do to a world."""

from __future__ import annotations

from collections.abc import Iterable
from difflib import get_close_matches
from typing import Protocol

from envs.alfred.knowledge import Knowledge
from envs.alfred.thing import Outcome
from envs.alfred.world import World
from keep_agent.errors import SkillError


class SkillSet(Protocol):
    """Stateless: all that a skill needs to remember lives in the world."""

    def execute(self, world: World, skill: str) -> Outcome:
        """Do it. A skill that cannot work now fails with a sentence; an unknown one raises SkillError."""
        ...

    def admissible(self, world: World, knowledge: Knowledge | None = None) -> tuple[str, ...]:
        """The skills to choose from now, in a fixed order; without knowledge everything counts as known."""
        ...


def unknown_skill(skill: str, known: Iterable[str]) -> SkillError:
    """The error for a skill nobody knows, with the closest one that exists."""
    closest = get_close_matches(skill, list(known), n=1, cutoff=0.0)
    hint = f"; did you mean {closest[0]!r}?" if closest else ""
    return SkillError(f"unknown skill {skill!r}{hint}")

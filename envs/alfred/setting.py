"""Symbolic ALFRED with its choices made."""

from __future__ import annotations

from dataclasses import dataclass, field

from envs.alfred.expert import Expert
from envs.alfred.goals import MATCHINGS, Matching, goal_conditions
from envs.alfred.grounded import GroundedSkills
from envs.alfred.knowledge import Knowledge
from envs.alfred.lota import LotaSkills
from envs.alfred.scene import Episode, Task
from envs.alfred.world import World
from envs.setting import OBSERVABILITIES, Observability, SkillSet, check_choice, checked_steps

SKILL_SETS: dict[str, type[SkillSet]] = {"lota": LotaSkills, "grounded": GroundedSkills}
MAX_STEPS = {"lota": 25, "grounded": 60}  # per task; 25 is LoTA-Bench's


@dataclass
class AlfredSetting:
    """Raises ConfigError for bad choices."""

    skills: str = "lota"
    observability: Observability = "full"
    goal_matching: Matching = "type"
    max_steps: int | None = None  # per task; None: what the skill set usually has
    space: SkillSet = field(init=False)

    def __post_init__(self) -> None:
        check_choice("skills", self.skills, SKILL_SETS)
        check_choice("observability", self.observability, OBSERVABILITIES)
        check_choice("goal_matching", self.goal_matching, MATCHINGS)
        self.max_steps = checked_steps(self.max_steps, MAX_STEPS[self.skills])
        self.space = SKILL_SETS[self.skills]()

    def begin(self, episode: Episode) -> World:
        return World(episode.scene)

    def knowledge(self, world: World) -> Knowledge:
        return Knowledge(world, self.observability)

    def conditions(self, world: World, task: Task) -> tuple[int, int]:
        return goal_conditions(world, task, self.goal_matching)

    def expert(self, observability: Observability | None = None) -> Expert:
        return Expert(self.skills, observability or self.observability)

    def close(self) -> None:
        """Nothing is held."""

"""Setting of ALFWorld: skills (instance-level skills or ALFWorld's commands), scoring and limits."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar, Literal

from envs.alfworld.engine import EnginePool
from envs.alfworld.expert import Expert
from envs.alfworld.knowledge import Knowledge
from envs.alfworld.scene import Episode, Task
from envs.alfworld.skills import Commands, GroundedSkills
from envs.alfworld.world import GameWorld
from envs.setting import OBSERVABILITIES, Observability, SkillSet, checked_steps
from keep_agent.errors import check_choice

Scored = Literal["final", "ever"]
SCORED: tuple[Scored, ...] = ("final", "ever")
SKILL_SETS: dict[str, type[SkillSet]] = {"grounded": GroundedSkills, "commands": Commands}
MAX_STEPS = 60  # per task, as for ALFRED's instance-level skills; ALFWorld's own limit is 50 commands


@dataclass
class AlfworldSetting:
    """Setting of ALFWorld. The agent knows only what ALFWorld's text says. Raises ConfigError for invalid choices."""

    skills: str = "grounded"
    observability: Observability = "partial"
    scored: Scored = "final"  # final: the goal must hold at the end | ever: at some time, as in ALFWorld
    max_steps: int | None = None  # per task
    space: SkillSet = field(init=False)
    engines: EnginePool = field(init=False, default_factory=EnginePool)
    hides_failures: ClassVar[bool] = False

    def __post_init__(self) -> None:
        check_choice("skills", self.skills, SKILL_SETS)
        check_choice("observability", self.observability, OBSERVABILITIES)
        check_choice("scored", self.scored, SCORED)
        self.max_steps = checked_steps(self.max_steps, MAX_STEPS)
        self.space = SKILL_SETS[self.skills]()

    def begin(self, episode: Episode) -> GameWorld:
        return GameWorld(episode.scene, self.engines)

    def knowledge(self, world: GameWorld) -> Knowledge:
        return Knowledge(world)

    def conditions(self, world: GameWorld, task: Task) -> tuple[int, int]:
        """Return (1, 1) for success, else (0, 1): the engine reports no partial goals."""
        return int(world.ever_won if self.scored == "ever" else world.won), 1

    def expert(self, observability: Observability | None = None) -> Expert:
        return Expert(self.skills)

    def close(self) -> None:
        """Keep the engines, so that the setting remains usable."""

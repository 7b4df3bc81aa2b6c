"""Watch-And-Help with its choices made."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import lru_cache

from envs.setting import SkillSet, check_choice, checked_steps
from envs.wah.checks import RULES, Rules
from envs.wah.expert import Expert
from envs.wah.formats import read_graph
from envs.wah.goals import Predicate, goal_conditions, parse_goal
from envs.wah.grounded import GroundedSkills
from envs.wah.home import Home
from envs.wah.knowledge import OBSERVABILITIES, Knowledge, Observability
from envs.wah.lota import LotaSkills
from envs.wah.scene import Episode, Task
from envs.wah.state import HomeState

MAX_STEPS = {"lota": 30, "grounded": 80}  # per task; 30 is LoTA-Bench's


@dataclass
class WahSetting:
    """Raises ConfigError for bad choices. ``rules`` are those of type-level skills; instance-level ones are strict."""

    skills: str = "lota"
    observability: Observability = "full"
    rules: Rules = "lota"
    max_steps: int | None = None  # per task; None: what the skill set usually has
    space: SkillSet = field(init=False)

    def __post_init__(self) -> None:
        check_choice("skills", self.skills, MAX_STEPS)
        check_choice("observability", self.observability, OBSERVABILITIES)
        check_choice("rules", self.rules, RULES)
        self.max_steps = checked_steps(self.max_steps, MAX_STEPS[self.skills])
        self.space = LotaSkills(self.rules) if self.skills == "lota" else GroundedSkills()

    def begin(self, episode: Episode) -> HomeState:
        scene = episode.scene
        home = Home(read_graph(scene.graph, f"scene {scene.id}"), scene.room)
        home.seats = any(one.kind == "sit" for task in episode.tasks for one in _parsed(task.goal))
        return home

    def knowledge(self, home: HomeState) -> Knowledge:
        return Knowledge(home, self.observability)

    def conditions(self, home: HomeState, task: Task) -> tuple[int, int]:
        return goal_conditions(home, _parsed(task.goal))

    def expert(self, observability: Observability | None = None) -> Expert:
        return Expert(self.skills, observability or self.observability, self.rules)

    def close(self) -> None:
        """Nothing is held."""


@lru_cache(maxsize=256)
def _parsed(goal: tuple[tuple[str, int], ...]) -> tuple[Predicate, ...]:
    return parse_goal(goal)

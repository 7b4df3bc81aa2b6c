"""Validated options of an ALFRED environment: skills, observability, goal matching, backend, ..."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from envs.alfred.experts.expert import Expert
from envs.alfred.goals import MATCHINGS, Matching, goal_conditions
from envs.alfred.grounded import GroundedSkills
from envs.alfred.knowledge import Knowledge
from envs.alfred.lota import LotaSkills
from envs.alfred.scene import Episode, Task
from envs.alfred.world import World
from envs.setting import OBSERVABILITIES, Observability, SkillSet, checked_steps
from keep_agent.errors import ConfigError, check_choice

if TYPE_CHECKING:
    from envs.alfred.thor.client import ThorClient

Backend = Literal["symbolic", "thor"]
BACKENDS: tuple[Backend, ...] = ("symbolic", "thor")
RENDERS = ("rgb",)
SKILL_SETS: dict[str, type[SkillSet]] = {"lota": LotaSkills, "grounded": GroundedSkills}
MAX_STEPS = {"lota": 25, "grounded": 60}  # per task; LoTA-Bench's limit is 25


@dataclass
class AlfredSetting:
    """Options of one ALFRED environment. Raises ConfigError for invalid ones."""

    skills: str = "lota"  # "lota": skills name a type ("the mug"); "grounded": an instance ("mug 2")
    observability: Observability = "full"
    goal_matching: Matching = "type"
    max_steps: int | None = None  # per task; None: the skill set's default
    backend: Backend = "symbolic"
    render: str | None = None  # "rgb": frames in observations
    thor: Mapping[str, Any] | None = None  # fields of `ThorOptions`
    data: str | None = None  # folder json_2.1.0, the source of the AI2-THOR stand-in's rooms; None: generated houses
    space: SkillSet = field(init=False)  # the skill set that ``skills`` names
    conditions: Callable[[World, Task], tuple[int, int]] = field(init=False, repr=False, compare=False)  # (met, all)
    simulator: ThorClient | None = field(init=False, default=None)
    hides_failures: ClassVar[bool] = False

    def __post_init__(self) -> None:
        check_choice("skills", self.skills, SKILL_SETS)
        check_choice("observability", self.observability, OBSERVABILITIES)
        check_choice("goal_matching", self.goal_matching, MATCHINGS)
        self.max_steps = checked_steps(self.max_steps, MAX_STEPS[self.skills])
        check_choice("backend", self.backend, BACKENDS)
        self.space = SKILL_SETS[self.skills]()
        self.conditions = partial(goal_conditions, matching=self.goal_matching)
        if self.render is not None:
            check_choice("render", self.render, RENDERS)
        if self.backend == "thor":
            self.simulator = self._make_simulator()
        elif self.render is not None:
            raise ConfigError(f"env.render={self.render} needs a world with a camera; set env.backend=thor")

    def _make_simulator(self) -> ThorClient:
        from envs.alfred.thor.client import ThorClient  # lazy, as below: only backend="thor" needs it
        from envs.alfred.thor.options import thor_options

        options = thor_options(self.thor, embedded=self.data is None)
        if options.headless and self.render is not None:
            raise ConfigError("env.thor.headless=true makes no images; set it to false, or leave env.render out")
        return ThorClient(options, self.data)

    @property
    def frame_shape(self) -> tuple[int, int, int] | None:
        """Shape of an observation's frame: height, width, 3."""
        if self.simulator is None or self.render is None:
            return None
        return self.simulator.options.height, self.simulator.options.width, 3

    def connect(self, episode: Episode) -> None:
        """Start the simulator, if the backend has one, in an episode's room. Raises ThorError."""
        if self.simulator is not None:
            official = episode.scene.start is not None
            self.simulator.start(episode.scene.id if official else None)

    def begin(self, episode: Episode) -> World:
        if self.simulator is None:
            return World(episode.scene)
        from envs.alfred.thor.world import ThorWorld

        return ThorWorld(self.simulator, episode.scene)

    def knowledge(self, world: World) -> Knowledge:
        return Knowledge(world, self.observability)

    def expert(self, observability: Observability | None = None) -> Expert:
        return Expert(self.skills, observability or self.observability)

    def close(self) -> None:
        if self.simulator is not None:
            self.simulator.close()

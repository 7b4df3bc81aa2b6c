"""Setting of Watch-And-Help: skills (type-level or instance-level), rules, observability, limits and simulator."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from envs.setting import OBSERVABILITIES, Observability, SkillSet, checked_steps
from envs.wah.action import RULES, Rules
from envs.wah.data.formats import read_graph
from envs.wah.experts.expert import Expert
from envs.wah.goals import goal_conditions, goal_of
from envs.wah.grounded import GroundedSkills
from envs.wah.home import Home
from envs.wah.knowledge import Knowledge
from envs.wah.lota import MESSAGES, LotaSkills, Messages
from envs.wah.scene import Episode, Scene, Task
from envs.wah.state import HomeState
from keep_agent.errors import ConfigError, check_choice

if TYPE_CHECKING:
    from envs.wah.virtualhome.client import Simulator

MAX_STEPS = {"lota": 30, "grounded": 80}  # per task; 30 is LoTA-Bench's limit


@dataclass
class WahSetting:
    """Setting of Watch-And-Help. Raises ConfigError for invalid choices.

    ``rules`` and ``messages`` apply to type-level skills. Instance-level skills are always strict and give reasons.
    """

    skills: str = "lota"
    observability: Observability = "full"
    rules: Rules = "lota"
    messages: Messages = "reasons"  # "lota": no messages, and failures are reported to the planner as successes
    max_steps: int | None = None  # per task; None: the skill set's default
    simulator: str | None = None  # URL of a VirtualHome simulator, or a recording file; None: no simulator
    record: str | None = None  # file for a recording of the simulator's answers
    space: SkillSet = field(init=False)
    _connection: Simulator | None = field(init=False, default=None)

    def __post_init__(self) -> None:
        check_choice("skills", self.skills, MAX_STEPS)
        check_choice("observability", self.observability, OBSERVABILITIES)
        check_choice("rules", self.rules, RULES)
        check_choice("messages", self.messages, MESSAGES)
        if self.messages == "lota" and self.skills != "lota":
            raise ConfigError(f"env.messages=lota is for type-level skills, not env.skills={self.skills}; leave it out")
        self.max_steps = checked_steps(self.max_steps, MAX_STEPS[self.skills])
        for name in ("simulator", "record"):
            if not isinstance(value := getattr(self, name), str | None):
                raise ConfigError(f"env.{name}={value!r} is not a text; give a URL or the name of a file")
        if self.record is not None and self.simulator is None:
            raise ConfigError(f"env.record={self.record} needs a simulator; set env.simulator")
        self.space = LotaSkills(self.rules, self.messages) if self.skills == "lota" else GroundedSkills()

    @property
    def hides_failures(self) -> bool:
        return self.messages == "lota"

    def begin(self, episode: Episode) -> HomeState:
        home = self._home(episode.scene)
        home.allows_sitting = any(predicate.kind == "sit" for task in episode.tasks for predicate in goal_of(task))
        return home

    def connect(self) -> None:
        """Connect to the simulator, if set. Raises ConfigError for an invalid address, SimulatorError for no answer."""
        if self.simulator is not None and self._connection is None:
            from envs.wah.virtualhome.client import connect  # lazy: only a simulator needs it

            self._connection = connect(self.simulator, self.record)

    def _home(self, scene: Scene) -> HomeState:
        if self.simulator is None:
            return Home(read_graph(scene.graph, f"scene {scene.id}"), scene.room)
        from envs.wah.virtualhome.home import SimulatedHome

        self.connect()
        return SimulatedHome(self._connection, scene)

    def knowledge(self, home: HomeState) -> Knowledge:
        return Knowledge(home, self.observability)

    def conditions(self, home: HomeState, task: Task) -> tuple[int, int]:
        return goal_conditions(home, goal_of(task))

    def expert(self, observability: Observability | None = None) -> Expert:
        return Expert(self.skills, observability or self.observability, self.rules)

    def close(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None

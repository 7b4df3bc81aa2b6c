"""The gymnasium environment over symbolic ALFRED: words in, feedback and facts out."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import gymnasium
from gymnasium import spaces
from gymnasium.error import ResetNeeded

from envs.alfred.goals import MATCHINGS, Matching, goal_conditions
from envs.alfred.grounded import GroundedSkills
from envs.alfred.knowledge import OBSERVABILITIES, Knowledge, Observability
from envs.alfred.lota import LotaSkills
from envs.alfred.scene import Episode, Task
from envs.alfred.skills import SkillSet
from envs.alfred.thing import Outcome
from envs.alfred.world import World
from envs.fact import Fact
from envs.spaces import Words
from keep_agent.errors import ConfigError, SkillError

SKILL_SETS: dict[str, type[SkillSet]] = {"lota": LotaSkills, "grounded": GroundedSkills}
MAX_STEPS = {"lota": 25, "grounded": 60}  # per task; 25 is LoTA-Bench's
TEXT_LENGTH = 4096  # characters


@dataclass(frozen=True, slots=True)
class TaskResult:
    """How a task ended: the goal conditions of its final state, and the steps it took."""

    task: Task
    success: bool
    met: int
    total: int
    steps: int


class AlfredEnv(gymnasium.Env[dict[str, str], str]):
    """One household, one or several tasks in a row, skills as strings.

    A task ends on ``done`` or after ``max_steps``; then its final state is scored. The next task of a stream starts in
    the house as it was left, with what the agent knows and holds; only what counts as heated, cooled or cleaned starts
    anew. The episode terminates with ``done`` in the last task and is truncated when the last task runs out of steps.
    The reward is 1 for the step that ends a task with success, else 0.
    """

    metadata = {"render_modes": ["ansi"], "render_fps": 1}  # noqa: RUF012 (gymnasium's own signature)

    def __init__(
        self,
        data: str | None = None,
        split: str = "test",
        skills: str = "lota",
        observability: Observability = "full",
        goal_matching: Matching = "type",
        max_steps: int | None = None,
        stream: int = 1,
        episodes: Sequence[Episode] | None = None,
        seed: int = 0,
        render_mode: str | None = None,
    ) -> None:
        """``episodes`` replaces ``data``, ``split``, ``stream`` and ``seed``. Raises ConfigError for bad choices."""
        _check("skills", skills, SKILL_SETS)
        _check("observability", observability, OBSERVABILITIES)
        _check("goal_matching", goal_matching, MATCHINGS)
        if max_steps is not None and max_steps < 1:
            raise ConfigError(f"max_steps is {max_steps}; a task needs at least 1 step")
        self.episodes = _load(data, split, stream, seed) if episodes is None else episodes
        if not len(self.episodes):
            raise ConfigError(f"split {split!r} holds no episodes; name another split or data folder")
        self.skills: SkillSet = SKILL_SETS[skills]()
        self.observability: Observability = observability
        self.goal_matching: Matching = goal_matching
        self.max_steps = max_steps or MAX_STEPS[skills]
        self.render_mode = render_mode
        self.action_space = Words(TEXT_LENGTH, ("done",))
        self.observation_space = spaces.Dict({"instruction": Words(TEXT_LENGTH), "feedback": Words(TEXT_LENGTH)})
        self._finished = True

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[dict[str, str], dict[str, Any]]:
        """Start an episode: ``options={"episode": index or Episode}``, else one drawn with the seed."""
        super().reset(seed=seed)
        self.episode = self._choose((options or {}).get("episode"))
        self.world = World(self.episode.scene)
        self.knowledge = Knowledge(self.world, self.observability)
        self._index, self._steps, self._finished = 0, 0, False
        return self._observation(""), self._info(Outcome(True), None)

    def step(self, action: str) -> tuple[dict[str, str], float, bool, bool, dict[str, Any]]:
        """Execute one skill. Raises SkillError for a string that is no skill of this world."""
        if self._finished:
            raise ResetNeeded("the episode is over; call reset() first")
        if not isinstance(action, str):
            raise SkillError(f"a skill is a string such as 'done', not {action!r}; choose one of info['skills']")
        outcome = self.skills.execute(self.world, action)
        self._steps += 1
        ended = action == "done" or self._steps >= self.max_steps
        result = self._end_task() if ended else None
        self._finished = ended and self._index + 1 == len(self.episode.tasks)
        if ended and not self._finished:
            self._begin_next()
        info = self._info(outcome, result)
        terminated = self._finished and action == "done"
        reward = float(result is not None and result.success)
        return self._observation(outcome.message), reward, terminated, self._finished and not terminated, info

    def render(self) -> str | None:
        """A few lines about the task, the agent and the last goal conditions."""
        if self.render_mode != "ansi":
            return None
        met, total = goal_conditions(self.world, self.task, self.goal_matching)
        at, held = self.world.at or "somewhere", self.world.holding or "nothing"
        return f"{self.task.instruction}\nstep {self._steps}: at {at}, holding {held}, {met} of {total} conditions met"

    @property
    def task(self) -> Task:
        """The task at hand; after the end of the episode its last one."""
        return self.episode.tasks[self._index]

    def _choose(self, wanted: int | Episode | None) -> Episode:
        if isinstance(wanted, Episode):
            return wanted
        index = int(self.np_random.integers(len(self.episodes))) if wanted is None else int(wanted)
        if not 0 <= index < len(self.episodes):
            raise ConfigError(f"episode {index} does not exist; there are {len(self.episodes)}, counted from 0")
        return self.episodes[index]

    def _end_task(self) -> TaskResult:
        met, total = goal_conditions(self.world, self.task, self.goal_matching)
        return TaskResult(self.task, met == total, met, total, self._steps)

    def _begin_next(self) -> None:
        """The next task of the stream starts in the house as it was left."""
        self._index, self._steps = self._index + 1, 0
        self.world.begin_task()

    def _observation(self, feedback: str) -> dict[str, str]:
        return {"instruction": self.task.instruction[:TEXT_LENGTH], "feedback": feedback[:TEXT_LENGTH]}

    def _info(self, outcome: Outcome, result: TaskResult | None) -> dict[str, Any]:
        """What a step reports: ``goal`` and ``success`` are the current task's, ``task_done`` is the one that ended."""
        facts: tuple[Fact, ...] = tuple(self.knowledge.update())
        admissible = self.skills.admissible(self.world, self.knowledge)
        self.action_space.examples = admissible
        met, total = goal_conditions(self.world, self.task, self.goal_matching)
        return {
            "facts": facts,
            "skills": admissible,
            "episode_id": self.episode.id,
            "task": self.task,
            "task_index": self._index,
            "task_done": result,
            "goal": (met, total),
            "success": met == total,
            "outcome_ok": outcome.ok,
            "world": self.world,
            "knowledge": self.knowledge,
            "step": self._steps,
        }


def _check(name: str, value: str, allowed: Sequence[str] | dict[str, Any]) -> None:
    if value not in allowed:
        raise ConfigError(f"{name}={value!r} is unknown; use one of {', '.join(allowed)}")


def _load(data: str | None, split: str, stream: int, seed: int) -> Sequence[Episode]:
    from envs.alfred.episodes import load_episodes  # here: reading data is no part of stepping a given episode

    return load_episodes(data, split, stream=stream, seed=seed)

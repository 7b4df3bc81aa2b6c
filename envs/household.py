"""Gymnasium environment of a household: actions are skills as strings, observations are instruction and feedback."""

from __future__ import annotations

import operator
from collections.abc import Sequence
from typing import Any, ClassVar, Generic, TypeVar

import gymnasium
from gymnasium import spaces
from gymnasium.error import ResetNeeded

from envs.outcome import Outcome
from envs.setting import Episode, Setting, TaskResult
from envs.spaces import Words
from envs.worlds import WorldSpec
from keep_agent.errors import ConfigError, SkillError

TEXT_LENGTH = 4096  # characters
E = TypeVar("E", bound=Episode)


class HouseholdEnv(gymnasium.Env[dict[str, str], str], Generic[E]):
    """Environment of one household per episode, with one task or a sequence of tasks.

    A task ends with the skill ``done`` or after ``setting.max_steps`` skills; then its final state is scored. The next
    task of the episode starts in this final state. The episode terminates with ``done`` in the last task, and is
    truncated if the last task runs out of steps. The reward is 1 for the step that ends a task with success, else 0.
    """

    metadata = {"render_modes": ["ansi"], "render_fps": 1}  # noqa: RUF012 (gymnasium's own signature)

    def __init__(self, setting: Setting, episodes: Sequence[E], render_mode: str | None = None) -> None:
        """Store setting and episodes. Raises ConfigError if ``episodes`` is empty."""
        if not len(episodes):
            raise ConfigError("there are no episodes to play; name another split or data folder")
        self.setting, self.episodes = setting, episodes
        self.render_mode = render_mode
        self.action_space = Words(TEXT_LENGTH, ("done",))
        self.observation_space = spaces.Dict({"instruction": Words(TEXT_LENGTH), "feedback": Words(TEXT_LENGTH)})
        self._finished = True

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[dict[str, str], dict[str, Any]]:
        """Start the episode ``options["episode"]`` (an index or an episode), or a random one without this option."""
        super().reset(seed=seed)
        self._finished = True  # ends the current episode, even if the next one fails to start
        episode = self._choose((options or {}).get("episode"))
        self.world = self.setting.begin(episode)
        self.knowledge = self.setting.knowledge(self.world)
        self.episode, self._index, self._steps, self._finished = episode, 0, 0, False
        return self._observation(""), self._info(Outcome(True), None)

    def step(self, action: str) -> tuple[dict[str, str], float, bool, bool, dict[str, Any]]:
        """Execute one skill. Raises SkillError for a string that is not a skill of this world."""
        if self._finished:
            raise ResetNeeded("the episode is over; call reset() first")
        if not isinstance(action, str):
            raise SkillError(f"a skill is a string such as 'done', not {action!r}; choose one of info['skills']")
        outcome = self.setting.space.execute(self.world, action)
        self._steps += 1
        task_over = action == "done" or self._steps >= self.setting.max_steps
        met, total = self.setting.conditions(self.world, self.task) if task_over else (0, 0)
        result = TaskResult(self.task, met == total, met, total, self._steps) if task_over else None
        self._finished = task_over and self._index + 1 == len(self.episode.tasks)
        if task_over and not self._finished:
            self._index, self._steps = self._index + 1, 0
            self.world.begin_task()
        info = self._info(outcome, result)
        terminated = self._finished and action == "done"
        reward = float(result is not None and result.success)
        return self._observation(outcome.message), reward, terminated, self._finished and not terminated, info

    def render(self) -> str | None:
        """Return the task, the step, the agent's state and the number of met goal conditions as text."""
        if self.render_mode != "ansi":
            return None
        met, total = self.setting.conditions(self.world, self.task)
        agent = self.knowledge.facts["agent"]
        state = f"at {agent.place or 'somewhere'}, holding {agent.holds or 'nothing'}"
        return f"{self.task.instruction}\nstep {self._steps}: {state}, {met} of {total} conditions met"

    def close(self) -> None:
        self.setting.close()

    @property
    def max_steps(self) -> int:
        """Maximum steps per task."""
        return self.setting.max_steps

    @property
    def task(self) -> Any:
        """Current task; after the end of the episode the last task."""
        return self.episode.tasks[self._index]

    def _choose(self, choice: int | E | None) -> E:
        if hasattr(choice, "tasks"):
            return choice
        try:
            index = int(self.np_random.integers(len(self.episodes))) if choice is None else operator.index(choice)
        except TypeError:
            raise ConfigError(f"episode {choice!r} is neither an index nor an episode") from None
        if not 0 <= index < len(self.episodes):
            raise ConfigError(f"episode {index} does not exist; there are {len(self.episodes)}, counted from 0")
        return self.episodes[index]

    def _observation(self, feedback: str) -> dict[str, str]:
        return {"instruction": self.task.instruction[:TEXT_LENGTH], "feedback": feedback[:TEXT_LENGTH]}

    def _info(self, outcome: Outcome, result: TaskResult | None) -> dict[str, Any]:
        """Return ``info``; ``outcome_ok`` is the skill's success, ``told_ok`` the success reported to the planner."""
        facts = tuple(self.knowledge.update())
        admissible = self.setting.space.admissible(self.world, self.knowledge)
        self.action_space.examples = admissible
        met, total = self.setting.conditions(self.world, self.task)
        return {
            "facts": facts, "skills": admissible, "episode_id": self.episode.id, "task": self.task,
            "task_index": self._index, "task_done": result, "goal": (met, total), "success": met == total,
            "outcome_ok": outcome.ok, "told_ok": outcome.ok or self.setting.hides_failures, "world": self.world,
            "knowledge": self.knowledge, "step": self._steps,
        }  # fmt: skip


class WorldEnv(HouseholdEnv[E]):
    """Environment of a registered world; its arguments are named like the keys of the config group ``env``."""

    spec_of_world: ClassVar[WorldSpec]
    default_split: ClassVar[str] = "test"

    def __init__(
        self, data: str | None = None, split: str | None = None, stream: int = 1, episodes: Sequence[E] | None = None,
        seed: int = 0, render_mode: str | None = None, **choices: Any,
    ) -> None:  # fmt: skip
        """Load episodes if ``episodes`` is None. Raises ConfigError for invalid ``choices`` of the world's setting."""
        spec = self.spec_of_world
        setting = self.make_setting(**choices | ({"data": data} if "data" in spec.choices else {}))
        if episodes is None:
            episodes = spec.episodes(data, split or self.default_split, stream, seed)
        super().__init__(setting, episodes, render_mode)

    def make_setting(self, **choices: Any) -> Setting:
        """Return the setting with these choices."""
        return self.spec_of_world.setting(**choices)

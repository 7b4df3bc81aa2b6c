"""Scripts of steps that all contenders run, and their recorder, which plays episodes with the scripted expert."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

from omegaconf import DictConfig

from keep_agent.config.factory import Oracle, expert_oracle, make_env, make_episodes
from keep_agent.errors import DataError
from keep_agent.rollout.loop import run_episode
from planners.base import Decision, ExpertPlanner, TaskResult
from planners.prompts.styles import Edit, FactView, make_style


@dataclass(frozen=True, slots=True)
class ScriptStep:
    """One decision of an episode and its outcome. ``skill`` is executed regardless of a planner's decision."""

    edits: tuple[Edit, ...]  # segments that changed since the last step
    admissible: tuple[str, ...]
    skill: str
    ok: bool = True
    message: str = ""
    finished: TaskResult | None = None  # the task that ended with this step
    following: str | None = None  # the next instruction in the same house, if a task ended


@dataclass(frozen=True, slots=True)
class Script:
    """One episode. Its ``static_edits`` are written ``age`` steps before the first step, so that they are static."""

    instruction: str
    skills: str  # name of the skill set: "lota" (skills name object types) or "grounded" (skills name objects)
    steps: tuple[ScriptStep, ...]
    static_edits: tuple[Edit, ...] = ()
    age: int = 0

    def first_steps(self, count: int) -> Script:
        """Return the script with its first ``count`` steps only."""
        return replace(self, steps=self.steps[:count])


def sample_candidates(admissible: Sequence[str], skill: str, count: int | None) -> tuple[str, ...]:
    """Return ``count`` evenly spread candidates including the executed ``skill``; all if ``count`` is None."""
    if count is None or count >= len(admissible):
        return tuple(admissible)
    alternatives = [candidate for candidate in admissible if candidate != skill]
    return (skill, *(alternatives[number * len(alternatives) // (count - 1)] for number in range(count - 1)))


class ScriptRecorder(ExpertPlanner):
    """Planner that executes the expert's skills and records the inputs for a planner with a model."""

    def __init__(self, style: str, oracle: Oracle) -> None:
        super().__init__(oracle)
        self.steps: list[ScriptStep] = []
        self._style, self._facts = make_style(style), ()

    def observe(self, facts: Sequence[FactView]) -> None:
        self._facts = facts

    def decide(self, admissible: Sequence[str], info: Mapping[str, Any]) -> Decision:
        decision = super().decide(admissible, info)
        self.steps.append(ScriptStep(tuple(self._style.edits(self._facts)), tuple(admissible), decision.skill))
        return decision

    def feedback(self, skill: str, ok: bool, message: str) -> None:
        self.steps[-1] = replace(self.steps[-1], ok=ok, message=message)

    def finish_task(self, result: TaskResult, following: str | None) -> None:
        self.steps[-1] = replace(self.steps[-1], finished=result, following=following)


class Recordings:
    """Scripts of a setting's episodes; each episode is played once, on first access."""

    def __init__(self, config: DictConfig) -> None:
        self._config = config
        self._scripts: dict[int, Script] = {}

    @cached_property
    def _episodes(self) -> Sequence[Any]:
        episodes = make_episodes(self._config.env, self._config.eval)
        if not len(episodes):
            raise DataError("there is no episode to replay; choose episodes with env.split, env.limit, eval.episodes")
        return episodes

    @cached_property
    def _first_episodes(self) -> list[Any]:
        return [self._episodes[number] for number in range(min(20, len(self._episodes)))]

    @property
    def instructions(self) -> tuple[str, ...]:
        """Instructions of the first episodes, used as texts of synthetic finished tasks."""
        return tuple(episode.tasks[0].instruction for episode in self._first_episodes)

    @property
    def ids(self) -> list[str]:
        """Ids of the first episodes, to detect changed data."""
        return [episode.id for episode in self._first_episodes]

    def __getitem__(self, number: int) -> Script:
        """Return episode ``number``, modulo the number of episodes."""
        number %= len(self._episodes)
        if number not in self._scripts:
            config, episode = self._config, self._episodes[number]
            recorder = ScriptRecorder(config.prompt.style, expert_oracle(config.env))
            env, skills = make_env(config.env, self._episodes), config.env.skills
            result, entries = run_episode(env, recorder, episode, index=number, skills=skills, seed=number)
            if result.crashed:
                raise DataError(f"episode {result.id} cannot be replayed: {entries[-1]['traceback']}")
            self._scripts[number] = Script(episode.tasks[0].instruction, skills, tuple(recorder.steps))
        return self._scripts[number]

"""Episodes of the world, played by the scripted expert and written down as scripts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

from omegaconf import DictConfig

from eval.latency.script import Script, Step
from keep_agent.config.factory import Oracle, expert_oracle, make_env, make_episodes
from keep_agent.errors import DataError
from keep_agent.rollout.loop import run_episode
from planners.base import Decision, ExpertPlanner, TaskResult
from planners.prompts.text import make_style

if TYPE_CHECKING:
    from planners.prompts.text import FactView


class ScriptRecorder(ExpertPlanner):
    """A planner without a model: does what the expert does, and keeps what a planner with one would have been told."""

    def __init__(self, style: str, oracle: Oracle) -> None:
        super().__init__(oracle)
        self.steps: list[Step] = []
        self._style, self._facts = make_style(style), ()

    def observe(self, facts: Sequence[FactView]) -> None:
        self._facts = facts

    def decide(self, admissible: Sequence[str], info: Mapping[str, Any]) -> Decision:
        decision = super().decide(admissible, info)
        self.steps.append(Step(tuple(self._style.edits(self._facts)), tuple(admissible), decision.skill))
        return decision

    def feedback(self, skill: str, ok: bool, message: str) -> None:
        self.steps[-1] = replace(self.steps[-1], ok=ok, message=message)

    def finish_task(self, result: TaskResult, following: str | None) -> None:
        self.steps[-1] = replace(self.steps[-1], finished=result, following=following)


class Recordings:
    """The episodes of a setting, each played once, when it is first asked for."""

    def __init__(self, config: DictConfig) -> None:
        self._config = config
        self._done: dict[int, Script] = {}

    @cached_property
    def _episodes(self) -> Sequence[Any]:
        found = make_episodes(self._config.env, self._config.eval)
        if not len(found):
            raise DataError("there is no episode to replay; choose others with env.split, env.limit, eval.episodes")
        return found

    @cached_property
    def _first(self) -> list[Any]:
        return [self._episodes[number] for number in range(min(20, len(self._episodes)))]

    @property
    def instructions(self) -> tuple[str, ...]:
        """What is to be done in the first episodes: words for finished tasks."""
        return tuple(episode.tasks[0].instruction for episode in self._first)

    @property
    def ids(self) -> list[str]:
        """Of the first episodes: others mean that the data are others."""
        return [episode.id for episode in self._first]

    def __getitem__(self, number: int) -> Script:
        """Episode ``number``; behind the last comes the first again."""
        number %= len(self._episodes)
        if number not in self._done:
            self._done[number] = self._play(number)
        return self._done[number]

    def _play(self, number: int) -> Script:
        config, episode = self._config, self._episodes[number]
        recorder = ScriptRecorder(config.prompt.style, expert_oracle(config.env))
        env, skills = make_env(config.env, self._episodes), config.env.skills
        result, entries = run_episode(env, recorder, episode, index=number, skills=skills, seed=number)
        if result.crashed:
            raise DataError(f"episode {result.id} cannot be replayed: {entries[-1]['traceback']}")
        return Script(episode.tasks[0].instruction, skills, tuple(recorder.steps))

"""Agents and planners in the loop of an evaluation, and the shape of a small model."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from transformers import Qwen2Config

from envs.fact import Fact
from envs.outcome import Outcome
from keep_agent.agent.agent import Agent
from keep_agent.agent.types import Decision
from keep_agent.rollout.loop import run_episode
from keep_agent.rollout.results import EpisodeResult
from planners.base import Decision as Decided
from planners.base import TaskResult
from tests.keep_agent.rollout.houses import APPLE, MUG, episode
from tests.keep_agent.rollout.test_loop import world

MUG_FACT = Fact("mug_1", "object", "mug", "cabinet_1")
SKILLS = ("go to cabinet 1", "open cabinet 1", "done")


class AsPlanner:
    """Agent that takes the planner's place in an evaluation's loop, with its decisions."""

    name = weights = "agent"

    def __init__(self, agent: Agent) -> None:
        self.agent = agent
        self.decisions: list[Decision] = []
        self._instruction = ""

    def reset(self, instruction: str, skills: str) -> None:
        self._instruction = instruction

    def observe(self, facts: Sequence[Any]) -> None:
        self.agent.observe(facts)

    def decide(self, admissible: Sequence[str], info: Mapping[str, Any]) -> Decided:
        self.decisions.append(self.agent.plan(self._instruction, admissible))
        return Decided(self.decisions[-1].skill)

    def feedback(self, skill: str, ok: bool, message: str) -> None:
        if skill != "done":  # the task's end reports the result of "done"
            self.agent.report(Outcome(ok, message))

    def finish_task(self, result: TaskResult, following: str | None) -> None:
        self.agent.finish(result.success)
        self._instruction = following or ""


def play(planner: Any, max_steps: int = 30) -> list[dict[str, Any]]:
    return play_episode(planner, max_steps)[1]


def play_episode(planner: Any, max_steps: int) -> tuple[EpisodeResult, list[dict[str, Any]]]:
    """Return the result of an episode of two tasks, and the trace entries of its steps."""
    env = world("grounded", "partial", max_steps=max_steps)
    result, entries = run_episode(env, planner, episode(MUG, APPLE), index=0, skills="grounded", seed=0)
    assert not result.crashed and entries[-1]["event"] == "task", entries[-1]
    return result, [entry for entry in entries if entry["event"] == "step"]


def small_config(vocabulary: int, positions: int = 4000, **more: Any) -> Qwen2Config:
    """Return the shape of a Qwen2 model of two layers."""
    return Qwen2Config(
        vocab_size=vocabulary, hidden_size=32, intermediate_size=48, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=2, max_position_embeddings=positions, **more,
    )  # fmt: skip

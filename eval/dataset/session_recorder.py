"""Recorder of sessions: the expert plays, a planner reads along, and every turn of its transcript is written down."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from omegaconf import OmegaConf
from rich.progress import Progress

from eval.common.episode_lines import begin_lines
from eval.common.resume import check_played
from keep_agent.config.factory import expert_oracle, make_env, make_episodes, make_planner
from keep_agent.console import make_console
from keep_agent.errors import KeepError
from keep_agent.rollout.loop import run_episode
from memory.prompt.units import common_prefix
from planners.base import Decision, ExpertPlanner, TaskResult
from planners.prompts.text import entity_names
from planners.training.retention.tool_sessions import ToolSession, ToolTurn, session_line

if TYPE_CHECKING:
    from omegaconf import DictConfig

    from keep_agent.config.factory import Oracle
    from planners.kv_planner import KVPlanner
    from planners.prompts.text import FactView


class SessionRecorder(ExpertPlanner):
    """Lets a planner decide, does what the expert would, and writes down what each turn brought."""

    def __init__(self, planner: KVPlanner, expert: Oracle) -> None:
        super().__init__(expert)
        self._planner = planner
        self.turns: list[ToolTurn] = []
        self._told: list[int] = []

    def reset(self, instruction: str, skills: str) -> None:
        self._planner.reset(instruction, skills)
        self.turns, self._told = [], []

    def observe(self, facts: Sequence[FactView]) -> None:
        self._planner.observe(facts)

    def decide(self, admissible: Sequence[str], info: Mapping[str, Any]) -> Decision:
        decision = self._planner.decide(admissible, info)
        layout = decision.prefill.layout
        ids, query = layout.token_ids.tolist(), layout.rows - layout.query
        begins = common_prefix(self._told, ids) < len(self._told) or not self._told
        new = ids if begins else ids[len(self._told) :]
        instruction = common_prefix(ids[layout.query :], self._planner.opening())
        acted = super().decide(admissible, info)
        self.turns.append(ToolTurn(tuple(new), query, entities(acted.skill), instruction, begins, layout.context))
        self._told = ids
        return acted

    def feedback(self, skill: str, ok: bool, message: str) -> None:
        self._planner.feedback(skill, ok, message)

    def finish_task(self, result: TaskResult, following: str | None) -> None:
        self._planner.finish_task(result, following)


def entities(skill: str) -> tuple[str, ...]:
    """What a skill is about; of a type-level skill, its words."""
    return entity_names(skill) or (skill,)


def record_sessions(config: DictConfig, file: Path) -> None:
    """Write one session per episode of ``config`` to ``file``; those that it holds already are not played again."""
    episodes = make_episodes(config.env, config.eval)
    env, planner = make_env(config.env, episodes), make_planner(config)
    described = {**OmegaConf.to_container(config, resolve=True), "weights": planner.weights}
    recorder = SessionRecorder(planner, expert_oracle(config.env))
    with begin_lines(file, described) as (out, lines), Progress(console=make_console()) as bar:
        done = len(lines)
        check_played(episodes, {index: line["session"] for index, line in enumerate(lines)}, file)
        task = bar.add_task("sessions", total=len(episodes), completed=done)
        for index in range(done, len(episodes)):
            episode = episodes[index]
            result, entries = run_episode(env, recorder, episode, index=index, skills=config.env.skills, seed=index)
            if result.crashed:
                raise KeepError(entries[-1]["traceback"])
            out.append([session_line(ToolSession(episode.id, tuple(recorder.turns)))])
            bar.advance(task)
    planner.close()

"""Training data of IntentKV's residual head: ``python -m eval.sessions --out FILE.jsonl [KEY=VALUE ...]``.

The head rates KV rows for eviction. The scripted expert plays task streams, and a planner with a full KV cache builds
the transcript. A line of FILE is a session: for each turn its new tokens, and the entities that the next skill names.
KEY=VALUE override settings.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from omegaconf import DictConfig, OmegaConf
from rich.progress import Progress

from eval.common.episode_lines import begin_lines
from eval.common.hydra_command import check_target
from eval.common.options import command_parser
from eval.common.resume import check_played, use_threads
from eval.common.variants import check_overrides, compose_variants
from eval.retention.__main__ import SETTING
from keep_agent.config.factory import Oracle, expert_oracle, make_env, make_episodes, make_planner
from keep_agent.config.model_names import expand_model
from keep_agent.console import make_console
from keep_agent.errors import KeepError
from keep_agent.guard import guarded
from keep_agent.rollout.loop import run_episode
from memory.prompt.layout import common_prefix
from planners.base import Decision, ExpertPlanner, TaskResult
from planners.kv_planner import KVPlanner
from planners.prompts.styles import FactView
from planners.prompts.text import entity_names
from planners.training.retention.tool_sessions import ToolSession, ToolTurn, session_line

ACCEPTED_KEYS = ("engine", "env", "memory", "model", "prompt", "eval.episodes", "eval.seed", "eval.threads")


def entities(skill: str) -> tuple[str, ...]:
    """Return the entities (objects, receptacles) that a skill names; the skill itself if it names none."""
    return entity_names(skill) or (skill,)


class SessionRecorder(ExpertPlanner):
    """Planner that chooses the expert's skills, and records each turn of the transcript of ``planner``."""

    def __init__(self, planner: KVPlanner, expert: Oracle) -> None:
        super().__init__(expert)
        self._planner = planner
        self.turns: list[ToolTurn] = []
        self._transcript: list[int] = []  # token ids of the last prompt

    def reset(self, instruction: str, skills: str) -> None:
        self._planner.reset(instruction, skills)
        self.turns, self._transcript = [], []

    def observe(self, facts: Sequence[FactView]) -> None:
        self._planner.observe(facts)

    def decide(self, admissible: Sequence[str], info: Mapping[str, Any]) -> Decision:
        decision = self._planner.decide(admissible, info)
        layout = decision.prefill.layout
        ids, query = layout.token_ids.tolist(), layout.rows - layout.query
        length = len(self._transcript)
        begins = not length or common_prefix(self._transcript, ids) < length
        instruction = common_prefix(ids[layout.query :], self._planner.opening())
        expert = super().decide(admissible, info)
        new = tuple(ids if begins else ids[length:])
        self.turns.append(ToolTurn(new, query, entities(expert.skill), instruction, begins, layout.context))
        self._transcript = ids
        return expert

    def feedback(self, skill: str, ok: bool, message: str) -> None:
        self._planner.feedback(skill, ok, message)

    def finish_task(self, result: TaskResult, following: str | None) -> None:
        self._planner.finish_task(result, following)


def record_sessions(config: DictConfig, file: Path) -> None:
    """Write one session per episode of ``config`` to ``file``; sessions already in the file are kept."""
    episodes = make_episodes(config.env, config.eval)
    env, planner = make_env(config.env, episodes), make_planner(config)
    settings = {**OmegaConf.to_container(config, resolve=True), "weights": planner.weights}
    recorder = SessionRecorder(planner, expert_oracle(config.env))
    with begin_lines(file, settings) as (out, lines), Progress(console=make_console()) as bar:
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


def report(arguments: Sequence[str]) -> None:
    p = command_parser(__doc__)
    p.add_argument("--out", required=True, type=Path, help="file to write, or to continue with the same settings")
    p.add_argument("overrides", nargs="*", metavar="KEY=VALUE")
    args = p.parse_intermixed_args(arguments)
    check_target(args.out)
    (config,) = compose_variants(["full_cache"], [*SETTING, *expand_model(args.overrides)]).values()
    check_overrides(args.overrides, ACCEPTED_KEYS, {})
    use_threads(config)
    record_sessions(config, args.out)


def main() -> None:
    sys.exit(guarded(lambda: report(sys.argv[1:])))


if __name__ == "__main__":
    main()

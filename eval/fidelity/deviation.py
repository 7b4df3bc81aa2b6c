"""Deviation of memory methods: distance of their logits from transformers' own forward, while an expert acts."""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

import torch
from omegaconf import DictConfig
from rich.console import Console
from rich.table import Table
from torch.nn import functional as F

from eval.common.tables import number, percent, table_of
from eval.fidelity.laws import LAWS, plain_logits
from keep_agent.config.examples import make_examples
from keep_agent.config.factory import Oracle, expert_oracle, make_env, make_episodes
from keep_agent.config.planner_factory import format_of, kv_planner, make_method, make_model, make_tokenizer
from keep_agent.errors import ConfigError, KeepError
from keep_agent.rollout.loop import run_episode
from memory.engine.base import Engine
from memory.engine.models.tiny_models import tiny_model
from memory.engine.models.tokenizer import load_tokenizer
from memory.engine.transformers.engine import TransformersEngine
from memory.files.atomic import write_atomic
from memory.prompt.report import Prefill
from memory.segments.sentence_encoder import make_encoder
from planners.base import Decision, TaskResult
from planners.bundled import BUNDLED
from planners.kv_planner import KVPlanner
from planners.prompts.styles import FactView

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase


def divergence(prefill: Prefill, reference: torch.Tensor) -> float:
    """Return KL(reference || method) of the next token in nats; ``reference`` (vocabulary,) are logits."""
    log_probs = prefill.logits[0].double().log_softmax(-1)
    return float(F.kl_div(log_probs, reference.double().log_softmax(-1), reduction="sum", log_target=True))


@dataclass
class Deviation:
    """Deviation of a method's logits from a plain forward's at the last row of the same prompts, over all steps."""

    model: str
    method: str
    steps: int = 0
    max_abs: float = 0.0  # largest |difference| of a logit
    max_logit: float = 0.0  # largest |logit| of the plain forward
    sum_abs: float = 0.0  # sum over steps of the mean |difference|
    sum_kl: float = 0.0  # nats, KL(plain || method)
    same_token: int = 0  # steps at which the plain forward has the same most likely token
    same_skill: int = 0  # steps at which the first method chooses the same skill
    token_layers: int = 0  # computed rows, summed over layers
    prompt_token_layers: int = 0  # prompt rows x layers

    def add(self, prefill: Prefill, reference: torch.Tensor, choice: SkillChoice) -> None:
        """Add a step; ``reference`` (vocabulary,) are the plain forward's logits of the same prompt."""
        actual, plain = prefill.logits[0].double(), reference.double()
        gap = (actual - plain).abs()
        self.steps += 1
        self.max_abs = max(self.max_abs, float(gap.max()))
        self.max_logit = max(self.max_logit, float(plain.abs().max()))
        self.sum_abs += float(gap.mean())
        self.sum_kl += divergence(prefill, plain)
        self.same_token += int(actual.argmax() == plain.argmax())
        self.same_skill += choice.same
        self.token_layers += prefill.counts.token_layers
        self.prompt_token_layers += prefill.counts.prompt_tokens * prefill.counts.layers

    def summary(self) -> dict[str, Any]:
        steps = self.steps
        return {
            "model": self.model, "method": self.method, "steps": steps,
            "max_abs": self.max_abs, "mean_abs": self.sum_abs / steps, "relative": self.max_abs / self.max_logit,
            "kl": self.sum_kl / steps, "same_token": self.same_token / steps, "same_skill": self.same_skill / steps,
            "computed_ratio": self.token_layers / self.prompt_token_layers,
        }  # fmt: skip


@dataclass(frozen=True, slots=True)
class SkillChoice:
    """Skill of a method, skill of the first method, and the executed skill."""

    skill: str
    first: str
    executed: str

    @property
    def same(self) -> bool:
        return self.skill == self.first


class StepRecorder(Protocol):
    def add(self, prefill: Prefill, reference: torch.Tensor, choice: SkillChoice) -> None:
        """Add a step of a method, whose logits are compared with the logits ``reference`` (vocabulary,)."""


class PlannerGroup:
    """Planner that runs several planners on the same observations, records their decisions, and executes one skill."""

    name = "planner_group"

    def __init__(
        self, engine: Engine, planners: Mapping[str, KVPlanner], recorders: Mapping[str, StepRecorder],
        oracle: Oracle | None = None, shared_transcript: bool = False,
    ) -> None:  # fmt: skip
        """Create the planner. Every planner's skill is compared with the skill of the first of ``planners``.

        :param oracle: chooses the executed skills; each planner's logits are then compared with a plain forward of the
            same prompt. By default the first planner's skills are executed, and all logits compared with its logits
        :param shared_transcript: all planners continue the first planner's transcript; its logits are the reference
        """
        self.weights = engine.model_key
        self._engine, self._planners, self._recorders = engine, planners, recorders
        self._oracle, self._shared_transcript = oracle, shared_transcript

    def reset(self, instruction: str, skills: str) -> None:
        for planner in self._planners.values():
            planner.reset(instruction, skills)

    def observe(self, facts: Sequence[FactView]) -> None:
        for planner in self._planners.values():
            planner.observe(facts)

    def decide(self, admissible: Sequence[str], info: Mapping[str, Any]) -> Decision:
        plain: dict[tuple[tuple[int, int], ...], torch.Tensor] = {}  # by prompt, which methods often share
        leader, *followers = self._planners.values()
        if self._shared_transcript:
            leader.generate_goal()  # not measured; the other planners adopt the goal
        decisions = {}
        for name, planner in self._planners.items():
            if self._shared_transcript:
                planner.adopt(leader)  # the leader's goals, so that this planner does not generate its own
            decisions[name] = planner.decide(admissible, info)
        first = next(iter(decisions.values()))
        executed, reference = self._oracle(info) if self._oracle else first.skill, first.prefill.logits[0]
        for name, decision in decisions.items():
            if self._oracle and not self._shared_transcript:
                layout = decision.prefill.layout
                key = tuple(zip(layout.token_ids.tolist(), layout.positions.tolist(), strict=True))
                if key not in plain:
                    plain[key] = plain_logits(self._engine, layout)
                reference = plain[key]
            self._recorders[name].add(decision.prefill, reference, SkillChoice(decision.skill, first.skill, executed))
        if self._shared_transcript:
            for planner in followers:
                planner.adopt(leader)
        return Decision(executed)

    def feedback(self, skill: str, ok: bool, message: str) -> None:
        for planner in self._planners.values():
            planner.feedback(skill, ok, message)

    def finish_task(self, result: TaskResult, following: str | None) -> None:
        for planner in self._planners.values():
            planner.finish_task(result, following)


def make_planners(
    engine: Engine, tokenizer: PreTrainedTokenizerBase, configs: Mapping[str, DictConfig]
) -> dict[str, KVPlanner]:
    """Make the planners of one setting; they share the engine, the prompt format and the encoder."""
    setting = next(iter(configs.values()))
    examples = make_examples(setting.env, setting.prompt.examples, setting.eval.seed)
    prompt_format = format_of(setting.prompt, engine.model, tokenizer, examples)
    encoder = make_encoder(setting.prompt.encoder)
    methods = {name: make_method(config.memory) for name, config in configs.items()}
    return {name: kv_planner(engine, methods[name], prompt_format, encoder, config) for name, config in configs.items()}


def measure(
    engine: Engine, tokenizer: PreTrainedTokenizerBase, configs: Mapping[str, DictConfig], model: str
) -> list[Deviation]:
    """Measure methods in one setting. Raises ConfigError for a method whose layers have different prompts."""
    setting = next(iter(configs.values()))
    deviations = {name: Deviation(model, name) for name in configs}
    planners = make_planners(engine, tokenizer, configs)
    for name, planner in planners.items():
        if planner.session.method.capabilities.per_layer:
            raise ConfigError(
                f"--methods {name}: with memory.retrieval.layers=each every layer has different rows, so no single "
                "prompt exists for a plain forward; use other layers, or compare with full recomputation: planner=NAME"
            )
    group = PlannerGroup(engine, planners, deviations, expert_oracle(setting.env))
    for _ in play_episodes(group, setting):
        pass  # `PlannerGroup` records every step
    return list(deviations.values())


def play_episodes(group: PlannerGroup, setting: DictConfig, first: int = 0) -> Iterator[int]:
    """Play episodes from index ``first``; yield an episode's index before it starts. Raises KeepError for a crash."""
    episodes = make_episodes(setting.env, setting.eval)
    env = make_env(setting.env, episodes)
    for index in range(first, len(episodes)):
        episode = episodes[index]
        yield index
        result, entries = run_episode(env, group, episode, index=index, skills=setting.env.skills, seed=index)
        if result.crashed:
            raise KeepError(entries[-1]["traceback"])


MAX_POSITIONS = 8192


def measure_families(
    names: Sequence[str], tokenizer_folder: str, configs: Mapping[str, DictConfig]
) -> tuple[list[Deviation], dict[str, dict[str, float]]]:
    """Measure deviations and laws of a tiny random float32 model of each family."""
    deviations, laws = list[Deviation](), dict[str, dict[str, float]]()
    tokenizer = load_tokenizer(tokenizer_folder) if names else None
    for name in names:
        model = tiny_model(name, vocab_size=len(tokenizer), max_position_embeddings=MAX_POSITIONS)
        with TransformersEngine(model, "inline") as engine:
            laws[name] = {law: figure(engine) for law, figure in LAWS.items()}
            deviations += measure(engine, tokenizer, configs, name)
    return deviations, laws


def measure_trained(names: Sequence[str], configs: Mapping[str, DictConfig]) -> list[Deviation]:
    """Measure deviations of trained models; ``names`` are names or folders, as in ``model=NAME``."""
    deviations, setting = list[Deviation](), next(iter(configs.values()))
    for name in names:
        model = setting.model.copy()
        model.name = name
        with TransformersEngine(make_model(model, setting.eval.seed)) as engine:
            deviations += measure(engine, make_tokenizer(model, engine.model), configs, name)
    return deviations


def deviation_table(deviations: Sequence[Deviation]) -> Table:
    headings = ("steps", "max |Δ|", "mean |Δ|", "max |Δ| / max |logit|", "KL, nats", "token %", "skill %", "computed")
    rows = []
    for row in (deviation.summary() for deviation in deviations):
        shares = percent(row["same_token"]), percent(row["same_skill"]), number(row["computed_ratio"])
        figures = (f"{row[key]:.1e}" for key in ("max_abs", "mean_abs", "relative", "kl"))
        rows.append([row["model"], row["method"], str(row["steps"]), *figures, *shares])
    title = "deviation from plain recomputation of the same prompt: logits of the last row"
    return table_of(title, ["model", "method"], headings, rows, wrap=True)


def report_deviations(
    random: Sequence[str], configs: Mapping[str, DictConfig], arguments: argparse.Namespace, console: Console
) -> None:
    """Measure the ``random`` families and the trained models, print the tables, and write the JSON file."""
    deviations, laws = measure_families(random, arguments.tokenizer or str(BUNDLED), configs)
    deviations += measure_trained(arguments.model, configs)
    if laws:
        rows = ([law, *(f"{figures[law]:.0e}" for figures in laws.values())] for law in LAWS)
        title = "laws: largest difference / largest logit, float32"
        console.print(table_of(title, ["law"], [*laws], rows, wrap=True))
    console.print(deviation_table(deviations))
    if arguments.json:
        record: dict[str, Any] = {"laws": laws, "deviations": [deviation.summary() for deviation in deviations]}
        write_atomic(arguments.json, json.dumps(record, indent=2) + "\n")

"""Deviation of memory methods: distance of their logits from transformers' own forward, while an expert acts."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

import torch
from omegaconf import DictConfig
from torch.nn import functional as F

from eval.fidelity.laws import plain_logits
from keep_agent.config.examples import make_examples
from keep_agent.config.factory import Oracle, expert_oracle, make_env, make_episodes
from keep_agent.config.planner_factory import format_of, make_method, plan_with
from keep_agent.errors import ConfigError, KeepError
from keep_agent.rollout.loop import run_episode
from memory.engine.base import Engine
from memory.segments.sentence_encoder import make_encoder
from planners.base import Decision, TaskResult

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

    from memory.prompt.layout import Layout
    from memory.prompt.report import Prefill
    from planners.kv_planner import KVPlanner
    from planners.prompts.text import FactView


def divergence(prefill: Prefill, reference: torch.Tensor) -> float:
    """Return KL(reference || method) of the next token in nats; ``reference`` (vocabulary,) are logits."""
    log_probs = prefill.logits[0].double().log_softmax(-1)
    return float(F.kl_div(log_probs, reference.double().log_softmax(-1), reduction="sum", log_target=True))


@dataclass
class Deviation:
    """Deviation of one method from the plain forward of its prompts: logits of the last prompt row, over all steps."""

    model: str
    method: str
    steps: int = 0
    max_abs: float = 0.0  # largest |difference| of a logit
    largest: float = 0.0  # largest |logit| of the plain forward
    sum_abs: float = 0.0  # sum over steps of the mean |difference|
    sum_kl: float = 0.0  # nats, KL(plain || method)
    same_token: int = 0
    same_skill: int = 0
    token_layers: int = 0
    possible: int = 0  # prompt rows x layers

    def add(self, prefill: Prefill, reference: torch.Tensor, choice: Choice) -> None:
        """Add a step; ``reference`` (vocabulary,) are the plain forward's logits of the same prompt."""
        actual, plain = prefill.logits[0].double(), reference.double()
        gap = (actual - plain).abs()
        self.steps += 1
        self.max_abs = max(self.max_abs, float(gap.max()))
        self.largest = max(self.largest, float(plain.abs().max()))
        self.sum_abs += float(gap.mean())
        self.sum_kl += divergence(prefill, plain)
        self.same_token += int(actual.argmax() == plain.argmax())
        self.same_skill += choice.same
        self.token_layers += prefill.counts.token_layers
        self.possible += prefill.counts.prompt_tokens * prefill.counts.layers

    def summary(self) -> dict[str, Any]:
        plain = {name: getattr(self, name) for name in ("model", "method", "steps", "max_abs")}
        return plain | {
            "mean_abs": self.sum_abs / self.steps,
            "relative": self.max_abs / self.largest,
            "kl": self.sum_kl / self.steps,
            "same_token": self.same_token / self.steps,
            "same_skill": self.same_skill / self.steps,
            "computed_ratio": self.token_layers / self.possible,
        }


@dataclass(frozen=True, slots=True)
class Choice:
    """Skill of a method, skill of the first method, and the executed skill."""

    skill: str
    first: str
    executed: str

    @property
    def same(self) -> bool:
        return self.skill == self.first


class Record(Protocol):
    """Record of one method's steps."""

    def add(self, prefill: Prefill, reference: torch.Tensor, choice: Choice) -> None:
        """Add a step; the prefill's logits are compared with the logits ``reference`` (vocabulary,)."""
        ...


class Shadow:
    """Planner that runs several planners on the same observations, records them, and executes one skill."""

    name = "shadow"

    def __init__(
        self,
        engine: Engine,
        planners: Mapping[str, KVPlanner],
        records: Mapping[str, Record],
        oracle: Oracle | None = None,
        common: bool = False,
    ) -> None:
        """Create the planner; all skills are compared with those of the first of ``planners``.

        :param oracle: chooses the executed skill (default: the first planner does), and makes the plain forward of a
            planner's own prompt the reference of its logits; otherwise the first planner's logits are
        :param common: all planners continue the transcript of the first planner, whose logits are the reference
        """
        self.weights = engine.model_key
        self._engine, self._planners, self._records, self._oracle = engine, planners, records, oracle
        self._common = common

    def reset(self, instruction: str, skills: str) -> None:
        for planner in self._planners.values():
            planner.reset(instruction, skills)

    def observe(self, facts: Sequence[FactView]) -> None:
        for planner in self._planners.values():
            planner.observe(facts)

    def decide(self, admissible: Sequence[str], info: Mapping[str, Any]) -> Decision:
        plain: dict[tuple[tuple[int, int], ...], torch.Tensor] = {}  # most methods have the same prompt
        leader, *followers = self._planners.values()
        if self._common:
            leader.understand()  # before the measurement; the followers adopt its result
        decisions = {}
        for name, planner in self._planners.items():
            if self._common:
                planner.adopt(leader)  # the leader's goals, so that this planner does not derive its own
            decisions[name] = planner.decide(admissible, info)
        first = next(iter(decisions.values()))
        executed = self._oracle(info) if self._oracle else first.skill
        for name, decision in decisions.items():
            use_plain = self._oracle and not self._common
            reference = self._plain(decision.prefill.layout, plain) if use_plain else first.prefill.logits[0]
            self._records[name].add(decision.prefill, reference, Choice(decision.skill, first.skill, executed))
        if self._common:
            for planner in followers:
                planner.adopt(leader)
        return Decision(executed)

    def _plain(self, layout: Layout, cache: dict[tuple[tuple[int, int], ...], torch.Tensor]) -> torch.Tensor:
        key = tuple(zip(layout.token_ids.tolist(), layout.positions.tolist(), strict=True))
        if key not in cache:
            cache[key] = plain_logits(self._engine, layout)
        return cache[key]

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
    return {name: plan_with(engine, methods[name], prompt_format, encoder, config) for name, config in configs.items()}


def measure(
    engine: Engine, tokenizer: PreTrainedTokenizerBase, configs: Mapping[str, DictConfig], model: str
) -> list[Deviation]:
    """Measure the deviations of the methods in ``configs`` (of one setting) with the engine's model.

    :raises ConfigError: a method has no single prompt for a plain forward
    """
    setting = next(iter(configs.values()))
    deviations = {name: Deviation(model, name) for name in configs}
    planners = make_planners(engine, tokenizer, configs)
    for name, planner in planners.items():
        if planner.session.method.capabilities.per_layer:
            raise ConfigError(
                f"--methods {name}: with memory.retrieval.layers=each every layer has different rows, so no single "
                "prompt exists for a plain forward; use other layers, or compare with full recomputation: planner=NAME"
            )
    shadow = Shadow(engine, planners, deviations, expert_oracle(setting.env))
    for _ in play(shadow, setting):
        pass  # the shadow records every step
    return list(deviations.values())


def play(shadow: Shadow, setting: DictConfig, first: int = 0) -> Iterator[int]:
    """Play the episodes of a setting from index ``first``; yield each index before its episode starts.

    :raises KeepError: an episode crashed; the message is its traceback
    """
    episodes = make_episodes(setting.env, setting.eval)
    env = make_env(setting.env, episodes)
    for index in range(first, len(episodes)):
        episode = episodes[index]
        yield index
        result, entries = run_episode(env, shadow, episode, index=index, skills=setting.env.skills, seed=index)
        if result.crashed:
            raise KeepError(entries[-1]["traceback"])

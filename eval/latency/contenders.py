"""Contenders of a timing: planners with memory methods, and the plain forward of transformers."""

from __future__ import annotations

import time

import torch
from omegaconf import DictConfig

from eval.common.variants import PLAIN
from eval.latency.floor import plain_forward_work, step_work
from eval.latency.report.rows import TimedStep
from eval.latency.scripts import Script, ScriptStep
from eval.loading.costs import Shape
from keep_agent.config.planner_factory import kv_planner, make_method
from keep_agent.rollout.results import StepNumbers
from keep_agent.rollout.trace import step_numbers
from memory.engine.base import Engine
from memory.recompute.value_deviation import ValueDeviation
from memory.segments.sentence_encoder import CachedEncoder, SentenceEncoder
from planners.prompts.formats import Format


class ContenderEncoder(CachedEncoder):
    """Sentence encoder with a cache per contender; a shared cache would favour later contenders."""

    def forget(self) -> None:
        self._vectors.clear()


class PlannerContender:
    """Planner, timed from the observation to the decision, as in `keep_agent.rollout.loop`."""

    def __init__(
        self, name: str, config: DictConfig, engine: Engine, prompt_format: Format, encoder: SentenceEncoder
    ) -> None:
        """:raises KeepError: the method cannot be composed, or does not support the model"""
        self.name = name
        self._encoder = ContenderEncoder(encoder)
        method = make_method(config.memory)
        self._planner = kv_planner(engine, method, prompt_format, self._encoder, config)
        self.prompt = method.layout  # kind of prompt, see `TimedRun`
        self._shape, self._compares_values = Shape.of(engine), isinstance(method.recompute, ValueDeviation)
        self.token_ids = torch.zeros(0, dtype=torch.long)  # of the last prompt
        self.numbers = StepNumbers()

    def begin(self, script: Script) -> None:
        """Empty the memory, start an episode and write its static segments."""
        self._encoder.forget()
        planner = self._planner
        planner.reset(script.instruction, script.skills)
        planner.write(script.static_edits)
        for _ in range(script.age):
            planner.session.advance()

    def step(self, step: ScriptStep) -> TimedStep:
        planner = self._planner
        start = time.perf_counter()
        planner.write(step.edits)
        decision = planner.decide(step.admissible, {})
        wall_ms = 1e3 * (time.perf_counter() - start)
        self.numbers = step_numbers(decision, 0, wall_ms)
        self.token_ids = decision.prefill.layout.token_ids
        planner.feedback(step.skill, step.ok, step.message)
        if step.finished is not None:
            planner.finish_task(step.finished, step.following)
        return TimedStep(self.numbers, step_work(self._shape, decision.prefill, self._compares_values))

    def stored(self) -> int | None:
        """Return the bytes in the method's storage, if it has one."""
        method = self._planner.session.method
        is_transcript = method.capabilities.keeps_cache  # rows stay in a working cache, not in storage
        return None if is_transcript else method.storage.stats().get("bytes")


class PlainForward:
    """Plain forward of transformers on the prompt that ``reference`` had at the same step.

    Its time includes neither memory operations nor the choice of segments.
    """

    name = PLAIN
    prompt = "plain"

    def __init__(self, engine: Engine, reference: PlannerContender) -> None:
        self._model, self._engine = engine.plain, engine
        self._reference, self._shape = reference, Shape.of(engine)

    def follows(self, contender: object) -> bool:
        return contender is self._reference

    def begin(self, script: Script) -> None:
        """Start an episode; there is no memory to empty."""

    def step(self, step: ScriptStep) -> TimedStep:
        reference, ids = self._reference.numbers, self._reference.token_ids
        start = time.perf_counter()
        self._engine.run(lambda: self._forward(ids))
        milliseconds = 1e3 * (time.perf_counter() - start)
        rows, layers = len(ids), self._shape.layers
        numbers = StepNumbers(
            layers=layers, ttft_ms=milliseconds, ttft_overlapped_ms=milliseconds, prompt_tokens=rows, fresh_tokens=rows,
            memory_tokens=reference.memory_tokens, token_layers=rows * layers,
            cold=reference.cold, flips=reference.flips,
        )  # fmt: skip
        return TimedStep(numbers, plain_forward_work(self._shape, rows))

    @torch.inference_mode()
    def _forward(self, ids: torch.Tensor) -> torch.Tensor:
        """Return the logits (vocab,) after the prompt, copied to the host; the copy waits until they are computed."""
        out = self._model(input_ids=ids[None], use_cache=True, logits_to_keep=1)
        return out.logits[0, -1].float().cpu()

    def stored(self) -> int | None:
        return None


Contender = PlannerContender | PlainForward

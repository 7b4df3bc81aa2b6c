"""Interleaved timing: order of contenders, and exclusion of contenders that fail."""

from __future__ import annotations

from dataclasses import dataclass, field

import pytest
import torch

from eval.latency.cells import InterleavedTiming
from eval.latency.contenders import PlainForward
from eval.latency.machine import RateMeter
from eval.latency.report.rows import TimedStep
from eval.latency.scripts import Script, ScriptStep
from keep_agent.errors import CapacityError
from keep_agent.rollout.results import StepNumbers

CPU = torch.device("cpu")
STEPS = (ScriptStep((), ("done",), "done"),) * 6


@dataclass
class Runner:
    """Contender that logs its steps and may fail at one of them."""

    name: str
    log: list[str]
    failing_step: int | None = None
    prompt: str = "memory"
    turns: int = 0

    def begin(self, script: Script) -> None:
        self.log.append("begin")

    def step(self, step: ScriptStep) -> TimedStep:
        if self.turns == self.failing_step:
            raise CapacityError("a prompt of 99 tokens is too long")
        self.turns += 1
        self.log.append(self.name)
        return TimedStep(StepNumbers(ttft_ms=float(self.turns)))

    def stored(self) -> int | None:
        return 7


@dataclass
class Follower(PlainForward):
    """Plain forward without a model, timed after each step of a runner."""

    runner: Runner
    log: list[str] = field(default_factory=list)
    name: str = "transformers"

    def follows(self, contender: object) -> bool:
        return contender is self.runner

    def step(self, step: ScriptStep) -> TimedStep:
        self.log.append(self.name)
        return TimedStep(StepNumbers(ttft_ms=1.0))


@pytest.fixture(scope="module")
def meter() -> RateMeter:
    return RateMeter(CPU, torch.float32)


def timing_of(meter: RateMeter, steps: list[int], *failing_step: int | None) -> tuple[InterleavedTiming, list[str]]:
    log: list[str] = []
    runners = [Runner(name, log, step) for name, step in zip("abc", failing_step, strict=True)]
    return InterleavedTiming([*runners, Follower(runners[0], log)], CPU, meter, steps.append), log


def test_the_order_rotates_and_the_plain_forward_follows_its_reference(meter: RateMeter) -> None:
    steps: list[int] = []
    timing, log = timing_of(meter, steps, None, None, None)
    timing.run([Script("", "lota", STEPS[:3])])
    assert "".join(name[0] for name in log if name != "begin") == "atbc" + "bcat" + "catb"
    assert steps == [1, 2, 3] and len(timing.rates) == 3
    assert {len(run.steps) for run in timing.runs.values()} == {3} and timing.runs["b"].stored == 7


def test_the_warm_up_is_not_timed_and_measures_memory(meter: RateMeter) -> None:
    timing, _ = timing_of(meter, [], None, None, None)
    timing.warm_up(Script("", "lota", STEPS[:2]))
    assert not any(run.steps for run in timing.runs.values()) and not timing.rates
    assert all(run.peak is None or run.peak >= 0 for run in timing.runs.values())


def test_a_failing_contender_is_excluded_with_its_reason(meter: RateMeter) -> None:
    timing, _ = timing_of(meter, [], None, 2, None)
    timing.run([Script("", "lota", STEPS), Script("", "lota", STEPS[:1])])
    assert timing.runs["b"].refusal == "a prompt of 99 tokens is too long" and not timing.runs["b"].steps
    assert [len(timing.runs[name].steps) for name in ("a", "c", "transformers")] == [7, 7, 7]


def test_the_plain_forward_ends_with_its_reference(meter: RateMeter) -> None:
    timing, _ = timing_of(meter, [], 1, None, None)
    timing.run([Script("", "lota", STEPS)])
    assert timing.runs["transformers"].refusal == timing.runs["a"].refusal != ""
    assert len(timing.runs["b"].steps) == 6

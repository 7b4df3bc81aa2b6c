"""Turns: who comes when, and what becomes of those who fail."""

from __future__ import annotations

from dataclasses import dataclass, field

import pytest
import torch

from eval.latency.contenders import PlainForward
from eval.latency.interleaved_timing import InterleavedTiming
from eval.latency.rates import RateMeter
from eval.latency.report.rows import Timed
from eval.latency.script import Script, Step
from keep_agent.errors import CapacityError
from keep_agent.rollout.results import StepNumbers

CPU = torch.device("cpu")
STEPS = (Step((), ("done",), "done"),) * 6


@dataclass
class Runner:
    """A contender that writes down its turns and may stumble at one of them."""

    name: str
    diary: list[str]
    stumbles: int | None = None
    prompt: str = "memory"
    turns: int = 0

    def begin(self, script: Script) -> None:
        self.diary.append("begin")

    def step(self, step: Step) -> Timed:
        if self.turns == self.stumbles:
            raise CapacityError("a prompt of 99 tokens is too long")
        self.turns += 1
        self.diary.append(self.name)
        return Timed(StepNumbers(ttft_ms=float(self.turns)))

    def stored(self) -> int | None:
        return 7


@dataclass
class Follower(PlainForward):
    """The plain forward without a forward: it comes after whom it follows."""

    runner: Runner
    diary: list[str] = field(default_factory=list)
    name: str = "transformers"

    def follows(self, other: object) -> bool:
        return other is self.runner

    def step(self, step: Step) -> Timed:
        self.diary.append(self.name)
        return Timed(StepNumbers(ttft_ms=1.0))


@pytest.fixture(scope="module")
def meter() -> RateMeter:
    return RateMeter(CPU, torch.float32)


def race_of(meter: RateMeter, laps: list[int], *stumbles: int | None) -> tuple[InterleavedTiming, list[str]]:
    diary: list[str] = []
    runners = [Runner(name, diary, at) for name, at in zip("abc", stumbles, strict=True)]
    return InterleavedTiming([*runners, Follower(runners[0], diary)], CPU, meter, laps.append), diary


def test_the_order_rotates_and_the_plain_forward_follows_its_reference(meter: RateMeter) -> None:
    laps: list[int] = []
    race, diary = race_of(meter, laps, None, None, None)
    race.run([Script("", "lota", STEPS[:3])])
    assert "".join(name[0] for name in diary if name != "begin") == "atbc" + "bcat" + "catb"
    assert laps == [1, 2, 3] and len(race.rates) == 3
    assert {len(track.steps) for track in race.tracks.values()} == {3} and race.tracks["b"].stored == 7


def test_warming_up_counts_nothing_and_watches_memory(meter: RateMeter) -> None:
    race, _ = race_of(meter, [], None, None, None)
    race.warm_up(Script("", "lota", STEPS[:2]))
    assert not any(track.steps for track in race.tracks.values()) and not race.rates
    assert all(track.peak is None or track.peak >= 0 for track in race.tracks.values())


def test_one_that_fails_is_out_with_its_reason_and_the_others_go_on(meter: RateMeter) -> None:
    race, _ = race_of(meter, [], None, 2, None)
    race.run([Script("", "lota", STEPS), Script("", "lota", STEPS[:1])])
    assert race.tracks["b"].refused == "a prompt of 99 tokens is too long" and not race.tracks["b"].steps
    assert [len(race.tracks[name].steps) for name in ("a", "c", "transformers")] == [7, 7, 7]


def test_the_plain_forward_cannot_go_on_without_its_reference(meter: RateMeter) -> None:
    race, _ = race_of(meter, [], 1, None, None)
    race.run([Script("", "lota", STEPS)])
    assert race.tracks["transformers"].refused == race.tracks["a"].refused != ""
    assert len(race.tracks["b"].steps) == 6

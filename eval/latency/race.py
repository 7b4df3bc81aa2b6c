"""One cell: all contenders take the same steps in turns, the order rotating, so that noise is shared by all."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

import torch

from eval.latency.contenders import Contender, PlainForward
from eval.latency.peak_memory import Peak
from eval.latency.rates import RateMeter, Rates
from eval.latency.report.rows import Track
from eval.latency.script import Script, Step
from keep_agent.errors import KeepError

STEP_ERRORS = (KeepError, MemoryError, torch.OutOfMemoryError)  # a step that cannot be done here


@dataclass
class InterleavedTiming:
    """Who is in a cell, and how far each has come. One that fails is out, the others go on."""

    contenders: Sequence[Contender]
    device: torch.device
    meter: RateMeter
    tell: Callable[[int], None]  # how many steps are done
    rates: list[Rates] = field(default_factory=list)
    laps: int = 0

    def __post_init__(self) -> None:
        self.tracks = {one.name: Track(one.name, one.prompt) for one in self.contenders}

    def warm_up(self, script: Script) -> None:
        """Steps that are not counted; what memory they need is watched instead."""
        self._each(lambda one: one.begin(script))
        for number, step in enumerate(script.steps):
            for one in self._turn(number):
                self._try(one, lambda one=one, number=number, step=step: self._watch(one, number, step))
            self._lap()

    def run(self, scripts: Sequence[Script]) -> None:
        """All steps, counted; between them the machine's rates are measured."""
        number = 0
        for script in scripts:
            self._each(lambda one, script=script: one.begin(script))
            for step in script.steps:
                self.rates.append(self.meter.sample())
                for one in self._turn(number):
                    self._try(one, lambda one=one, step=step: self.tracks[one.name].steps.append(one.step(step)))
                number += 1
                self._lap()
        for one in self._left():
            self.tracks[one.name].stored = one.stored()

    def _watch(self, one: Contender, number: int, step: Step) -> None:
        peak, track = Peak(self.device), self.tracks[one.name]
        one.step(step)
        grown = peak.grown()
        if number == 0:
            track.peak_cold = grown
        elif grown is not None:
            track.peak = max(track.peak or 0, grown)

    def _lap(self) -> None:
        self.laps += 1
        self.tell(self.laps)

    def _turn(self, number: int) -> Iterator[Contender]:
        """Those left, beginning with another one at every step; the plain forward comes after whose prompt it reads."""
        planned = [one for one in self._left() if not isinstance(one, PlainForward)]
        plain = [one for one in self._left() if isinstance(one, PlainForward)]
        first = number % max(1, len(planned))
        for one in [*planned[first:], *planned[:first]]:
            yield one
            yield from (follower for follower in plain if follower.follows(one) and self._is_in(one))

    def _left(self) -> list[Contender]:
        return [one for one in self.contenders if self._is_in(one)]

    def _is_in(self, one: Contender) -> bool:
        return not self.tracks[one.name].refused

    def _each(self, work: Callable[[Contender], None]) -> None:
        for one in self._left():
            self._try(one, lambda one=one: work(one))

    def _try(self, one: Contender, work: Callable[[], None]) -> None:
        try:
            work()
        except STEP_ERRORS as error:
            self._refuse(one, one_line(error))

    def _refuse(self, one: Contender, reason: str) -> None:
        self.tracks[one.name].refused = reason
        self.tracks[one.name].steps.clear()
        for other in self._left():
            if isinstance(other, PlainForward) and other.follows(one):
                self._refuse(other, reason)


def one_line(error: BaseException) -> str:
    return " ".join(str(error).split()) or type(error).__name__

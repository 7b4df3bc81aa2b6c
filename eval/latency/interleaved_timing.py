"""Interleaved timing of one cell: all contenders take each step in rotating order, so noise affects all equally."""

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

STEP_ERRORS = (KeepError, MemoryError, torch.OutOfMemoryError)  # a contender cannot do a step


@dataclass
class InterleavedTiming:
    """Contenders of a cell and their results. A contender that fails is excluded; the others continue."""

    contenders: Sequence[Contender]
    device: torch.device
    meter: RateMeter
    report: Callable[[int], None]  # called with the number of steps done
    rates: list[Rates] = field(default_factory=list)
    steps: int = 0

    def __post_init__(self) -> None:
        self.tracks = {contender.name: Track(contender.name, contender.prompt) for contender in self.contenders}

    def warm_up(self, script: Script) -> None:
        """Run steps untimed, and measure their peak memory."""
        self._begin(script)
        for number, step in enumerate(script.steps):
            for contender in self._order(number):
                self._attempt(contender, lambda c=contender, n=number, s=step: self._measure_memory(c, n, s))
            self._count_step()

    def run(self, scripts: Sequence[Script]) -> None:
        """Time all steps, and sample the machine's rates between them."""
        number = 0
        for script in scripts:
            self._begin(script)
            for step in script.steps:
                self.rates.append(self.meter.sample())
                for contender in self._order(number):
                    self._attempt(contender, lambda c=contender, s=step: self.tracks[c.name].steps.append(c.step(s)))
                number += 1
                self._count_step()
        for contender in self._active():
            self.tracks[contender.name].stored = contender.stored()

    def _begin(self, script: Script) -> None:
        for contender in self._active():
            self._attempt(contender, lambda c=contender: c.begin(script))

    def _measure_memory(self, contender: Contender, number: int, step: Step) -> None:
        peak, track = Peak(self.device), self.tracks[contender.name]
        contender.step(step)
        growth = peak.growth()
        if number == 0:
            track.peak_cold = growth
        elif growth is not None:
            track.peak = max(track.peak or 0, growth)

    def _count_step(self) -> None:
        self.steps += 1
        self.report(self.steps)

    def _order(self, number: int) -> Iterator[Contender]:
        """Yield active contenders, starting with the next one at every step; a plain forward follows its reference."""
        planners = [contender for contender in self._active() if not isinstance(contender, PlainForward)]
        plain = [contender for contender in self._active() if isinstance(contender, PlainForward)]
        first = number % max(1, len(planners))
        for contender in [*planners[first:], *planners[:first]]:
            yield contender
            yield from (forward for forward in plain if forward.follows(contender) and self._is_active(contender))

    def _active(self) -> list[Contender]:
        return [contender for contender in self.contenders if self._is_active(contender)]

    def _is_active(self, contender: Contender) -> bool:
        return not self.tracks[contender.name].refusal

    def _attempt(self, contender: Contender, work: Callable[[], None]) -> None:
        try:
            work()
        except STEP_ERRORS as error:
            self._exclude(contender, one_line(error))

    def _exclude(self, contender: Contender, reason: str) -> None:
        self.tracks[contender.name].refusal = reason
        self.tracks[contender.name].steps.clear()
        for follower in self._active():
            if isinstance(follower, PlainForward) and follower.follows(contender):
                self._exclude(follower, reason)


def one_line(error: BaseException) -> str:
    return " ".join(str(error).split()) or type(error).__name__

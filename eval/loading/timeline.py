"""What happens when on the lanes of a prefill, played or measured. Times are seconds from its start."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from memory.engine.results import PrefillTrace

COMPUTE, IMPORTANCE, LINK = LANES = ("compute", "importance", "link")


@dataclass(frozen=True, slots=True)
class Event:
    """One piece of work: a ``lane``'s worker is busy with ``kind`` of ``layer``."""

    lane: str
    kind: str  # attention | importance | mlp | load; layer: a whole one, where a trace tells no more
    layer: int
    start: float
    end: float
    nbytes: int = 0  # what a load moved
    runs: int = 0  # in so many contiguous pieces

    @property
    def seconds(self) -> float:
        return self.end - self.start


@dataclass(frozen=True)
class Timeline:
    """All events of one prefill, by the moment they start."""

    events: tuple[Event, ...]

    @classmethod
    def of_trace(cls, trace: PrefillTrace, beside: bool = False) -> Timeline:
        """A measured run, its first event at 0; ``beside``: rows were chosen by a worker of their own."""
        loads = [Event(LINK, "load", one.first, one.start, one.end, one.nbytes, one.runs) for one in trace.loads]
        fed = {one.layer: one.end for one in trace.computes if one.kind == "mlp"}
        computes = [Event(COMPUTE, one.kind, one.layer, one.start, one.end) for one in trace.computes]
        return cls.sorted(
            [*loads, *(_choice_event(event, fed.get(event.layer, event.start), beside) for event in computes)]
        )

    @classmethod
    def sorted(cls, events: list[Event]) -> Timeline:
        """Events in any order and from any zero."""
        zero = min((event.start for event in events), default=0.0)
        moved = [
            Event(e.lane, e.kind, e.layer, e.start - zero, e.end - zero, e.nbytes, e.runs)
            for e in sorted(events, key=lambda e: (e.start, e.end, LANES.index(e.lane)))
        ]
        return cls(tuple(moved))

    @cached_property
    def makespan(self) -> float:
        """Until the last layer is computed."""
        return max((event.end for event in self.events), default=0.0)

    @property
    def order(self) -> tuple[tuple[str, str, int], ...]:
        """``(lane, kind, layer)`` of the events as they start."""
        return tuple((event.lane, event.kind, event.layer) for event in self.events)

    @property
    def nbytes(self) -> int:
        return sum(event.nbytes for event in self.events)

    def on(self, lane: str) -> list[Event]:
        return [event for event in self.events if event.lane == lane]

    def busy(self, lane: str) -> float:
        return sum(event.seconds for event in self.on(lane))

    def idle(self, lane: str) -> float:
        """What the lane's worker waits between the start and the end of the prefill."""
        return self.makespan - self.busy(lane)


def _choice_event(event: Event, fed: float, beside: bool) -> Event:
    """A choice on its lane; if it reads what the layer returns, without the MLP that it waited for, until ``fed``."""
    if event.kind != "importance":
        return event
    start = fed if event.start < fed <= event.end else event.start
    return replace(event, lane=IMPORTANCE if beside else COMPUTE, start=start)

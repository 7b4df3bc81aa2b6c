"""What watchers of a robot's session see, and what a task leaves behind."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from envs.outcome import Outcome
    from keep_agent.agent.types import Decision
    from planners.prompts.styles import FactView

log = logging.getLogger(__name__)

Stop = Literal[
    "done",  # the planner said so
    "stopped",  # somebody called stop
    "interrupted",  # the run itself was broken off, as by Ctrl-C
    "max_steps",
    "stuck",  # the same skill failed too often in a row
    "task_timeout",
    "skill_hangs",  # a skill was cancelled and did not return
    "planner_timeout",
    "planner_error",
    "executor_timeout",
    "executor_error",
    "busy",  # what the last task left behind has still not returned
]


@dataclass(frozen=True, slots=True)
class Step:
    """A skill that was carried out, or begun."""

    skill: str
    outcome: Outcome
    seconds: float


@dataclass(frozen=True, slots=True)
class TaskReport:
    """How a task ended. ``hanging`` names a skill of which nobody knows whether it has ended: look after the robot."""

    instruction: str
    success: bool
    stop: Stop
    message: str = ""
    steps: tuple[Step, ...] = ()
    seconds: float = 0.0
    hanging: str = ""

    def __str__(self) -> str:
        verdict = "success" if self.success else "no success"
        why = f" ({self.message})" if self.message else ""
        return f"{verdict} after {len(self.steps)} skills in {self.seconds:.1f} s: {self.stop}{why}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Event:
    """Something that happened; ``at`` is the wall clock in seconds since 1970."""

    at: float = field(default_factory=time.time)


@dataclass(frozen=True, slots=True)
class Started(Event):
    instruction: str


@dataclass(frozen=True, slots=True)
class Observed(Event):
    """The planner has taken these in. ``skill``: what was carried out meanwhile."""

    facts: tuple[FactView, ...]
    skill: str = ""


@dataclass(frozen=True, slots=True)
class Planned(Event):
    decision: Decision
    seconds: float


@dataclass(frozen=True, slots=True)
class Feedback(Event):
    """What the robot says of the skill on the way."""

    skill: str
    text: str


@dataclass(frozen=True, slots=True)
class Executed(Event):
    skill: str
    outcome: Outcome
    seconds: float


@dataclass(frozen=True, slots=True)
class Finished(Event):
    report: TaskReport


Watch = Callable[[Event], None]


def together(*watchers: Watch | None) -> Watch:
    """Several watchers as one. What one of them raises is logged, and disturbs neither the others nor the task."""

    def watch(event: Event) -> None:
        for watcher in filter(None, watchers):
            try:
                watcher(event)
            except Exception:
                log.exception("a watcher failed on %s", type(event).__name__)

    return watch

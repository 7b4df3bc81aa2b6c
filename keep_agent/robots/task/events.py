"""Task interface of a robot: limits, events, report and status."""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, field, fields, replace
from typing import Literal

from envs.outcome import Outcome
from keep_agent.agent.types import Decision
from keep_agent.errors import ConfigError
from planners.base import DONE
from planners.prompts.styles import FactView
from planners.prompts.text import UNEXPLAINED

MAX_LIMIT = 1_000_000  # seconds: eleven days


@dataclass(frozen=True, slots=True)
class Limits:
    """Limits of a session, in seconds except ``steps`` and ``failures``. Raises ConfigError for values out of range."""

    skill: float = 120.0  # one skill; a longer one is cancelled, and the task continues
    task: float = 1800.0  # one task
    answer: float = 60.0  # one call of the planner, the judge, or the executor's `skills` or `observe`
    cancel: float = 10.0  # from the cancellation of a skill to the return of its `execute`
    period: float = 0.5  # between two observations during a skill
    steps: int = 100  # skills per task
    failures: int = 5  # failures of the same skill in a row

    @property
    def longest_stop(self) -> float:
        """Maximum seconds from a stop to the end of its task."""
        return self.cancel + 2 * self.answer

    def __post_init__(self) -> None:
        for limit in fields(self):
            value = getattr(self, limit.name)
            if not 0 < value <= MAX_LIMIT:
                raise ConfigError(f"limit {limit.name}={value!r} must be above 0, up to {MAX_LIMIT}")


log = logging.getLogger(__name__)

StopReason = Literal[
    "done",  # the planner decided "done"
    "stopped",  # stop was called
    "interrupted",  # an exception such as Ctrl-C
    "max_steps",
    "stuck",  # the same skill failed too often in a row
    "task_timeout",
    "skill_hangs",  # a cancelled skill did not return
    "planner_timeout",
    "planner_error",
    "executor_timeout",
    "executor_error",
    "busy",  # another task is running, or a call of an earlier task has not returned
]


@dataclass(frozen=True, slots=True)
class Step:
    """A skill that was executed, or refused because it was impossible."""

    skill: str
    outcome: Outcome
    seconds: float


@dataclass(frozen=True, slots=True)
class TaskReport:
    """Result of a task. ``hanging`` names a skill that may still be running: check the robot."""

    instruction: str
    success: bool
    stop: StopReason
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
    """Event of a session; ``at`` is the Unix time in seconds."""

    at: float = field(default_factory=time.time)


@dataclass(frozen=True, slots=True)
class Started(Event):
    instruction: str


@dataclass(frozen=True, slots=True)
class Observed(Event):
    """Facts that the planner has accepted; ``skill`` is the skill that was running, if any."""

    facts: tuple[FactView, ...]
    skill: str = ""


@dataclass(frozen=True, slots=True)
class Planned(Event):
    decision: Decision
    seconds: float


@dataclass(frozen=True, slots=True)
class Feedback(Event):
    """Progress that the robot reports during a skill."""

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


EventWatcher = Callable[[Event], None]


def combine_watchers(*watchers: EventWatcher | None) -> EventWatcher:
    """Combine watchers. An error of one is logged, and affects neither the others nor the task."""

    def watch(event: Event) -> None:
        for watcher in filter(None, watchers):
            try:
                watcher(event)
            except Exception:
                log.exception("a watcher failed on %s", type(event).__name__)

    return watch


State = Literal["idle", "planning", "executing"]


@dataclass(frozen=True, slots=True)
class Status:
    """Status of a task. ``ok`` and ``message`` describe the last skill, ``success`` and ``stop`` the finished task."""

    state: State = "idle"
    instruction: str = ""
    step: int = 0  # number of skills begun in this task
    skill: str = ""
    text: str = ""  # latest feedback of the robot
    ok: bool | None = None
    message: str = ""
    success: bool | None = None
    stop: str = ""
    report: str = ""

    def to_json(self) -> str:
        return json.dumps(asdict(self), ensure_ascii=False)


def status_after(status: Status, event: Event) -> Status:
    """Return the status after an event; the same object if nothing changes."""
    match event:
        case Started():
            return Status("planning", event.instruction)
        case Planned() if event.decision.skill == DONE:
            return replace(status, skill=DONE, text="")
        case Planned():
            return replace(status, state="executing", step=status.step + 1, skill=event.decision.skill, text="")
        case Feedback():
            return replace(status, text=event.text)
        case Executed():
            return replace(status, state="planning", ok=event.outcome.ok, message=event.outcome.message)
        case Finished():
            report = event.report
            return replace(status, state="idle", success=report.success, stop=report.stop, report=str(report))
    return status


def describe_event(event: Event) -> str:
    """Return a sentence about an event for people, or "" for events without one."""
    match event:
        case Planned():
            return f"next: {event.decision.skill}"
        case Feedback():
            return f"{event.skill}: {event.text}"
        case Executed():
            failed = f"failed: {event.outcome.message or UNEXPLAINED}"
            return f"{event.skill}: {'done' if event.outcome.ok else failed}"
    return ""

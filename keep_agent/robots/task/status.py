"""Where a robot's task stands, for a topic that whoever comes late reads as well."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, replace
from typing import Literal

from keep_agent.robots.task.events import Event, Executed, Feedback, Finished, Planned, Started
from planners.base import DONE
from planners.prompts.text import UNEXPLAINED

State = Literal["idle", "planning", "executing"]


@dataclass(frozen=True, slots=True)
class Status:
    """``ok`` and ``message`` are the last skill's; ``success`` and ``stop`` the last task's, once it is over."""

    state: State = "idle"
    instruction: str = ""
    step: int = 0  # skills begun in this task
    skill: str = ""
    text: str = ""  # what the robot said last
    ok: bool | None = None
    message: str = ""
    success: bool | None = None
    stop: str = ""
    report: str = ""

    def to_json(self) -> str:
        return json.dumps(asdict(self), ensure_ascii=False)


def after(status: Status, event: Event) -> Status:
    """The status when an event has happened; the same object if that changes nothing."""
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


def sentence(event: Event) -> str:
    """What a person wants to hear of an event; "" for nothing."""
    match event:
        case Planned():
            return f"next: {event.decision.skill}"
        case Feedback():
            return f"{event.skill}: {event.text}"
        case Executed():
            failed = f"failed: {event.outcome.message or UNEXPLAINED}"
            return f"{event.skill}: {'done' if event.outcome.ok else failed}"
    return ""

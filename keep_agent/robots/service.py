"""Planner service that the ROS 1, ROS 2 and rosbridge servers share: tasks, single plans, facts and status."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Unpack

from envs.outcome import Outcome
from keep_agent.agent.types import Planning
from keep_agent.errors import DataError
from keep_agent.robots.executor import RobotError, SkillExecutor, read_facts
from keep_agent.robots.session import RobotSession, SessionOptions
from keep_agent.robots.task import events
from keep_agent.robots.task.events import Event, EventWatcher, Started, Status, TaskReport

SendText = Callable[[str], None]
log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class ServiceReply:
    """Response to a request; ``report`` gives the reason of a failure."""

    ok: bool
    report: str = ""
    skill: str = ""


class RobotService:
    """`RobotSession` whose errors become responses. ``send`` is called with the status as JSON whenever it changes."""

    def __init__(
        self,
        planner: Planning,
        executor: SkillExecutor,
        *,
        watch: EventWatcher | None = None,
        send: SendText = lambda text: None,
        **options: Unpack[SessionOptions],
    ) -> None:
        self.status = Status()
        self._send = send
        self.session = RobotSession(planner, executor, watch=events.combine_watchers(watch, self._watch), **options)
        self.stop, self.close = self.session.stop, self.session.close

    def run(
        self, instruction: str, feedback: SendText = lambda text: None, stopped: Callable[[], bool] = lambda: False
    ) -> TaskReport:
        """Run a task. ``feedback`` gets progress messages; ``stopped`` tells whether the task is already cancelled."""

        def watch(event: Event) -> None:
            if isinstance(event, Started) and stopped():
                self.session.stop("cancelled before it began")
            if text := events.describe_event(event):
                feedback(text)

        try:
            return self.session.run(instruction, watch)
        except RobotError as error:
            return TaskReport(instruction, False, "busy", str(error))

    def plan(self, instruction: str, skills: Sequence[str]) -> ServiceReply:
        """Return the next skill, which the caller carries out."""
        try:
            return ServiceReply(True, skill=self.session.plan(instruction, skills).skill)
        except Exception as error:
            return _refusal(error)

    def report(self, ok: bool, message: str) -> ServiceReply:
        """Report the result of the last planned skill."""
        try:
            self.session.report(Outcome(ok, message))
            return ServiceReply(True)
        except Exception as error:
            return _refusal(error)

    def facts(self, text: str) -> None:
        """Add facts as JSON. Invalid facts are logged and ignored, since a topic has no response."""
        try:
            self.session.tell(read_facts(text))
        except DataError as error:
            log.warning("facts ignored: %s", error)

    def announce(self) -> None:
        self._send(self.status.to_json())

    def _watch(self, event: Event) -> None:
        before, self.status = self.status, events.status_after(self.status, event)
        if self.status is not before:
            self.announce()


def _refusal(error: Exception) -> ServiceReply:
    return ServiceReply(False, str(error) if isinstance(error, RobotError) else f"{type(error).__name__}: {error}")

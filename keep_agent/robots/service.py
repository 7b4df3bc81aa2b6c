"""What a robot's planner offers over any wire: whole tasks, single plans, facts in, status out."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Sequence
from threading import Lock
from typing import TYPE_CHECKING

from keep_agent.errors import DataError
from keep_agent.robots.desk import Answer, PlanDesk
from keep_agent.robots.errors import RobotTimeout
from keep_agent.robots.events import TaskReport, together
from keep_agent.robots.facts import read_facts
from keep_agent.robots.limits import Limits
from keep_agent.robots.session import RobotSession
from keep_agent.robots.status import Status, after, sentence

if TYPE_CHECKING:
    from envs.fact import Fact
    from envs.outcome import Outcome
    from keep_agent.api import Planning
    from keep_agent.robots.events import Event, Watch
    from keep_agent.robots.executor import SkillExecutor
    from keep_agent.robots.run import Judge

log = logging.getLogger(__name__)


class _Told:
    """An executor whose facts come from others as well."""

    def __init__(self, inner: SkillExecutor) -> None:
        self.inner = inner
        self._facts: list[Fact] = []
        self._lock = Lock()

    def tell(self, facts: Iterable[Fact]) -> None:
        with self._lock:
            self._facts.extend(facts)

    def taken(self) -> list[Fact]:
        with self._lock:
            facts, self._facts = self._facts, []
        return facts

    def skills(self) -> Sequence[str]:
        return self.inner.skills()

    def observe(self) -> list[Fact]:
        return [*self.inner.observe(), *self.taken()]

    def execute(self, skill: str, feedback: Callable[[str], None]) -> Outcome:
        return self.inner.execute(skill, feedback)

    def cancel(self) -> None:
        self.inner.cancel()


class RobotService:
    """One robot, one planner, one thing at a time. ``tell`` gets the status as JSON whenever it has changed."""

    def __init__(
        self,
        planner: Planning,
        executor: SkillExecutor,
        *,
        limits: Limits | None = None,
        judge: Judge | None = None,
        watch: Watch | None = None,
        tell: Callable[[str], None] = lambda text: None,
    ) -> None:
        self.limits = limits or Limits()
        self.status = Status()
        self._tell = tell
        self._feedback: Callable[[str], None] | None = None
        self._robot = _Told(executor)
        watchers = together(*([watch] if watch else []), self._watch)
        self.session = RobotSession(planner, self._robot, limits=self.limits, watch=watchers, judge=judge)
        self.desk = PlanDesk(planner, self.limits.answer)
        self._planner = Lock()  # held by whoever talks to the planner

    def run(
        self,
        instruction: str,
        feedback: Callable[[str], None] = lambda text: None,
        stopped: Callable[[], bool] = lambda: False,
    ) -> TaskReport:
        """Do a whole task. ``stopped``: whether somebody wanted it to stop before it began."""
        if not self._planner.acquire(timeout=self.limits.answer):
            return TaskReport(instruction, False, "busy", "the planner is busy with another task or plan")
        try:
            self.desk.leave()
            self._feedback, self._stopped = feedback, stopped
            return self.session.run(instruction)
        except RobotTimeout as error:
            return TaskReport(instruction, False, "planner_timeout", str(error))
        finally:
            self._feedback = None
            self._planner.release()

    def stop(self, reason: str) -> bool:
        """End the task that is on; whether there is one."""
        return self.session.stop(reason)

    @property
    def longest_stop(self) -> float:
        """Seconds from a stop to the end of its task, at most."""
        return self.limits.cancel + 2 * self.limits.answer

    def plan(self, instruction: str, skills: Sequence[str]) -> Answer:
        """The next skill, which the caller carries out."""
        return self._alone(lambda: self.desk.plan(instruction, skills, self._robot.taken()))

    def report(self, ok: bool, message: str) -> Answer:
        """What became of that skill."""
        return self._alone(lambda: self.desk.report(ok, message))

    def facts(self, text: str) -> None:
        """Facts as JSON, for whatever is planned next. What is none is logged: a topic has nobody to complain to."""
        try:
            self._robot.tell(read_facts(text))
        except DataError as error:
            log.warning("facts ignored: %s", error)

    def announce(self) -> None:
        """Tell the status as it is."""
        self._tell(self.status.to_json())

    def _alone(self, function: Callable[[], Answer]) -> Answer:
        if not self._planner.acquire(blocking=False):
            return Answer(False, "a task is on, or another plan: ask again when it is over")
        try:
            return function()
        finally:
            self._planner.release()

    def _watch(self, event: Event) -> None:
        before, self.status = self.status, after(self.status, event)
        if self.status is not before:
            self.announce()
        if self._feedback is not None:
            if self._stopped():
                self.session.stop("cancelled before it began")
            if text := sentence(event):
                self._feedback(text)

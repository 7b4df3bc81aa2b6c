"""A robot's tasks, one after another: planner, executor, time-outs, and a button to stop."""

from __future__ import annotations

from concurrent.futures import Future, InvalidStateError
from contextlib import contextmanager, suppress
from threading import Event as Flag
from threading import Lock, RLock
from typing import TYPE_CHECKING, Any

from envs.clock import Clock
from keep_agent.robots.calls import Call
from keep_agent.robots.errors import RobotError
from keep_agent.robots.events import Finished, Started, TaskReport
from keep_agent.robots.limits import Limits
from keep_agent.robots.run import Judge, TaskRun

if TYPE_CHECKING:
    from collections.abc import Iterator

    from keep_agent.api import Planning
    from keep_agent.robots.events import Event, Watch
    from keep_agent.robots.executor import SkillExecutor
    from planners.styles import FactView


class RobotSession:
    """``watch`` hears of everything, one event at a time, on several threads; it should return soon.

    ``judge`` tells whether a task that the planner calls done is done; without it the planner's word counts.
    """

    def __init__(
        self,
        planner: Planning,
        executor: SkillExecutor,
        *,
        limits: Limits | None = None,
        watch: Watch | None = None,
        judge: Judge | None = None,
    ) -> None:
        self.planner, self.executor, self.judge = planner, executor, judge
        self.limits = limits or Limits()
        self._watch, self._telling = watch, RLock()
        self._lock = Lock()
        self._idle = Flag()
        self._idle.set()
        self._pressed: Future[str] | None = None  # the button of the task that is on
        self._left: list[Call[Any]] = []  # calls of earlier tasks that have not returned
        self._unseen: list[FactView] = []

    @property
    def busy(self) -> bool:
        """Whether a task is on."""
        return self._pressed is not None

    def run(self, instruction: str) -> TaskReport:
        """Do a task. Blocks until it is over, which the limits see to; nothing of ours is left running then.

        A skill that does not return after it was cancelled, and a planner that does not answer, are left alone; the
        next task waits for them as long as for an answer, and does not begin without them. Raises RobotError if
        another task is on.
        """
        with self._button() as pressed:
            left = self._still_left(pressed)
            if left or pressed.done():
                return self._refused(instruction, left, pressed)
            task = TaskRun(
                self.planner,
                self.executor,
                instruction,
                limits=self.limits,
                pressed=pressed,
                unseen=self._unseen,
                watch=self._tell,
                judge=self.judge,
            )
            try:
                return task.play()
            finally:
                self._left = task.calls

    def stop(self, reason: str = "somebody pressed stop") -> bool:
        """End the task that is on, soon; from any thread. The first reason counts.

        Without a task nothing happens, and the next one is not concerned; returns whether there was one.
        """
        pressed = self._pressed
        if pressed is None:
            return False
        with suppress(InvalidStateError):
            pressed.set_result(reason)
        return True

    def wait(self, seconds: float) -> bool:
        """Until no task is on; whether that is so."""
        return self._idle.wait(seconds)

    @contextmanager
    def _button(self) -> Iterator[Future[str]]:
        with self._lock:
            if self._pressed is not None:
                raise RobotError("a task is on, and a robot does one at a time: wait for its end, or stop it")
            self._pressed = pressed = Future()
            self._idle.clear()
        try:
            yield pressed
        finally:
            self._pressed = None
            self._idle.set()

    def _still_left(self, pressed: Future[str]) -> list[Call[Any]]:
        clock = Clock(self.limits.answer)
        for call in self._left:
            call.wait(clock.rest, pressed)
        self._left = [call for call in self._left if not call.done]
        return self._left

    def _refused(self, instruction: str, left: list[Call[Any]], pressed: Future[str]) -> TaskReport:
        names = ", ".join(dict.fromkeys(call.name for call in left))
        if pressed.done():
            report = TaskReport(instruction, False, "stopped", pressed.result())
        else:
            report = TaskReport(instruction, False, "busy", f"of an earlier task has not returned: {names}")
        self._tell(Started(instruction))
        self._tell(Finished(report))
        return report

    def _tell(self, event: Event) -> None:
        if self._watch is not None:
            with self._telling:
                self._watch(event)

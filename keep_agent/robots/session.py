"""Session of a robot and its planner: tasks, or single plans (the caller moves the robot), with limits and stop."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, InvalidStateError
from contextlib import contextmanager, suppress
from functools import partial
from threading import Event as ThreadEvent
from threading import Lock, RLock
from typing import Any, TypedDict, TypeVar

from envs.clock import Clock
from envs.outcome import Outcome
from keep_agent.agent.types import Decision, Planning
from keep_agent.robots.executor import RobotError, RobotTimeout, SkillExecutor
from keep_agent.robots.task.bounded_call import BoundedCall
from keep_agent.robots.task.dialogue import PendingFacts, SinglePlans
from keep_agent.robots.task.events import Event, EventWatcher, Finished, Limits, Started, TaskReport, combine_watchers
from keep_agent.robots.task.run import Judge, TaskRun
from planners.prompts.styles import FactView

T = TypeVar("T")
TASK_RUNNING = "a task is running, and a robot does one at a time: wait for its end, or stop it"


class SessionOptions(TypedDict, total=False):
    """Options of a `RobotSession` besides planner and executor."""

    limits: Limits | None
    judge: Judge | None


class RobotSession:
    """Robot and planner, for one task or single plan at a time: `run` moves the robot, `plan` only names a skill.

    :param watch: called with every event, one at a time, from several threads; the task waits for each call
    :param judge: returns the outcome of a task for which the planner has decided "done"; None: a success
    """

    def __init__(
        self,
        planner: Planning,
        executor: SkillExecutor,
        *,
        limits: Limits | None = None,
        watch: EventWatcher | None = None,
        judge: Judge | None = None,
    ) -> None:
        self.planner, self.executor, self.judge = planner, executor, judge
        self.limits = limits or Limits()
        self._watch, self._event_lock = watch, RLock()
        self._lock = Lock()
        self._idle = ThreadEvent()
        self._idle.set()
        self._closed = ""  # reason given to `close`
        self._stop_requested: Future[str] | None = None  # the result is the reason to stop; None without a task
        self._calls: list[BoundedCall[Any]] = []  # calls that may still be running
        self._pending = PendingFacts()
        self._single_plans = SinglePlans(planner, self._pending)
        self._end_count = 0  # how often a task, `close` or a time limit ended the single plans

    def run(self, instruction: str, watch: EventWatcher | None = None) -> TaskReport:
        """Run a task; block until it ends, which the limits guarantee.

        A cancelled skill or a planner call that does not return is left running. The next task waits up to
        `Limits.answer` for this call, then fails. ``watch`` is called with this task's events. Raises RobotError while
        another task is running.
        """
        emit = self._task_watcher(watch)
        with self._claim_task() as stop_requested:
            calls = self._wait_for_calls(stop_requested)
            if calls or stop_requested.done():
                return _refusal(instruction, calls, stop_requested, emit)
            robot = self.planner, self.executor, instruction, self.limits
            task = TaskRun(*robot, stop_requested, self._pending, emit, self.judge)
            try:
                return task.play()
            finally:
                with self._lock:
                    self._calls = task.calls

    def plan(self, instruction: str, skills: Sequence[str]) -> Decision:
        """Return the next skill, which the caller carries out. Successive plans with the same instruction are one task.

        Raises RobotError while a task is running and after `close`, and the planner's errors. A planner that exceeds
        `Limits.answer` causes RobotTimeout, and its task ends.
        """
        if not instruction.strip() or not skills:
            raise RobotError(f"a plan needs an instruction and skills, not {instruction!r} and {list(skills)}")
        ends = 0

        def begin() -> Callable[[], Decision]:
            nonlocal ends
            ends = self._end_count
            return self._single_plans.next_plan(instruction, tuple(skills))

        decision = self._call_planner("plan", begin)
        if self._end_count != ends or self._stop_requested is not None:  # the plan's task has ended
            raise RobotError(self._closed or TASK_RUNNING)
        return decision

    def report(self, outcome: Outcome) -> None:
        """Report the result of the last planned skill. Without a report the next `plan` counts the skill as a success.

        Raises RobotError if no planned skill awaits a report, and the same errors as `plan`.
        """
        self._single_plans.next_report(outcome)  # raises an error at once if there is no plan to report on
        self._call_planner("report", partial(self._single_plans.next_report, outcome))

    def tell(self, facts: Iterable[FactView]) -> None:
        """Add facts that do not come from the executor. The next observation or plan passes them to the planner."""
        self._pending.add(facts)

    def stop(self, reason: str = "stop was pressed") -> bool:
        """End the running task, from any thread; return whether there was one. The first reason counts.

        Single plans are not stopped, since their caller moves the robot.
        """
        stop_requested = self._stop_requested
        if stop_requested is None:
            return False
        with suppress(InvalidStateError):
            stop_requested.set_result(reason)
        return True

    def close(self, reason: str = "the planner is shut down") -> bool:
        """Stop the running task and reject further ones; return whether all calls ended in time."""
        clock = Clock(self.limits.longest_stop)
        with self._lock:
            self._closed = reason
            self._end_plans(reason)
        self.stop(reason)
        return self._idle.wait(clock.remaining) and all(call.wait(clock.remaining) for call in list(self._calls))

    @contextmanager
    def _claim_task(self) -> Iterator[Future[str]]:
        with self._lock:
            if self._stop_requested is not None:
                raise RobotError(TASK_RUNNING)
            self._stop_requested = stop_requested = Future()
            self._idle.clear()
            if self._closed:
                stop_requested.set_result(self._closed)
        try:
            yield stop_requested
        finally:
            self._stop_requested = None
            self._idle.set()

    def _wait_for_calls(self, stop_requested: Future[str]) -> list[BoundedCall[Any]]:
        """End single plans, wait for earlier calls up to `Limits.answer`, and return those still running."""
        with self._lock:
            self._end_plans("another task or plan has begun")
        clock = Clock(self.limits.answer)
        for call in self._calls:
            call.wait(clock.remaining, stop_requested)
        self._calls = [call for call in self._calls if not call.done]
        return self._calls

    def _call_planner(self, name: str, begin: Callable[[], Callable[[], T]]) -> T:
        """Run a call of the single plans with a time limit. ``begin`` runs under the lock and returns this call."""
        with self._lock:
            self._calls = [call for call in self._calls if not call.done]
            if self._closed:
                raise RobotError(self._closed)
            if self._stop_requested is not None:
                raise RobotError(TASK_RUNNING)
            if self._calls:
                raise RobotTimeout(f"an earlier call is still running ({self._calls[0].name}): try again when it ends")
            call = BoundedCall(name, begin())
            self._calls = [call]
        call.wait(self.limits.answer)
        with self._lock:  # a new task on another thread may be ending the single plans
            if call.done:
                return call.result
            self._end_plans("the answer came too late")
        raise RobotTimeout(f"the planner did not answer within {self.limits.answer:g} s")

    def _end_plans(self, why: str) -> None:
        self._end_count += 1
        end = self._single_plans.end_task(why)
        if end is not None:
            self._calls.append(BoundedCall("end", end))

    def _task_watcher(self, watch: EventWatcher | None) -> EventWatcher:
        """Return the watcher of one task, which drops events after its end."""
        all_watch, over = combine_watchers(self._watch, watch), False

        def emit(event: Event) -> None:
            nonlocal over
            with self._event_lock:
                if not over:
                    over = isinstance(event, Finished)
                    all_watch(event)

        return emit


def _refusal(
    instruction: str, calls: Sequence[BoundedCall[Any]], stop_requested: Future[str], emit: Callable[[Event], None]
) -> TaskReport:
    names = ", ".join(dict.fromkeys(call.name for call in calls))
    report = TaskReport(instruction, False, "busy", f"a call of an earlier task has not returned: {names}")
    if stop_requested.done():
        report = TaskReport(instruction, False, "stopped", stop_requested.result())
    emit(Started(instruction))
    emit(Finished(report))
    return report

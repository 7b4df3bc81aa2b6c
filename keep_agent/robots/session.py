"""A robot and its planner: tasks or single plans, one thing at a time, with time-outs and a way to stop."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, InvalidStateError
from contextlib import contextmanager, suppress
from functools import partial
from threading import Event as Flag
from threading import Lock, RLock
from typing import TYPE_CHECKING, Any, TypedDict, TypeVar

from envs.clock import Clock
from keep_agent.robots.executor import RobotError, RobotTimeout
from keep_agent.robots.task.bounded_call import Call
from keep_agent.robots.task.dialogue import PendingFacts, SinglePlans
from keep_agent.robots.task.events import Finished, Limits, Started, TaskReport, together
from keep_agent.robots.task.run import Judge, TaskRun

if TYPE_CHECKING:
    from envs.outcome import Outcome
    from keep_agent.agent.types import Decision, Planning
    from keep_agent.robots.executor import SkillExecutor
    from keep_agent.robots.task.events import Event, Watch
    from planners.prompts.text import FactView

T = TypeVar("T")
ON = "a task is on, and a robot does one thing at a time: wait for its end, or stop it"


class SessionOptions(TypedDict, total=False):
    """What a `RobotSession` may be given beside its planner and executor."""

    limits: Limits | None
    judge: Judge | None


class RobotSession:
    """``watch`` hears of everything, one event at a time, on several threads. It should return soon: the task waits.

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
        self._closed = ""  # why nothing begins any more
        self._stop_requested: Future[str] | None = None  # to be done with the reason; of the task that is on
        self._left: list[Call[Any]] = []  # calls that may not have returned
        self._pending = PendingFacts()
        self._plans = SinglePlans(planner, self._pending)
        self._ends = 0  # how often what was planned singly was ended

    def run(self, instruction: str, watch: Watch | None = None) -> TaskReport:
        """Do a task. Blocks until it is over, which the limits see to; nothing of ours is left running then.

        A skill that does not return after it was cancelled, and a planner that does not answer, are left alone; the
        next task waits for them as long as for an answer, and does not begin without them. Raises RobotError if
        another task is on. ``watch`` hears of this task only.
        """
        tell = self._teller(watch)
        with self._claimed() as stop_requested:
            left = self._still_left(stop_requested)
            if left or stop_requested.done():
                return _refused(instruction, left, stop_requested, tell)
            task = TaskRun(
                self.planner,
                self.executor,
                instruction,
                limits=self.limits,
                stop_requested=stop_requested,
                pending=self._pending,
                watch=tell,
                judge=self.judge,
            )
            try:
                return task.play()
            finally:
                with self._lock:
                    self._left = task.calls

    def plan(self, instruction: str, skills: Sequence[str]) -> Decision:
        """The next skill, which the caller carries out. The instruction stays the same as long as the task does.

        Raises RobotError while a task is on, RobotTimeout if the planner does not answer within `Limits.answer`; then
        the task is over for the planner as soon as it does. Raises what else the planner raises.
        """
        if not instruction.strip() or not skills:
            raise RobotError(f"a plan needs an instruction and skills, not {instruction!r} and {list(skills)}")
        ends = 0

        def begin() -> Callable[[], Decision]:
            nonlocal ends
            ends = self._ends
            return self._plans.asked(instruction, tuple(skills))

        decision = self._bounded("plan", begin)
        if self._ends != ends or self._stop_requested is not None:  # the planner is told that this plan is over
            raise RobotError(self._closed or ON)
        return decision

    def report(self, outcome: Outcome) -> None:
        """What became of that skill. One that nobody reports on counts as carried out when the next is asked for.

        Raises RobotError if there is none, and as `plan` does.
        """
        self._plans.reported(outcome)  # says at once if there is nothing to report on
        self._bounded("report", partial(self._plans.reported, outcome))

    def tell(self, facts: Iterable[FactView]) -> None:
        """Facts from elsewhere, for the next look, plan or task."""
        self._pending.add(facts)

    def stop(self, reason: str = "somebody pressed stop") -> bool:
        """End the task that is on, soon; from any thread. The first reason counts.

        Without a task nothing happens, and the next one is not concerned; returns whether there was one. A single plan
        is not stopped: the robot is its caller's.
        """
        stop_requested = self._stop_requested
        if stop_requested is None:
            return False
        with suppress(InvalidStateError):
            stop_requested.set_result(reason)
        return True

    def close(self, reason: str = "the planner is shut down") -> bool:
        """Stop what is on, for good: what is asked for from now on is stopped at once. Whether all ended in time."""
        clock = Clock(self.limits.longest_stop)
        with self._lock:
            self._closed = reason
            self._end_plans(reason)
        self.stop(reason)
        return self._idle.wait(clock.remaining) and all(call.wait(clock.remaining) for call in list(self._left))

    @contextmanager
    def _claimed(self) -> Iterator[Future[str]]:
        with self._lock:
            if self._stop_requested is not None:
                raise RobotError(ON)
            self._stop_requested = stop_requested = Future()
            self._idle.clear()
            if self._closed:
                stop_requested.set_result(self._closed)
        try:
            yield stop_requested
        finally:
            self._stop_requested = None
            self._idle.set()

    def _still_left(self, stop_requested: Future[str]) -> list[Call[Any]]:
        """Calls that keep a task from beginning: earlier ones, and what ends single plans for the planner."""
        with self._lock:
            self._end_plans("something else was begun")
        clock = Clock(self.limits.answer)
        for call in self._left:
            call.wait(clock.remaining, stop_requested)
        self._left = [call for call in self._left if not call.done]
        return self._left

    def _bounded(self, name: str, begin: Callable[[], Callable[[], T]]) -> T:
        """A call for a single plan; ``begin`` is called under the lock, and gives what waits for the planner."""
        with self._lock:
            self._left = [call for call in self._left if not call.done]
            if self._closed:
                raise RobotError(self._closed)
            if self._stop_requested is not None:
                raise RobotError(ON)
            if self._left:
                raise RobotTimeout(f"an earlier {self._left[0].name} is still at work: ask again when it is over")
            call = Call(name, begin())
            self._left = [call]
        call.wait(self.limits.answer)
        with self._lock:  # against a task that begins, which ends this as well
            if call.done:
                return call.result
            self._end_plans("the answer came too late")
        raise RobotTimeout(f"the planner did not answer within {self.limits.answer:g} s")

    def _end_plans(self, why: str) -> None:
        self._ends += 1
        end = self._plans.leave(why)
        if end is not None:
            self._left.append(Call("end", end))

    def _teller(self, watch: Watch | None) -> Watch:
        """Tells of one task, and nothing after its end: what was left alone may still have something to say."""
        all_watch, over = together(self._watch, watch), False

        def tell(event: Event) -> None:
            nonlocal over
            with self._telling:
                if not over:
                    over = isinstance(event, Finished)
                    all_watch(event)

        return tell


def _refused(
    instruction: str, left: Sequence[Call[Any]], stop_requested: Future[str], tell: Callable[[Event], None]
) -> TaskReport:
    names = ", ".join(dict.fromkeys(call.name for call in left))
    if stop_requested.done():
        report = TaskReport(instruction, False, "stopped", stop_requested.result())
    else:
        report = TaskReport(instruction, False, "busy", f"of an earlier task has not returned: {names}")
    tell(Started(instruction))
    tell(Finished(report))
    return report

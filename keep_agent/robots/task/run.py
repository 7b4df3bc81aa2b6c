"""Run of one robot task: observe, plan, execute, report, until it ends."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal, TypeVar

from envs.clock import Clock
from envs.outcome import SUCCESS, Outcome, failed
from keep_agent.agent.types import Decision, Planning
from keep_agent.robots.executor import SkillExecutor, SkillLost
from keep_agent.robots.task import events
from keep_agent.robots.task.bounded_call import BoundedCall
from keep_agent.robots.task.dialogue import Dialogue, PendingFacts
from keep_agent.robots.task.events import EventWatcher, Limits, Step, StopReason, TaskReport
from planners.base import DONE
from planners.prompts.text import UNEXPLAINED

log = logging.getLogger(__name__)
T = TypeVar("T")
Judge = Callable[[], Outcome]


@dataclass(eq=False)
class TaskEnd(Exception):
    """Exception that ends the loop of a task."""

    stop: StopReason
    message: str = ""
    success: bool = False


@dataclass(eq=False)
class TaskRun:
    """One task. The thread that runs it only waits: every call that may block is a `BoundedCall` on another thread."""

    planner: Planning
    executor: SkillExecutor
    instruction: str
    limits: Limits
    stop_requested: Future[str]  # its result is the reason to stop
    pending: PendingFacts
    watch: EventWatcher  # called with events; drops events after the end of the task
    judge: Judge | None

    def __post_init__(self) -> None:
        self.dialogue = Dialogue(self.planner, self.instruction)
        self._observation_callee: Literal["executor", "planner"] = "executor"  # the side that an observation calls now
        self.clock = Clock(self.limits.task)
        self.calls: list[BoundedCall[Any]] = []  # calls that may still be running
        self.steps: list[Step] = []
        self._verdict: Outcome | None = None  # outcome that has not been reported to the planner yet
        self._failures = 0
        self._hanging = ""  # skill that may still be running

    def play(self) -> TaskReport:
        """Run the task. An error of the planner or executor ends it. So does an interrupt, which is raised again."""
        self.watch(events.Started(self.instruction))
        try:
            while True:
                self._run_step()
        except TaskEnd as end:
            return self._finish(end)
        except BaseException as error:  # usually Ctrl-C
            self._finish(TaskEnd("interrupted", type(error).__name__))
            raise

    def _run_step(self) -> None:
        if len(self.steps) >= self.limits.steps:
            raise TaskEnd("max_steps", f"{self.limits.steps} skills were not enough")
        self._wait_for("", self._start_observation())
        skills = self._wait_for("executor", self._start_call("skills", lambda: tuple(self.executor.skills())))
        skills = skills if DONE in skills else (*skills, DONE)
        decision = self._plan(skills)
        if decision.skill == DONE:
            self._conclude()
        outcome = self._try_skill(decision.skill, skills)
        self._report(outcome)
        repeated = len(self.steps) > 1 and self.steps[-2].skill == decision.skill
        self._failures = 0 if outcome.ok else self._failures + 1 if repeated else 1
        if self._failures >= self.limits.failures:
            why = outcome.message or UNEXPLAINED
            raise TaskEnd("stuck", f"{decision.skill!r} failed {self._failures} times in a row: {why}")

    def _plan(self, skills: Sequence[str]) -> Decision:
        clock = Clock(self.limits.answer)
        decision = self._wait_for("planner", self._start_call("plan", partial(self.dialogue.plan, skills)))
        if not isinstance(getattr(decision, "skill", None), str):
            raise TaskEnd("planner_error", f"the planner's plan returned {decision!r}, which is not a Decision")
        self.watch(events.Planned(decision, clock.elapsed))
        return decision

    def _conclude(self) -> None:
        outcome = SUCCESS if self.judge is None else self._wait_for("executor", self._start_call("judge", self.judge))
        if not isinstance(outcome, Outcome):
            raise TaskEnd("executor_error", f"the judge returned {outcome!r}, which is not an Outcome")
        self._report(outcome)
        raise TaskEnd("done", outcome.message, outcome.ok)

    def _report(self, outcome: Outcome) -> None:
        """Report an outcome, even after a stop or the task's time limit."""
        self._verdict = outcome
        call = self._start_call("report", partial(self.dialogue.report, outcome))
        call.wait(self.limits.answer)
        self._result_of("planner", call)
        self._verdict = None

    def _try_skill(self, skill: str, skills: Sequence[str]) -> Outcome:
        clock, impossible = Clock(self.limits.skill), failed(f"{skill!r} cannot be done now")
        try:
            self._verdict = self._carry_out(skill, clock) if skill in skills else impossible
            return self._verdict
        except TaskEnd as end:
            self._verdict = self._verdict or failed(end.message)
            raise
        finally:
            step = Step(skill, self._verdict or failed("interrupted"), clock.elapsed)
            self.steps.append(step)
            self.watch(events.Executed(step.skill, step.outcome, step.seconds))

    def _carry_out(self, skill: str, clock: Clock) -> Outcome:
        self._check_stop()  # a watcher may stop the task when it sees the decision
        execute = partial(self.executor.execute, skill, lambda text: self.watch(events.Feedback(skill, text)))
        skill_call = self._start_call("skill", execute)
        try:
            return self._follow(skill_call, skill, clock)
        finally:
            known = skill_call.done and not isinstance(skill_call.error, SkillLost)
            self._hanging = "" if known else skill

    def _follow(self, skill_call: BoundedCall[Outcome], skill: str, clock: Clock) -> Outcome:
        try:
            in_time = self._observe_during(skill_call, skill, clock)
        except BaseException:  # a stop, the task's time limit, or an error of an observation
            self._cancel(skill_call, skill)
            if skill_call.done and skill_call.error is None and isinstance(skill_call.result, Outcome):
                self._verdict = skill_call.result
            raise
        if in_time:
            return self._outcome(skill_call)
        overtime = f"took longer than {clock.seconds:g} s and was cancelled"
        if not self._cancel(skill_call, skill):
            raise TaskEnd("skill_hangs", f"{skill!r} {overtime}")
        outcome = self._outcome(skill_call)
        return outcome if outcome.ok else failed(": ".join(filter(None, (overtime, outcome.message))))

    def _observe_during(self, skill_call: BoundedCall[Outcome], skill: str, clock: Clock) -> bool:
        """Observe while a skill is running; return whether the skill ended in time."""
        observation: BoundedCall[None] | None = None
        while not skill_call.wait(min(self.limits.period, clock.remaining, self.clock.remaining), self.stop_requested):
            self._check_stop()
            if clock.remaining <= 0:
                break
            if observation is None or observation.done or observation.clock.elapsed > self.limits.answer:
                if observation is not None:
                    self._result_of(self._observation_callee, observation)
                observation = self._start_observation(skill)
        if observation is not None:
            self._wait_for("", observation)
        return skill_call.done

    def _outcome(self, skill_call: BoundedCall[Outcome]) -> Outcome:
        outcome = self._result_of("executor", skill_call)
        if not isinstance(outcome, Outcome):
            raise TaskEnd("executor_error", f"the executor's execute returned {outcome!r}, which is not an Outcome")
        return outcome

    def _cancel(self, skill_call: BoundedCall[Outcome], skill: str) -> bool:
        """Cancel a skill; return whether the skill and its cancellation have ended.

        A skill that has not begun is withdrawn. The executor's `cancel` is called until the skill ends, because the
        executor may begin the skill after the first cancellation.
        """
        if skill_call.withdraw(failed("it did not begin")):
            return True
        clock, cancelling = Clock(self.limits.cancel), None
        while not skill_call.done and (cancelling is None or clock.remaining > 0):
            if cancelling is None or cancelling.done:
                cancelling = self._start_call("cancel", self.executor.cancel)
            skill_call.wait(min(self.limits.period, clock.remaining))
        if cancelling is None:
            return skill_call.done
        cancelling.wait(clock.remaining)  # otherwise a late cancellation could cancel the next skill
        if cancelling.done and cancelling.error is not None:
            log.error("the executor cannot cancel %r", skill, exc_info=cancelling.error)
        return skill_call.done and cancelling.done

    def _start_call(self, name: str, function: Callable[[], T]) -> BoundedCall[T]:
        call = BoundedCall(name, function)
        self.calls = [*(call for call in self.calls if not call.done), call]
        return call

    def _start_observation(self, skill: str = "") -> BoundedCall[None]:
        def observe() -> None:
            self._observation_callee = "executor"
            self.pending.add(self.executor.observe())
            self._observation_callee = "planner"
            if facts := self.pending.pass_to(self.dialogue):
                self.watch(events.Observed(facts, skill))

        return self._start_call("observe", observe)

    def _wait_for(self, side: str, call: BoundedCall[T]) -> T:
        """Wait for a call and return its result. Errors name ``side``, which is "executor" or "planner".

        An observation calls the executor and then the planner: ``side=""`` names the side that it is calling.
        """
        call.wait(min(self.limits.answer, self.clock.remaining), self.stop_requested)
        self._check_stop()
        return self._result_of(side or self._observation_callee, call)

    def _check_stop(self) -> None:
        if self.stop_requested.done():
            raise TaskEnd("stopped", self.stop_requested.result())
        if self.clock.remaining <= 0:
            raise TaskEnd("task_timeout", f"the task took longer than {self.limits.task:g} s")

    def _result_of(self, side: str, call: BoundedCall[T]) -> T:
        """Return the result of a call to ``side``. Raises TaskEnd if the call raised an error or is still running."""
        if not call.done:
            raise TaskEnd(f"{side}_timeout", f"the {side}'s {call.name} took longer than {self.limits.answer:g} s")
        if call.error is not None:
            log.error("the %s's %s failed", side, call.name, exc_info=call.error)
            raise TaskEnd(f"{side}_error", f"{call.name}: {type(call.error).__name__}: {call.error}")
        return call.result

    def _finish(self, end: TaskEnd) -> TaskReport:
        outcome = self._verdict or failed(end.message)
        self._start_call("finish", partial(self.dialogue.end, outcome)).wait(self.limits.answer)
        self.calls = [call for call in self.calls if not call.done]
        hanging = f"{self._hanging!r} may still be running" if self._hanging else ""
        message = "; ".join(filter(None, (end.message, hanging)))
        steps, seconds = tuple(self.steps), self.clock.elapsed
        report = TaskReport(self.instruction, end.success, end.stop, message, steps, seconds, self._hanging)
        self.watch(events.Finished(report))
        return report

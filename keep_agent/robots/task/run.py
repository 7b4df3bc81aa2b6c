"""One task of a robot: observe, plan, execute, report, until somebody says that it is over."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, Literal, TypeVar

from envs.clock import Clock
from envs.outcome import DONE as WELL
from envs.outcome import Outcome, failed
from keep_agent.robots.executor import SkillLost
from keep_agent.robots.task.bounded_call import Call
from keep_agent.robots.task.dialogue import Dialogue
from keep_agent.robots.task.events import (
    Executed,
    Feedback,
    Finished,
    Observed,
    Planned,
    Started,
    Step,
    Stop,
    TaskReport,
)
from planners.base import DONE
from planners.prompts.text import UNEXPLAINED

if TYPE_CHECKING:
    from keep_agent.agent.types import Decision, Planning
    from keep_agent.robots.executor import SkillExecutor
    from keep_agent.robots.task.dialogue import PendingFacts
    from keep_agent.robots.task.events import Limits, Watch

log = logging.getLogger(__name__)
T = TypeVar("T")
Judge = Callable[[], Outcome]


@dataclass(eq=False)
class Ended(Exception):
    """The task is over."""

    stop: Stop
    message: str = ""
    success: bool = False


class TaskRun:
    """Only waits: whatever may take long is a `Call`. ``stop_requested`` is done when somebody wants it to stop.

    What is left alone may say something behind the end: ``watch`` sees to it that nobody hears of that.
    """

    def __init__(
        self,
        planner: Planning,
        executor: SkillExecutor,
        instruction: str,
        *,
        limits: Limits,
        stop_requested: Future[str],
        pending: PendingFacts,
        watch: Watch,
        judge: Judge | None = None,
    ) -> None:
        self.executor, self.instruction, self.limits = executor, instruction, limits
        self.stop_requested, self._say, self.judge = stop_requested, watch, judge
        self.dialogue = Dialogue(planner, instruction)
        self.pending = pending
        self._looking_at: Literal["executor", "planner"] = "executor"  # whom a look waits for, or who broke it off
        self.clock = Clock(limits.task)
        self.calls: list[Call[Any]] = []  # those that were not done when last looked at
        self.steps: list[Step] = []
        self._verdict: Outcome | None = None  # of the decision that is not yet reported on
        self._failures = 0
        self._hanging = ""

    def play(self) -> TaskReport:
        """Never raises what planner or executor raise; an interruption passes, when nothing is left running."""
        self._say(Started(self.instruction))
        try:
            while True:
                self._turn()
        except Ended as ended:
            return self._finish(ended)
        except BaseException as error:  # Ctrl-C, most likely
            self._finish(Ended("interrupted", type(error).__name__))
            raise

    def _turn(self) -> None:
        if len(self.steps) >= self.limits.steps:
            raise Ended("max_steps", f"{self.limits.steps} skills were not enough")
        self._see(self._look())
        skills = self._answer("executor", self._begin("skills", lambda: tuple(self.executor.skills())))
        skills = skills if DONE in skills else (*skills, DONE)
        decision = self._plan(skills)
        if decision.skill == DONE:
            self._conclude()
        outcome = self._try(decision.skill, skills)
        self._report(outcome)
        self._failures = 0 if outcome.ok else self._failures + 1 if self._again(decision.skill) else 1
        if self._failures >= self.limits.failures:
            why = outcome.message or UNEXPLAINED
            raise Ended("stuck", f"{decision.skill!r} failed {self._failures} times in a row: {why}")

    def _again(self, skill: str) -> bool:
        """Whether the step before the last one was the same skill."""
        return len(self.steps) > 1 and self.steps[-2].skill == skill

    def _plan(self, skills: Sequence[str]) -> Decision:
        asked = Clock(self.limits.answer)
        decision = self._answer("planner", self._begin("plan", partial(self.dialogue.plan, skills)))
        if not isinstance(getattr(decision, "skill", None), str):
            raise Ended("planner_error", f"the planner's plan returned {decision!r}, which is no Decision")
        self._say(Planned(decision, asked.elapsed))
        return decision

    def _conclude(self) -> None:
        """The planner says that the task is done."""
        outcome = WELL if self.judge is None else self._answer("executor", self._begin("judge", self.judge))
        if not isinstance(outcome, Outcome):
            raise Ended("executor_error", f"the judge returned {outcome!r}, which is no Outcome")
        self._report(outcome)
        raise Ended("done", outcome.message, outcome.ok)

    def _report(self, outcome: Outcome) -> None:
        """Nothing breaks this off but the planner: what has happened has happened."""
        self._verdict = outcome
        call = self._begin("report", partial(self.dialogue.report, outcome))
        call.wait(self.limits.answer)
        self._check("planner", call)
        self._verdict = None

    def _try(self, skill: str, skills: Sequence[str]) -> Outcome:
        """Carry a skill out, and book it."""
        clock = Clock(self.limits.skill)
        try:
            if skill in skills:
                self._verdict = self._carry_out(skill, clock)
            else:
                self._verdict = failed(f"{skill!r} cannot be done now")
            return self._verdict
        except Ended as ended:
            self._verdict = self._verdict or failed(ended.message)
            raise
        finally:
            step = Step(skill, self._verdict or failed("interrupted"), clock.elapsed)
            self.steps.append(step)
            self._say(Executed(step.skill, step.outcome, step.seconds))

    def _carry_out(self, skill: str, clock: Clock) -> Outcome:
        self._heed()  # whoever saw the decision may have said stop
        motion = self._begin("skill", partial(self.executor.execute, skill, partial(self._feed_back, skill)))
        try:
            return self._follow(motion, skill, clock)
        finally:
            known = motion.done and not isinstance(motion.error, SkillLost)
            self._hanging = "" if known else skill

    def _follow(self, motion: Call[Outcome], skill: str, clock: Clock) -> Outcome:
        try:
            in_time = self._attend(motion, skill, clock)
        except BaseException:
            self._cancel(motion, skill)
            self._note(motion)
            raise
        if in_time:
            return self._outcome(motion)
        late = f"took longer than {clock.seconds:g} s and was cancelled"
        if not self._cancel(motion, skill):
            raise Ended("skill_hangs", f"{skill!r} {late}")
        outcome = self._outcome(motion)
        return outcome if outcome.ok else failed(": ".join(filter(None, (late, outcome.message))))

    def _attend(self, motion: Call[Outcome], skill: str, clock: Clock) -> bool:
        """Look on while a skill is carried out; whether it has ended in time."""
        look: Call[None] | None = None
        while not motion.wait(min(self.limits.period, clock.remaining, self.clock.remaining), self.stop_requested):
            self._heed()
            if clock.remaining <= 0:
                break
            if look is None or look.done or look.clock.elapsed > self.limits.answer:
                if look is not None:
                    self._check(self._looking_at, look)
                look = self._look(skill)
        if look is not None:
            self._see(look)
        return motion.done

    def _note(self, motion: Call[Outcome]) -> None:
        """What became of a skill, although the task ends for another reason."""
        if motion.done and motion.error is None and isinstance(motion.result, Outcome):
            self._verdict = motion.result

    def _outcome(self, motion: Call[Outcome]) -> Outcome:
        outcome = self._check("executor", motion)
        if not isinstance(outcome, Outcome):
            raise Ended("executor_error", f"the executor's execute returned {outcome!r}, which is no Outcome")
        return outcome

    def _cancel(self, motion: Call[Outcome], skill: str) -> bool:
        """Whether the skill has returned. It is told again and again: the first call may have come before it began.

        A skill that has not reached the robot yet never does.
        """
        if motion.withdraw(failed("it did not begin")):
            return True
        clock, cancelling = Clock(self.limits.cancel), None
        while not motion.done and (cancelling is None or clock.remaining > 0):
            if cancelling is None or cancelling.done:
                cancelling = self._begin("cancel", self.executor.cancel)
            motion.wait(min(self.limits.period, clock.remaining))
        if cancelling is None:
            return motion.done
        cancelling.wait(clock.remaining)  # what is begun next must not be what it ends
        if cancelling.done and cancelling.error is not None:
            log.error("the executor cannot cancel %r", skill, exc_info=cancelling.error)
        return motion.done and cancelling.done

    def _feed_back(self, skill: str, text: str) -> None:
        self._say(Feedback(skill, text))

    def _begin(self, name: str, function: Callable[[], T]) -> Call[T]:
        call = Call(name, function)
        self.calls = [*(call for call in self.calls if not call.done), call]
        return call

    def _look(self, skill: str = "") -> Call[None]:
        """Begin one, of one at a time; ``skill`` is what is carried out meanwhile."""

        def look() -> None:
            self._looking_at = "executor"
            self.pending.add(self.executor.observe())
            self._looking_at = "planner"
            if told := self.pending.tell(self.dialogue):
                self._say(Observed(told, skill))

        return self._begin("look", look)

    def _see(self, look: Call[None]) -> None:
        look.wait(min(self.limits.answer, self.clock.remaining), self.stop_requested)
        self._heed()
        self._check(self._looking_at, look)

    def _answer(self, side: str, call: Call[T]) -> T:
        call.wait(min(self.limits.answer, self.clock.remaining), self.stop_requested)
        self._heed()
        return self._check(side, call)

    def _heed(self) -> None:
        """Raises Ended if somebody wants the task to stop, or its time is over."""
        if self.stop_requested.done():
            raise Ended("stopped", self.stop_requested.result())
        if self.clock.remaining <= 0:
            raise Ended("task_timeout", f"the task took longer than {self.limits.task:g} s")

    def _check(self, side: str, call: Call[T]) -> T:
        """What a call returned. Raises Ended if it raised, or still has not returned."""
        if not call.done:
            raise Ended(f"{side}_timeout", f"the {side}'s {call.name} took longer than {self.limits.answer:g} s")
        if call.error is not None:
            log.error("the %s's %s failed", side, call.name, exc_info=call.error)
            raise Ended(f"{side}_error", f"{call.name}: {type(call.error).__name__}: {call.error}")
        return call.result

    def _finish(self, ended: Ended) -> TaskReport:
        outcome = self._verdict or failed(ended.message)
        self._begin("finish", partial(self.dialogue.end, outcome)).wait(self.limits.answer)
        self.calls = [call for call in self.calls if not call.done]
        message = ended.message
        if self._hanging:
            message = "; ".join(filter(None, (message, f"nobody knows whether {self._hanging!r} has ended")))
        report = TaskReport(
            self.instruction,
            ended.success,
            ended.stop,
            message,
            tuple(self.steps),
            self.clock.elapsed,
            self._hanging,
        )
        self._say(Finished(report))
        return report

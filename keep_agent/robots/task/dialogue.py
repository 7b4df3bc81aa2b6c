"""Dialogue with the planner: the calls of one task, pending facts, and single plans."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from threading import Event, Lock

from envs.outcome import SUCCESS, Outcome, failed
from keep_agent.agent.types import Decision, Planning
from keep_agent.agent.validation import truncate_outcome
from keep_agent.errors import CapacityError, DataError
from keep_agent.robots.executor import RobotError
from planners.base import DONE
from planners.prompts.styles import FactView

TASK_OVER = "the task is over; nothing is planned any more"


class Dialogue:
    """Planner calls of one task: at most one report per decision, and one end. Any thread may call, one at a time.

    Only `end` may be called during another call; that call then ends the task when it returns. So even a slow planner
    receives the report on its decision and the end of the task.
    """

    def __init__(self, planner: Planning, instruction: str) -> None:
        self.planner, self.instruction = planner, instruction
        self._lock = Lock()
        self._is_calling = self._has_planned = self._is_over = False
        self._unreported: Decision | None = None  # the last decision, while it has no report
        self._ending: Outcome | None = None
        self._end_reported = Event()

    @property
    def awaits_report(self) -> bool:
        """Whether the last decision has no report yet."""
        return self._unreported is not None and self._ending is None

    def observe(self, facts: Sequence[FactView]) -> bool:
        """Pass facts to the planner; after `end` do nothing and return False."""
        with self._planner_call() as is_active:
            if is_active:
                self.planner.observe(facts)
        return is_active

    def plan(self, skills: Sequence[str]) -> Decision:
        with self._planner_call() as is_active:
            if not is_active:
                raise RobotError(TASK_OVER)
            self._has_planned = True
            self._unreported = self.planner.plan(self.instruction, skills)
            if self._ending is not None:
                raise RobotError(TASK_OVER)
            return self._unreported

    def report(self, outcome: Outcome) -> None:
        """Report the result of the last decision. A successful "done" ends the task."""
        with self._planner_call() as is_active:
            if is_active:
                self._report(outcome)

    def end(self, outcome: Outcome) -> None:
        """End the planner's task and wait for its end. A decision without a report is first reported with ``outcome``.

        Errors of the planner are logged, since callers cannot act on them.
        """
        with self._lock:
            self._ending = outcome
            is_calling = self._is_calling
        if not is_calling:
            self._finish(outcome)
        self._end_reported.wait()

    @contextmanager
    def _planner_call(self) -> Iterator[bool]:
        with self._lock:
            is_active = self._ending is None
            self._is_calling = True
        try:
            yield is_active
        finally:
            with self._lock:
                self._is_calling = False
                ending = self._ending if is_active else None
            if ending is not None:
                self._finish(ending)

    def _report(self, outcome: Outcome) -> None:
        decision = self._unreported
        self.planner.report(truncate_outcome(outcome))
        self._unreported = None  # only after the call: if it raises, `_finish` repeats the report
        self._is_over = decision is not None and decision.skill == DONE and outcome.ok

    def _finish(self, outcome: Outcome) -> None:
        with _log_exceptions():
            if self._unreported is not None:
                self._report(outcome)
        with _log_exceptions():
            if self._has_planned and not self._is_over:
                self.planner.finish(False)
        self._end_reported.set()


@contextmanager
def _log_exceptions() -> Iterator[None]:
    try:
        yield
    except Exception:
        log.exception("the planner failed at the end of a task")


log = logging.getLogger(__name__)
MAX_PENDING = 100_000  # maximum of pending facts; the oldest are dropped
BATCH_FACTS = 100  # facts per call: requests to a server have a size limit
INVALID, STORAGE_FULL = (400, 422), 507  # HTTP statuses for an invalid fact, and for a full storage


class PendingFacts:
    """Facts that the planner has not accepted yet, the latest per id. Each observation and plan passes them again."""

    def __init__(self) -> None:
        self._facts: dict[str, FactView] = {}
        self._lock = Lock()

    def add(self, facts: Iterable[FactView]) -> None:
        new = {fact.id: fact for fact in facts}
        with self._lock:
            self._facts = {id: fact for id, fact in self._facts.items() if id not in new} | new
            dropped = list(self._facts)[:-MAX_PENDING]
            for id in dropped:
                del self._facts[id]
        if dropped:
            log.warning("%d facts dropped before a planner accepted them: at most %d wait", len(dropped), MAX_PENDING)

    def pass_to(self, dialogue: Dialogue) -> tuple[FactView, ...]:
        """Pass the facts to the planner and return those that it accepted. An invalid fact is logged and dropped.

        Once the planner's storage is full, only facts with ``gone=True`` are passed, since they free room. The other
        facts stay pending, and the error is raised at the end. Other errors of the planner are raised at once.
        """
        accepted: list[FactView] = []
        full: Exception | None = None
        with self._lock:
            unsent = list(self._facts.values())
        for start in range(0, len(unsent), BATCH_FACTS):
            batch = [fact for fact in unsent[start : start + BATCH_FACTS] if full is None or fact.gone]
            for facts, error in _pass_facts(dialogue, batch):
                if error is not None and _is_full(error):
                    full = error
                else:
                    self._remove(facts)
                accepted.extend(facts if error is None else ())
        if full is not None:
            raise full
        return tuple(accepted)

    def _remove(self, facts: Sequence[FactView]) -> None:
        with self._lock:
            for fact in facts:
                if self._facts.get(fact.id) is fact:  # not replaced by a newer fact
                    del self._facts[fact.id]


def _pass_facts(dialogue: Dialogue, facts: Sequence[FactView]) -> Iterator[tuple[Sequence[FactView], Exception | None]]:
    """Pass facts to the planner; yield accepted facts with None, and each rejected fact with its error."""
    if not facts:
        return
    try:
        if dialogue.observe(facts):
            yield facts, None
        return
    except Exception as error:
        if not isinstance(error, DataError) and getattr(error, "status", None) not in INVALID and not _is_full(error):
            raise
        if len(facts) == 1:
            log.warning("the planner rejected a fact: %s", error)
            yield facts, error
            return
    middle = len(facts) // 2
    yield from _pass_facts(dialogue, facts[:middle])
    yield from _pass_facts(dialogue, facts[middle:])


def _is_full(error: Exception) -> bool:
    return isinstance(error, CapacityError) or getattr(error, "status", None) == STORAGE_FULL


class SinglePlans:
    """Single plans for robots that carry out skills themselves. Successive plans with one instruction are one task.

    Make one call at a time. The next plan counts a decision without a report as a success. "done" ends the task.
    """

    def __init__(self, planner: Planning, pending: PendingFacts) -> None:
        self.planner, self.pending = planner, pending
        self._dialogue: Dialogue | None = None

    def next_plan(self, instruction: str, skills: Sequence[str]) -> Callable[[], Decision]:
        """Return the call that plans the next skill. It raises planner errors, and RobotError after `end_task`."""
        before = self._dialogue
        if before is None or before.instruction != instruction:
            self._dialogue = Dialogue(self.planner, instruction)
        return partial(self._plan, before, self._dialogue, skills)

    def _plan(self, before: Dialogue | None, dialogue: Dialogue, skills: Sequence[str]) -> Decision:
        if before is not None and before is not dialogue:
            before.end(SUCCESS)
        elif dialogue.awaits_report:
            dialogue.report(SUCCESS)
        self.pending.pass_to(dialogue)
        decision = dialogue.plan(skills)
        if decision.skill == DONE:
            dialogue.report(SUCCESS)
            if self._dialogue is dialogue:
                self._dialogue = None
        return decision

    def next_report(self, outcome: Outcome) -> Callable[[], None]:
        """Return the call that reports on the last plan. Raises RobotError if no plan awaits a report."""
        dialogue = self._dialogue
        if dialogue is None or not dialogue.awaits_report:
            raise RobotError("there is no plan to report on: request one first, and report once")
        return partial(dialogue.report, outcome)

    def end_task(self, why: str) -> Callable[[], None] | None:
        """End the task; return the blocking call that informs the planner, or None without a task."""
        dialogue, self._dialogue = self._dialogue, None
        return None if dialogue is None else partial(dialogue.end, failed(why))

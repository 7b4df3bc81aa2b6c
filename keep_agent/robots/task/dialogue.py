"""Dialogue with the planner: the calls of one task, facts that wait, and single plans."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from threading import Event, Lock
from typing import TYPE_CHECKING

from envs.outcome import DONE as WELL
from envs.outcome import failed
from keep_agent.agent.validation import reportable
from keep_agent.errors import CapacityError, DataError
from keep_agent.robots.executor import RobotError
from planners.base import DONE

if TYPE_CHECKING:
    from envs.outcome import Outcome
    from keep_agent.agent.types import Decision, Planning
    from planners.prompts.text import FactView


log = logging.getLogger(__name__)
OVER = "the task is over; nothing is planned any more"


class Dialogue:
    """Calls come one after another, on any threads. `end` may come while another is at work: that one then ends it.

    So a planner that answers after its time is over still hears what became of its decision, and that the task is over.
    """

    def __init__(self, planner: Planning, instruction: str) -> None:
        self.planner, self.instruction = planner, instruction
        self._lock = Lock()
        self._working = self._begun = self._over = False
        self._open: Decision | None = None  # not yet reported on
        self._ending: Outcome | None = None
        self._ended = Event()

    @property
    def open(self) -> bool:
        """Whether a decision waits for its report."""
        return self._open is not None and self._ending is None

    def observe(self, facts: Sequence[FactView]) -> bool:
        """Whether the planner has taken them in; after the end it is not asked to."""
        with self._turn() as on:
            if on:
                self.planner.observe(facts)
        return on

    def plan(self, skills: Sequence[str]) -> Decision:
        with self._turn() as on:
            if not on:
                raise RobotError(OVER)
            self._begun = True
            self._open = self.planner.plan(self.instruction, skills)
            if self._ending is not None:
                raise RobotError(OVER)
            return self._open

    def report(self, outcome: Outcome) -> None:
        """What became of the last decision. A "done" that went well ends the task."""
        with self._turn() as on:
            if on:
                self._report(outcome)

    def end(self, outcome: Outcome) -> None:
        """The task is over; ``outcome`` is for a decision that nobody has reported on. Blocks until the planner knows.

        Whatever the planner raises now is logged: there is nobody left to act on it.
        """
        with self._lock:
            self._ending = outcome
            working = self._working
        if not working:
            self._wrap_up(outcome)
        self._ended.wait()

    @contextmanager
    def _turn(self) -> Iterator[bool]:
        with self._lock:
            on = self._ending is None
            self._working = True
        try:
            yield on
        finally:
            with self._lock:
                self._working = False
                ending = self._ending if on else None
            if ending is not None:
                self._wrap_up(ending)

    def _report(self, outcome: Outcome) -> None:
        decision = self._open
        self.planner.report(reportable(outcome))
        self._open = None  # not before: what could not be told is told again
        self._over = decision is not None and decision.skill == DONE and outcome.ok

    def _wrap_up(self, outcome: Outcome) -> None:
        if self._open is not None:
            self._quietly(lambda: self._report(outcome))
        if self._begun and not self._over:
            self._quietly(lambda: self.planner.finish(False))
        self._ended.set()

    @staticmethod
    def _quietly(function: Callable[[], None]) -> None:
        try:
            function()
        except Exception:
            log.exception("the planner does not take the end of a task")


log = logging.getLogger(__name__)
MAX_PENDING = 100_000  # facts that wait; of more the oldest are dropped
BATCH = 100  # facts per call: a request to a server has a limit
WRONG, FULL = (400, 422), 507  # what a server answers to a fact that it will never take, or has no room for


class PendingFacts:
    """Latest fact of each thing that no planner has taken in yet. The next look, plan or task hands them over."""

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
            log.warning("%d facts dropped that no planner took in: %d wait at most", len(dropped), MAX_PENDING)

    def tell(self, dialogue: Dialogue) -> tuple[FactView, ...]:
        """Those that the planner has taken in. A wrong one is logged and dropped: else no task would ever begin.

        Those that there is no room for wait, and the error is raised when all that says that something is gone was
        told. Raises what else the planner raises.
        """
        told: list[FactView] = []
        full: Exception | None = None
        with self._lock:
            waiting = list(self._facts.values())
        for start in range(0, len(waiting), BATCH):
            batch = [fact for fact in waiting[start : start + BATCH] if full is None or fact.gone]
            for facts, error in _hand_over(dialogue, batch):
                if error is not None and _is_full(error):
                    full = error
                else:
                    self._done_with(facts)
                told.extend(facts if error is None else ())
        if full is not None:
            raise full
        return tuple(told)

    def _done_with(self, facts: Sequence[FactView]) -> None:
        with self._lock:
            for fact in facts:
                if self._facts.get(fact.id) is fact:  # nothing newer has come meanwhile
                    del self._facts[fact.id]


def _hand_over(dialogue: Dialogue, facts: Sequence[FactView]) -> Iterator[tuple[Sequence[FactView], Exception | None]]:
    """Facts that were told, and by halving each that was refused. Nothing if the task is over."""
    if not facts:
        return
    try:
        if dialogue.observe(facts):
            yield facts, None
        return
    except Exception as error:
        if not (_is_wrong(error) or _is_full(error)):
            raise
        if len(facts) == 1:
            log.warning("the planner does not take in a fact: %s", error)
            yield facts, error
            return
    middle = len(facts) // 2
    yield from _hand_over(dialogue, facts[:middle])
    yield from _hand_over(dialogue, facts[middle:])


def _is_wrong(error: Exception) -> bool:
    """Of an agent in this process, or behind a server."""
    return isinstance(error, DataError) or getattr(error, "status", None) in WRONG


def _is_full(error: Exception) -> bool:
    return isinstance(error, CapacityError) or getattr(error, "status", None) == FULL


class SinglePlans:
    """What was asked for belongs together as long as its instruction stays the same. Calls come one at a time.

    A decision that nobody reported on when the next is asked for counts as carried out well; "done" as the task's end.
    """

    def __init__(self, planner: Planning, pending: PendingFacts) -> None:
        self.planner, self.pending = planner, pending
        self._dialogue: Dialogue | None = None

    def asked(self, instruction: str, skills: Sequence[str]) -> Callable[[], Decision]:
        """Asks the planner for the next of ``skills``, and raises what it raises; RobotError after `leave`."""
        before = self._dialogue
        if before is None or before.instruction != instruction:
            self._dialogue = Dialogue(self.planner, instruction)
        return partial(self._ask, before, self._dialogue, skills)

    def _ask(self, before: Dialogue | None, dialogue: Dialogue, skills: Sequence[str]) -> Decision:
        if before is not None and before is not dialogue:
            before.end(WELL)
        elif dialogue.open:
            dialogue.report(WELL)
        self.pending.tell(dialogue)
        decision = dialogue.plan(skills)
        if decision.skill == DONE:
            dialogue.report(WELL)
            self._forget(dialogue)
        return decision

    def reported(self, outcome: Outcome) -> Callable[[], None]:
        """Tells the planner what became of the last plan. Raises RobotError if there is none."""
        dialogue = self._dialogue
        if dialogue is None or not dialogue.open:
            raise RobotError("there is no plan to report on: ask for one first, and report once")
        return partial(dialogue.report, outcome)

    def leave(self, why: str) -> Callable[[], None] | None:
        """Nothing of this goes on. Returns what tells the planner so, and may block; None if nothing is to be told."""
        dialogue, self._dialogue = self._dialogue, None
        return None if dialogue is None else partial(dialogue.end, failed(why))

    def _forget(self, dialogue: Dialogue) -> None:
        if self._dialogue is dialogue:
            self._dialogue = None

"""One task's conversation with the planner: one report per decision, and one end, whatever happens meanwhile."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from threading import Event, Lock
from typing import TYPE_CHECKING

from keep_agent.agent.request_validation import tellable
from keep_agent.robots.errors import RobotError
from planners.base import DONE

if TYPE_CHECKING:
    from envs.outcome import Outcome
    from keep_agent.agent.types import Decision, Planning
    from planners.prompts.styles import FactView

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
        self.planner.report(tellable(outcome))
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

"""From what a robot sees to what its planner knows."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Literal

from keep_agent.robots.calls import Call
from keep_agent.robots.events import Observed

if TYPE_CHECKING:
    from keep_agent.robots.events import Watch
    from keep_agent.robots.executor import SkillExecutor
    from keep_agent.robots.talk import Talk
    from planners.styles import FactView

Side = Literal["executor", "planner"]


class Eyes:
    """One look at a time. Facts that no planner has taken in stay in ``unseen`` for the next look, or the next task."""

    def __init__(self, executor: SkillExecutor, talk: Talk, say: Watch, unseen: list[FactView]) -> None:
        self.executor, self.talk, self.say, self.unseen = executor, talk, say, unseen
        self.side: Side = "executor"  # whom the look waits for, or who broke it off

    def look(self, begin: Callable[[str, Callable[[], None]], Call[None]], skill: str = "") -> Call[None]:
        """Begin one; ``skill`` is what is carried out meanwhile."""
        return begin("look", lambda: self._look(skill))

    def _look(self, skill: str) -> None:
        self.side = "executor"
        self.unseen.extend(self.executor.observe())
        self.side = "planner"
        if self.unseen and self.talk.observe(tuple(self.unseen)):
            facts = tuple(self.unseen)
            self.unseen.clear()
            self.say(Observed(facts, skill))

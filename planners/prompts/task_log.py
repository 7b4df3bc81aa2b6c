"""Log of a task's executed skills, which become memory segments once no query shows them."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from planners.prompts.styles import Edit, PromptStyle
from planners.prompts.text import Turn, entity_text


@dataclass
class TaskLog:
    """Log of the current task's turns. Turns become history segments, and are dropped once no query needs them."""

    turns: list[Turn] = field(default_factory=list)
    dropped: int = 0  # number of this task's dropped turns, which came before ``turns``
    archived: int = 0  # number of this task's turns that `archive` has handled
    numbered_turns: int = 0  # number of turns archived in all tasks of the episode
    tasks: int = 0  # finished tasks of the episode

    @property
    def length(self) -> int:
        """Turns of this task."""
        return self.dropped + len(self.turns)

    def add(self, turn: Turn, visible: int) -> None:
        """Append a turn; drop archived turns except the last ``visible`` turns, which queries contain."""
        self.turns.append(turn)
        surplus = max(0, min(self.archived, self.length - visible) - self.dropped)
        self.turns, self.dropped = self.turns[surplus:], self.dropped + surplus

    def latest(self, visible: int) -> tuple[list[Turn], int]:
        """Return the last ``visible`` turns (fewer if older ones were dropped) and the number of turns before them."""
        earlier = max(self.dropped, self.length - visible)
        return self.turns[earlier - self.dropped :], earlier

    def archive(self, until: int, style: PromptStyle) -> list[Edit]:
        """Archive the task's first ``until`` turns; return the new history segments. A failed turn has none."""
        until = max(until, self.archived)
        turns, self.archived = self.turns[self.archived - self.dropped : until - self.dropped], until
        numbers = enumerate(turns, self.numbered_turns + 1)
        self.numbered_turns += len(turns)
        return [style.history(number, entity_text(turn.skill)) for number, turn in numbers if turn.ok]

    def finish(self, instruction: str, success: bool, steps: int, style: PromptStyle) -> list[Edit]:
        """Return the segments of the remaining turns and of the task itself, and begin the next task."""
        edits = self.archive(self.length, style)
        self.tasks += 1
        self.turns, self.dropped, self.archived = [], 0, 0
        return [*edits, style.finished(self.tasks, instruction, success, steps)]

    def copy(self) -> TaskLog:
        return replace(self, turns=list(self.turns))

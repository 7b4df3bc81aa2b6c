"""Log of the task under way: its turns, and the history segments that they become."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from planners.base import TaskResult
from planners.prompts.styles import Edit, history_edit, task_edit
from planners.prompts.text import Turn, clean, entity_text


@dataclass
class TaskLog:
    """Turns of the task under way. Archived turns that no query shows any more are dropped, but still counted."""

    turns: list[Turn] = field(default_factory=list)
    dropped: int = 0  # turns of this task before ``turns``
    archived: int = 0  # turns of this task whose history segments are written
    numbered: int = 0  # turns archived in all tasks of the episode
    tasks: int = 0  # finished tasks of the episode

    @property
    def length(self) -> int:
        """Turns of this task."""
        return self.dropped + len(self.turns)

    def add(self, turn: Turn, visible: int) -> None:
        """Append a turn; the last ``visible`` ones are kept for queries."""
        self.turns.append(turn)
        surplus = max(0, min(self.archived, self.length - visible) - self.dropped)
        self.turns, self.dropped = self.turns[surplus:], self.dropped + surplus

    def latest(self, visible: int) -> tuple[list[Turn], int]:
        """Return the last ``visible`` turns, or fewer after a load, and the number of turns before them."""
        earlier = max(self.dropped, self.length - visible)
        return self.turns[earlier - self.dropped :], earlier

    def archive(self, until: int) -> list[Edit]:
        """Return history segments of the turns up to ``until`` that have none yet; failed turns get none."""
        until = max(until, self.archived)
        turns, self.archived = self.turns[self.archived - self.dropped : until - self.dropped], until
        numbers = enumerate(turns, self.numbered + 1)
        self.numbered += len(turns)
        return [history_edit(number, entity_text(turn.skill)) for number, turn in numbers if turn.ok]

    def finish(self, result: TaskResult) -> list[Edit]:
        """Return the segments of the remaining turns and of the task itself, and begin the next task."""
        edits = self.archive(self.length)
        self.tasks += 1
        self.turns, self.dropped, self.archived = [], 0, 0
        return [*edits, task_edit(self.tasks, clean(result.instruction), result.success, result.steps)]

    def copy(self) -> TaskLog:
        return replace(self, turns=list(self.turns))

"""Store of memory lines for training, in the order of a segment store without groups."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from planners.prompts.styles import Edit


@dataclass(slots=True)
class Line:
    """One memory line."""

    id: str
    text: str
    created: int
    last_changed: int
    parent: str | None = None  # the line it refers back to, which every memory with this one contains
    category: str = "object"


@dataclass
class LineStore:
    """Memory lines by id; ``agent_line`` is the agent's own line, which is no memory."""

    lines: dict[str, Line] = field(default_factory=dict)
    agent_line: str = ""
    step: int = 0
    _created: int = 0
    _last_task: int = 0  # creation number of the last finished task's line

    def apply(self, edits: Sequence[Edit]) -> set[str]:
        """Write edits; return the ids that changed."""
        changed = set()
        for edit in edits:
            old = self.lines.get(edit.id)
            if edit.category == "agent":
                self.agent_line = edit.text or ""
            elif edit.text is None and old is not None:
                del self.lines[edit.id]
                changed.add(edit.id)
            elif edit.text is not None and (old is None or old.text != edit.text):
                self._write(edit, old)
                changed.add(edit.id)
        return changed

    def _write(self, edit: Edit, old: Line | None) -> None:
        self._created += old is None
        created = old.created if old else self._created
        self.lines[edit.id] = Line(edit.id, edit.text, created, self.step, edit.parent, edit.category)
        if edit.category == "task":
            self._last_task = created

    def ordered(self) -> list[Line]:
        """Return lines in prompt order: facts by last change and creation, then skills since the last finished task."""

        def key(line: Line) -> tuple[bool, int, int]:
            return line.category == "history" and line.created > self._last_task, line.last_changed, line.created

        return sorted(self.lines.values(), key=key)

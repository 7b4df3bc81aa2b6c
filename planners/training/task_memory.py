"""Memory of a rollout for training: a segment store without tokenizer and groups, and the agent's own line."""

from __future__ import annotations

from collections.abc import Iterable

from memory.segments.segment import Segment
from memory.segments.store import SegmentStore
from planners.prompts.styles import Edit


class TaskMemory:
    """Segments in prompt order; ``agent_line`` is part of queries, not of the memory."""

    def __init__(self) -> None:
        self.store = SegmentStore()
        self.agent_line = ""

    def apply(self, edits: Iterable[Edit]) -> set[str]:
        """Write edits; return the ids that changed."""
        changed, store = set(), self.store
        for edit in edits:
            before = store.changes
            if edit.category == "agent":
                self.agent_line = edit.text or ""
            elif edit.text is not None:
                store.put(edit.id, edit.category, edit.text, edit.parent)
            elif edit.id in store:
                store.remove(edit.id)
            if store.changes > before:
                changed.add(edit.id)
        return changed

    def ordered(self) -> list[Segment]:
        """Return facts by last change and creation, then the skills since the last finished task."""
        finished = self.store.finished

        def key(segment: Segment) -> tuple[bool, int, int]:
            is_recent = segment.category == "history" and segment.created > finished
            return is_recent, segment.last_changed, segment.created

        return sorted(self.store, key=key)

"""Order of chosen segments in a prompt: the same for every memory method."""

from __future__ import annotations

from collections.abc import Iterable

from memory.segments.segment import Segment
from memory.segments.store import SegmentStore


def prompt_order(ids: Iterable[str], store: SegmentStore) -> list[str]:
    """The one order of chosen segments in every prompt.

    Static groups in the order in which they became static; then single segments, what the agent did since it last
    finished a task behind the others; the agent's own segment last. Among single segments, and within a group, by last
    change and then by creation: so what was written at once stays together, and the latest word comes last. What
    changes rarely stands in front, where a prefix can be reused.
    """
    graph, finished = store.graph, store.finished

    def key(segment: Segment) -> tuple[int, int, int, int, int]:
        written = segment.last_changed, segment.created
        if segment.category == "agent":
            return 3, 0, 0, *written
        group = graph.static_group(segment)
        if group is None:
            return 1 + (segment.category == "history" and segment.created > finished), 0, 0, *written
        return 0, group.static_since or 0, group.id, *written

    return [segment.id for segment in sorted((store.get(id) for id in ids), key=key)]

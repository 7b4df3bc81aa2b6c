"""Long and short memory: KARMA's choice of segments, all known places and a few of the latest changed things."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from keep_agent.errors import ConfigError
from memory.segments.segment import Segment
from memory.segments.store import SegmentStore, prompt_order
from memory.stages import Capabilities


@dataclass(frozen=True)
class LongShort:
    """Choice in the manner of KARMA (arXiv 2409.14908), whose memory is text in the prompt.

    The long-term memory is a map of the house: here all segments of places (receptacles). The short-term memory holds
    the things that changed last, at most ``capacity``; older ones are replaced. Of these the ``top_k`` most similar to
    the query enter the prompt, each with the segments that it refers to or that amend it. The agent's own segment and
    its ``recent`` last actions in this task always enter. If all this exceeds the budget, places are left out, the
    least similar first.

    KARMA also weighs how often a thing was used when it replaces one; here the oldest change goes first.
    """

    capacity: int = 40
    top_k: int = 16
    recent: int = 12
    capabilities: ClassVar[Capabilities] = Capabilities()

    def __post_init__(self) -> None:
        if not 0 <= self.top_k <= self.capacity or self.recent < 0:
            raise ConfigError(
                f"capacity={self.capacity}, top_k={self.top_k}, recent={self.recent}: use 0 or more, and a top_k up to "
                "the capacity"
            )

    def select(self, query: str, store: SegmentStore, budget: int) -> list[str]:
        scores = store.graph.scores(query)
        things = [_thing(store.get(id), store) for id in store.of("object") if not _amends(store.get(id), store)]
        latest = sorted(things, key=lambda thing: max((part.last_changed, part.created) for part in thing))
        short = latest[max(0, len(things) - self.capacity) :]
        short.sort(key=lambda thing: -max(scores[part.id] for part in thing))
        selection = {*store.of("agent"), *store.latest_actions(min(self.recent, budget // 4))}
        for thing in short[: self.top_k]:
            ids = {part.id for part in thing} | {part.parent for part in thing if part.parent in store}
            if len(selection | ids) <= budget:
                selection |= ids
        places = sorted(store.of("receptacle"), key=lambda id: -scores[id])
        rest = [id for id in places if id not in selection]
        return prompt_order({*selection, *rest[: max(0, budget - len(selection))]}, store)


def _amends(segment: Segment, store: SegmentStore) -> bool:
    """Return whether a segment is a later text on its parent's subject (prompt style `linked`)."""
    return segment.parent in store and store.get(segment.parent).category == segment.category


def _thing(segment: Segment, store: SegmentStore) -> list[Segment]:
    """Return a thing's first segment with all that amend it."""
    return [segment, *map(store.get, store.children(segment.id, segment.category))]

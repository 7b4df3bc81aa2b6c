"""Segments by the cosine of their embedding to the query's."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from heapq import heapify, heappop, heappush
from typing import ClassVar

from keep_agent.errors import ConfigError
from memory.graph import prompt_order
from memory.segment import Segment
from memory.stages import Capabilities
from memory.store import SegmentStore

Item = tuple[str, ...]  # ids of segments that are scored and chosen together
GROUP_SCORES = ("max", "mean")


@dataclass(frozen=True)
class Embedding:
    """The best segments within a budget of segments, with what they refer back to and what amends them.

    ``mixed``: KEEP's granularity (arXiv 2602.23592, section 4.1), static groups as a whole, dynamic segments singly.
    What the budget could never hold, because a group is too large or brings too many others, is taken singly too; so is
    the rest of a group of which another segment brought a part. The paper does not say how a group is scored;
    ``group_score`` offers its best member (default) or the mean. The agent's own segment is always in. Ties go to what
    is older. An amendment is a segment that refers back to one of its own category: a later word on the same thing.
    """

    mixed: bool = True
    group_score: str = "max"
    capabilities: ClassVar[Capabilities] = Capabilities()

    def __post_init__(self) -> None:
        if self.group_score not in GROUP_SCORES:
            raise ConfigError(f"group_score={self.group_score!r} is unknown: use one of {', '.join(GROUP_SCORES)}")

    def select(self, query: str, store: SegmentStore, budget: int) -> list[str]:
        """Ids in prompt order, at most ``budget`` of them (more only if the agent's own segments already are)."""
        if len(store) <= budget:
            return prompt_order((segment.id for segment in store), store)
        items = {s.id: self._item(s, store, budget) for s in store if s.category != "agent"}
        alone = {id: (id,) for id in items}
        scores, amendments = store.graph.scores(query), _amendments(store)

        def candidate(item: Item, whole: bool = True) -> tuple[float, int, Item, bool]:
            return -self._score(item, scores), store.get(item[0]).created, item, whole

        agents = {segment.id for segment in store if segment.category == "agent"}
        chosen, waiting = agents, [candidate(item) for item in set(items.values())]
        heapify(waiting)
        while waiting and len(chosen) < budget:
            *_, item, whole = heappop(waiting)
            wanted = _closure(item, items if whole else alone, amendments, store)
            if len(chosen | wanted) <= budget:
                chosen = chosen | wanted
            elif whole and (len(agents | wanted) > budget or chosen & set(item)):  # it never fits, or is in by half
                for id in item:
                    heappush(waiting, candidate((id,), whole=False))
        return prompt_order(chosen, store)

    def _item(self, segment: Segment, store: SegmentStore, budget: int) -> Item:
        """What is scored and chosen together with a segment, itself included."""
        group = store.graph.static_group(segment) if self.mixed else None
        return tuple(group.members) if group and len(group.members) < budget else (segment.id,)

    def _score(self, item: Iterable[str], scores: dict[str, float]) -> float:
        values = [scores[id] for id in item]
        return max(values) if self.group_score == "max" else sum(values) / len(values)


def _amendments(store: SegmentStore) -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    for segment in store:
        if segment.parent in store and store.get(segment.parent).category == segment.category:
            found.setdefault(segment.parent, []).append(segment.id)
    return found


def _closure(
    item: Item, items: Mapping[str, Item], amendments: Mapping[str, Sequence[str]], store: SegmentStore
) -> set[str]:
    """The item's segments with, item by item, what they refer back to and what amends them."""
    found: set[str] = set()
    waiting = list(item)
    while waiting:
        id = waiting.pop()
        if id in found:
            continue
        found.add(id)
        for other in (store.get(id).parent, *amendments.get(id, ())):
            if other in items:
                waiting.extend(items[other])
    return found

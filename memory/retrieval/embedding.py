"""Segments by the cosine of their embedding to the query's."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from heapq import heappop, heappush
from itertools import islice
from typing import TYPE_CHECKING, ClassVar

import numpy as np

from keep_agent.errors import ConfigError, check_choice
from memory.segments.groups import Scores
from memory.segments.prompt_order import prompt_order
from memory.segments.segment import Segment
from memory.segments.store import SegmentStore
from memory.stages import Capabilities

if TYPE_CHECKING:
    from numpy.typing import NDArray

Item = tuple[str, ...]  # ids of segments that are scored and chosen together
Candidate = tuple[float, int, Item, bool]  # its score's negative, its first segment's age, and whether it may be split
GROUP_SCORES = ("max", "mean")
SORTED_FIRST = 256  # of the items: hardly ever are more of them looked at


@dataclass(frozen=True)
class Embedding:
    """The best segments within a budget of segments, with what they refer back to and what amends them.

    ``mixed``: KEEP's granularity (arXiv 2602.23592, section 4.1), static groups as a whole, dynamic segments singly.
    What the budget could never hold, because a group is too large or brings too many others, is taken singly too; so is
    the rest of a group of which another segment brought a part. The paper does not say how a group is scored;
    ``group_score`` offers its best member (default) or the mean. The agent's own segment is always in, and so are the
    ``recent`` last things it did in this task, in a quarter of the budget at most. Ties go to what is older. An
    amendment is a segment that refers back to one of its own category: a later word on the same thing.
    """

    mixed: bool = True
    group_score: str = "max"
    recent: int = 12
    capabilities: ClassVar[Capabilities] = Capabilities()

    def __post_init__(self) -> None:
        check_choice("group_score", self.group_score, GROUP_SCORES)
        if self.recent < 0:
            raise ConfigError(f"recent={self.recent} is a number of things done, 0 or more")

    def select(self, query: str, store: SegmentStore, budget: int) -> list[str]:
        """Ids in prompt order, at most ``budget`` of them (more only if the agent's own segments already are)."""
        if len(store) <= budget:
            return prompt_order((segment.id for segment in store), store)
        scores = store.graph.scores(query)
        ranking = self._ranking(scores, store, budget)
        chosen = {*store.of("agent"), *store.done_lately(min(self.recent, budget // 4))}
        waiting = list(islice(ranking, 1))
        room = budget - len(chosen)
        while waiting and len(chosen) < budget:
            *_, item, whole = heappop(waiting)
            if whole:  # it came from the ranking, the next of which takes its place
                for following in islice(ranking, 1):
                    heappush(waiting, following)
            wanted = self._closure(item, store, budget if whole else 0, room)
            if len(chosen) + len(wanted - chosen) <= budget:
                chosen |= wanted
            elif whole and (len(wanted) > room or chosen & set(item)):  # it never fits, or is in by half
                for id in item:
                    heappush(waiting, (-scores[id], store.get(id).created, (id,), False))
        return prompt_order(chosen, store)

    def _item(self, segment: Segment, store: SegmentStore, largest: int) -> Item:
        """What is scored and chosen together with a segment, itself included: fewer than ``largest``, or it alone."""
        group = store.graph.static_group(segment) if self.mixed else None
        return tuple(group.members) if group and len(group.members) < largest else (segment.id,)

    def _ranking(self, scores: Scores, store: SegmentStore, budget: int) -> Iterator[Candidate]:
        """All items, the best first; of equals the one whose first segment is older."""
        leads = self._leads(scores, store, budget)
        values = self._values(scores, leads)
        for row in _falling(values, scores.created, np.flatnonzero(leads == np.arange(len(leads)))):
            segment = store.get(scores.ids[row])
            if segment.category != "agent":
                yield -float(values[row]), segment.created, self._item(segment, store, budget), True

    def _leads(self, scores: Scores, store: SegmentStore, budget: int) -> NDArray[np.int64]:
        """(segments,) by row: the row of its item's first segment."""
        own = np.arange(len(scores.ids))
        if not self.mixed:
            return own
        firsts = np.full(scores.groups.max() + 1, -1)
        for group in store.graph.groups.values():
            if group.static and len(group.members) < budget:
                firsts[group.id] = scores.rows[next(iter(group.members))]
        leads = firsts[scores.groups]
        return np.where(leads < 0, own, leads)

    def _values(self, scores: Scores, leads: NDArray[np.int64]) -> NDArray[np.float64]:
        """(segments,) the item's score, at the row of its first segment."""
        values = scores.values.astype(np.float64)
        if self.group_score == "mean":
            size = len(values)
            return np.bincount(leads, values, size) / np.maximum(np.bincount(leads, minlength=size), 1)
        best = np.full(len(values), -np.inf)
        np.maximum.at(best, leads, values)
        return best

    def _closure(self, item: Item, store: SegmentStore, largest: int, room: int) -> set[str]:
        """The item's segments with, item by item, what they refer back to and what amends them.

        Once they are more than ``room`` they fit nowhere, and the others are no longer looked for.
        """
        found, waiting = set(item), list(item)
        while waiting and len(found) <= room:
            segment = store.get(waiting.pop())
            for other in (segment.parent, *store.behind(segment.id, segment.category)):
                if other not in found and other in store and store.get(other).category != "agent":
                    new = set(self._item(store.get(other), store, largest)) - found
                    found |= new
                    waiting += new
        return found


def _falling(values: NDArray[np.float64], created: NDArray[np.int64], rows: NDArray[np.int64]) -> Iterator[int]:
    """``rows`` by their values, the highest first, of equals the older; the best of them are sorted first."""
    least = np.partition(values[rows], -SORTED_FIRST)[-SORTED_FIRST] if len(rows) > SORTED_FIRST else -np.inf
    for part in (rows[values[rows] >= least], rows[values[rows] < least]):
        yield from part[np.lexsort((created[part], -values[part]))].tolist()

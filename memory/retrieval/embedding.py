"""Embedding retrieval: selection of segments by the cosine between their vectors and the query's vector."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from heapq import heappop, heappush
from itertools import islice
from typing import TYPE_CHECKING, ClassVar

import numpy as np

from keep_agent.errors import ConfigError, check_choice
from memory.segments.groups import Scores
from memory.segments.segment import Segment
from memory.segments.store import SegmentStore, prompt_order
from memory.stages import Capabilities

if TYPE_CHECKING:
    from numpy.typing import NDArray

Item = tuple[str, ...]  # ids of segments that are scored and chosen together
Candidate = tuple[float, int, Item, bool]  # -score, creation number of the first segment, item, whether it may be split
GROUP_SCORES = ("max", "mean")
SORTED_FIRST = 256  # number of best items that are sorted first; a selection rarely needs more


@dataclass(frozen=True)
class Embedding:
    """Choice of the most similar segments within a budget, with their parents and the segments that amend them.

    ``mixed``: as in KEEP (arXiv 2602.23592, section 4.1), groups without recent changes (static) are chosen as a whole,
    other segments singly. A static group's members are chosen singly in two cases: the group with its parents and
    amendments exceeds the budget, or some members were chosen with other segments and the rest does not fit. An
    amendment is a later text on its parent's subject: both have the same category. Ties go to the older segment.

    The paper does not define a group's score: here it is the best member's, or with ``group_score=mean`` the members'
    mean. The agent's own segment is always chosen. So are the agent's ``recent`` last actions in this task, which take
    up at most a quarter of the budget.
    """

    mixed: bool = True
    group_score: str = "max"
    recent: int = 12
    capabilities: ClassVar[Capabilities] = Capabilities()

    def __post_init__(self) -> None:
        check_choice("group_score", self.group_score, GROUP_SCORES)
        if self.recent < 0:
            raise ConfigError(f"recent={self.recent} is not a number of actions: use 0 or more")

    def select(self, query: str, store: SegmentStore, budget: int) -> list[str]:
        """Return ids in prompt order: at most ``budget``, unless the agent's own segments alone are more."""
        if len(store) <= budget:
            return prompt_order(store.ids, store)
        scores = store.graph.scores(query)
        ranking = self._ranking(scores, store, budget)
        choice = {*store.of("agent"), *store.latest_actions(min(self.recent, budget // 4))}
        waiting = list(islice(ranking, 1))
        room = budget - len(choice)
        while waiting and len(choice) < budget:
            *_, item, whole = heappop(waiting)
            if whole:  # the candidate came from the ranking: add the next one
                for following in islice(ranking, 1):
                    heappush(waiting, following)
            segments = self._closure(item, store, budget if whole else 0, room)
            if len(choice) + len(segments - choice) <= budget:
                choice |= segments
            elif whole and (len(segments) > room or choice & set(item)):  # it never fits, or is partly chosen: split it
                for id in item:
                    heappush(waiting, (-scores[id], store.get(id).created, (id,), False))
        return prompt_order(choice, store)

    def _item(self, segment: Segment, store: SegmentStore, largest: int) -> Item:
        """Return the item of a segment: its static group of fewer than ``largest`` members, else the segment alone."""
        group = store.graph.group_of[segment.id]
        whole = self.mixed and group.static and len(group.members) < largest
        return tuple(group.members) if whole else (segment.id,)

    def _ranking(self, scores: Scores, store: SegmentStore, budget: int) -> Iterator[Candidate]:
        """Yield all items, the best first; ties go to the item whose first segment is older."""
        first_rows = self._first_rows(scores, store, budget)
        values = self._values(scores, first_rows)
        for row in _ranked_rows(values, scores.created, np.flatnonzero(first_rows == np.arange(len(first_rows)))):
            segment = store.get(scores.ids[row])
            if segment.category != "agent":
                yield -float(values[row]), segment.created, self._item(segment, store, budget), True

    def _first_rows(self, scores: Scores, store: SegmentStore, budget: int) -> NDArray[np.int64]:
        """Return (segments,): for each segment, the index in ``scores`` of its item's first segment."""
        rows = np.arange(len(scores.ids))
        if not self.mixed:
            return rows
        firsts = np.full(scores.groups.max() + 1, -1)
        for group in store.graph.groups.values():
            if group.static and len(group.members) < budget:
                firsts[group.id] = scores.rows[next(iter(group.members))]
        first_rows = firsts[scores.groups]
        return np.where(first_rows < 0, rows, first_rows)

    def _values(self, scores: Scores, first_rows: NDArray[np.int64]) -> NDArray[np.float64]:
        """Return (segments,): each item's score, at the row of its first segment; other rows have no meaning."""
        values = scores.values.astype(np.float64)
        if self.group_score == "mean":
            size = len(values)
            return np.bincount(first_rows, values, size) / np.maximum(np.bincount(first_rows, minlength=size), 1)
        best = np.full(len(values), -np.inf)
        np.maximum.at(best, first_rows, values)
        return best

    def _closure(self, item: Item, store: SegmentStore, largest: int, room: int) -> set[str]:
        """Return the item's segments, with the items of their parents and amendments; stop at more than ``room``."""
        closure, waiting = set(item), list(item)
        while waiting and len(closure) <= room:
            segment = store.get(waiting.pop())
            for id in (segment.parent, *store.children(segment.id, segment.category)):
                if id not in closure and id in store and store.get(id).category != "agent":
                    new = set(self._item(store.get(id), store, largest)) - closure
                    closure |= new
                    waiting += new
        return closure


def _ranked_rows(values: NDArray[np.float64], created: NDArray[np.int64], rows: NDArray[np.int64]) -> Iterator[int]:
    """Yield ``rows``, the highest value first, ties to the older; sort the rest only when the best are used up."""
    least = np.partition(values[rows], -SORTED_FIRST)[-SORTED_FIRST] if len(rows) > SORTED_FIRST else -np.inf
    for part in (rows[values[rows] >= least], rows[values[rows] < least]):
        yield from part[np.lexsort((created[part], -values[part]))].tolist()

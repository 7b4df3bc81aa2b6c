"""Segments by the cosine of their embedding to the query's."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import ClassVar

from keep_agent.errors import ConfigError
from memory.graph import prompt_order
from memory.segment import Segment
from memory.stages import Capabilities
from memory.store import SegmentStore

GROUP_SCORES = ("max", "mean")


@dataclass(frozen=True)
class Embedding:
    """The best segments within a budget of segments, together with everything they refer back to.

    ``mixed``: KEEP's granularity (arXiv 2602.23592, section 4.1), static groups as a whole, dynamic segments singly.
    The paper does not say how a group is scored; ``group_score`` offers its best member (default) or the mean.
    The agent's own segment is always in. Ties go to what is older.
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
        items = self._items(store)
        scores = store.graph.scores(query)
        ranked = sorted(set(items.values()), key=lambda item: (-self._score(item, scores), store.get(item[0]).created))
        chosen = dict.fromkeys(segment.id for segment in store if segment.category == "agent")
        for item in ranked:
            if len(chosen) >= budget:
                break
            wanted = [id for id in _closure(item, items, store) if id not in chosen]
            if len(chosen) + len(wanted) <= budget:
                chosen.update(dict.fromkeys(wanted))
        return prompt_order(chosen, store)

    def _items(self, store: SegmentStore) -> dict[str, tuple[str, ...]]:
        """What is chosen together with each segment, itself included: its static group, or nothing else."""
        return {segment.id: self._item(segment, store) for segment in store if segment.category != "agent"}

    def _item(self, segment: Segment, store: SegmentStore) -> tuple[str, ...]:
        group = store.graph.static_group(segment) if self.mixed else None
        return (segment.id,) if group is None else tuple(group.members)

    def _score(self, item: Iterable[str], scores: dict[str, float]) -> float:
        values = [scores[id] for id in item]
        return max(values) if self.group_score == "max" else sum(values) / len(values)


def _closure(item: tuple[str, ...], items: dict[str, tuple[str, ...]], store: SegmentStore) -> list[str]:
    """The item's segments and, with their own items, the segments they refer back to."""
    found: dict[str, None] = {}
    waiting = list(item)
    while waiting:
        id = waiting.pop()
        if id in found:
            continue
        found[id] = None
        parent = store.get(id).parent
        if parent in items:
            waiting.extend(items[parent])
    return list(found)

"""The choice of segments by embedding, slowly: every item is scored, and the best of all is looked for each time."""

from __future__ import annotations

from memory.retrieval.embedding import Embedding
from memory.segments.prompt_order import prompt_order
from memory.segments.segment import Segment
from memory.segments.store import SegmentStore

Items = dict[str, tuple[str, ...]]


def select(stage: Embedding, query: str, store: SegmentStore, budget: int) -> list[str]:
    """What ``stage`` has to choose."""
    scores = store.graph.scores(query)
    agents = {segment.id for segment in store if segment.category == "agent"}
    alone = {segment.id: (segment.id,) for segment in store if segment.id not in agents}
    items = {id: _group(store.get(id), store, budget) if stage.mixed else (id,) for id in alone}

    def rank(waiting: tuple[tuple[str, ...], bool]) -> tuple[float, int, tuple[str, ...]]:
        values = [scores[id] for id in waiting[0]]
        best = max(values) if stage.group_score == "max" else sum(values) / len(values)
        return -best, store.get(waiting[0][0]).created, waiting[0]

    finished = max((segment.created for segment in store if segment.category == "task"), default=-1)
    done = [s.id for s in store if s.category == "history" and s.created > finished]
    agents |= set(sorted(done, key=lambda id: -store.get(id).created)[: min(stage.recent, budget // 4)])
    chosen, waiting = agents, {(item, True) for item in items.values()}
    while waiting and (len(chosen) < budget or len(store) <= budget):
        item, whole = first = min(waiting, key=rank)
        waiting.remove(first)
        wanted = _closed(item, items if whole else alone, store)
        if len(chosen | wanted) <= budget:
            chosen = chosen | wanted
        elif whole and (len(agents | wanted) > budget or chosen & set(item)):
            waiting |= {((id,), False) for id in item}
    return prompt_order(chosen, store)


def _group(segment: Segment, store: SegmentStore, budget: int) -> tuple[str, ...]:
    group = store.graph.group_of(segment.id)
    return tuple(group.members) if group.static and len(group.members) < budget else (segment.id,)


def _closed(item: tuple[str, ...], items: Items, store: SegmentStore) -> set[str]:
    """With what they refer back to, and what amends them, until nothing is missing."""
    found: set[str] = set()
    more = set(item)
    while more - found:
        found |= more
        told = {store.get(id).parent for id in found}
        amending = {s.id for s in store if s.parent in found and s.category == store.get(s.parent).category}
        more = {id for other in told | amending if other in items for id in items[other]}
    return found

"""Selection of segments by embedding: slow reference that scores every item and searches for the best each time."""

from __future__ import annotations

from memory.retrieval.embedding import Embedding
from memory.segments.segment import Segment
from memory.segments.store import SegmentStore, prompt_order

Items = dict[str, tuple[str, ...]]


def select(stage: Embedding, query: str, store: SegmentStore, budget: int) -> list[str]:
    """Return the segments that ``stage`` must select."""
    scores = store.graph.scores(query)
    agents = {segment.id for segment in store if segment.category == "agent"}
    alone = {segment.id: (segment.id,) for segment in store if segment.id not in agents}
    items = {id: _group(store.get(id), store, budget) if stage.mixed else (id,) for id in alone}

    def rank(entry: tuple[tuple[str, ...], bool]) -> tuple[float, int, tuple[str, ...]]:
        values = [scores[id] for id in entry[0]]
        best = max(values) if stage.group_score == "max" else sum(values) / len(values)
        return -best, store.get(entry[0][0]).created, entry[0]

    finished = max((segment.created for segment in store if segment.category == "task"), default=-1)
    done = [s.id for s in store if s.category == "history" and s.created > finished]
    agents |= set(sorted(done, key=lambda id: -store.get(id).created)[: min(stage.recent, budget // 4)])
    selection, queue = agents, {(item, True) for item in items.values()}
    while queue and (len(selection) < budget or len(store) <= budget):
        item, whole = first = min(queue, key=rank)
        queue.remove(first)
        closure = _closure(item, items if whole else alone, store)
        if len(selection | closure) <= budget:
            selection = selection | closure
        elif whole and (len(agents | closure) > budget or selection & set(item)):
            queue |= {((id,), False) for id in item}
    return prompt_order(selection, store)


def _group(segment: Segment, store: SegmentStore, budget: int) -> tuple[str, ...]:
    group = store.graph.group_of[segment.id]
    return tuple(group.members) if group.static and len(group.members) < budget else (segment.id,)


def _closure(item: tuple[str, ...], items: Items, store: SegmentStore) -> set[str]:
    """Return the item with all parents, and all segments that amend it, transitively."""
    closure: set[str] = set()
    more = set(item)
    while more - closure:
        closure |= more
        parents = {store.get(id).parent for id in closure}
        amending = {s.id for s in store if s.parent in closure and s.category == store.get(s.parent).category}
        more = {id for key in parents | amending if key in items for id in items[key]}
    return closure

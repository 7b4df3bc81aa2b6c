"""Segment graph: containment and similarity of segments, and the stable groups they form.

Groups are KEEP's (arXiv 2602.23592, section 4.1): a group is static if none of its members changed within the last
``window`` steps, else dynamic. A new segment joins the group of the segment it refers back to, else the most similar
group of its family, else it founds one (as does a header that brings its members). There it stays while it lives, so
that grouping alone never invalidates a stored block. The state is the same for every memory method, whether it uses
groups or not.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from heapq import heappop, heappush
from typing import TYPE_CHECKING

import networkx as nx
import numpy as np

from memory.segments.groups import FAMILIES, FAMILY, Flip, Group, Grouping, Scores
from memory.segments.segment import Segment

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from memory.segments.sentence_encoder import SentenceEncoder
    from memory.segments.snapshot import Snapshot
    from memory.segments.store import SegmentStore

TOGETHER = 256  # new segments compared with the others at once: bounds the matrix of their cosines


class SegmentGraph:
    """Follows a store. ``graph`` has the segments as nodes; edges carry ``contains`` (the parent) or ``similarity``."""

    def __init__(self, encoder: SentenceEncoder, grouping: Grouping | None = None) -> None:
        self.encoder = encoder
        self.grouping = grouping or Grouping()
        self.clear()

    def clear(self) -> None:
        """Forget everything; the next update reads all of the store."""
        self.graph = nx.Graph()
        self.groups: dict[int, Group] = {}
        self._cursor = 0
        self._next = 0
        self._open: dict[str, set[int]] = {family: set() for family in FAMILIES}  # groups that similarity may join
        self._due: list[tuple[int, int]] = []  # heap of (last change, group); what has changed again is in it anew
        self._group_of: dict[str, int] = {}
        self._row: dict[str, int] = {}
        self._ids: list[str] = []
        self._vectors: NDArray[np.float32] = np.zeros((0, 0), np.float32)
        self._row_group: NDArray[np.int64] = np.zeros(0, np.int64)  # -1 while a segment has no group yet
        self._row_family: NDArray[np.int8] = np.zeros(0, np.int8)
        self._row_created: NDArray[np.int64] = np.zeros(0, np.int64)

    # -- what others ask -------------------------------------------------------------------------------------------

    def group_of(self, id: str) -> Group:
        return self.groups[self._group_of[id]]

    def static_group(self, segment: Segment) -> Group | None:
        """The segment's group if it is static and the segment is cached with it, else None."""
        group = self.groups[self._group_of[segment.id]]
        return group if group.static else None

    def scores(self, query: str) -> Scores:
        """Cosine of every segment to the query, rounded so that ties do not depend on the machine."""
        used = len(self._ids)
        vector = self.encoder.encode([query])[0] if used else np.zeros(self._vectors.shape[1], np.float32)
        values = np.round(self._vectors[:used] @ vector, 5)
        return Scores(values, self._row_group[:used], self._row_created[:used], self._ids, self._row)

    @property
    def founded(self) -> int:
        """Groups ever."""
        return self._next

    def restore(self, store: SegmentStore, snapshot: Snapshot) -> None:
        """Be what the graph was that the snapshot is of; ``store`` holds its segments."""
        self.clear()
        self._next = snapshot.founded
        grouped = {group.id: group for group in snapshot.groups}
        segments = list(snapshot.segments)
        vectors = self.encoder.encode([segment.text for segment in segments])
        self._grow(segments, vectors)
        order = np.argsort([segment.created for segment in segments], kind="stable")
        for start in range(0, len(segments), TOGETHER):
            rows = order[start : start + TOGETHER]
            similar = vectors[rows] @ vectors.T
            for row, values in zip(rows.tolist(), similar, strict=True):
                segment, known = segments[row], grouped[snapshot.group_of[row]]
                group = self.groups.setdefault(known.id, Group(known.id, FAMILY[segment.category], known.last_changed))
                group.static_since = known.static_since
                self._put_in(group, segment, row)
                self._link(segment, row, values[: row + 1])
        for group in self.groups.values():
            self._reopen(group)
            if not group.static:
                self._await(group)

    # -- following the store ---------------------------------------------------------------------------------------

    def update(self, store: SegmentStore, settle: bool = True) -> list[Flip]:
        """Read the store's changes since the last update; returns the groups that flipped their kind.

        ``settle=False``: what has been quiet for long enough becomes static at a later update.
        """
        touched, self._cursor = store.changed(self._cursor), store.changes
        store.drop(self._cursor)
        flips: list[Flip] = []
        for id in [id for id in touched if id in self._row and self._left(id, store)]:
            flips += self._change(self._remove(id), store.step)
        present = [store.get(id) for id in touched if id in store]
        if present:
            vectors = self.encoder.encode([segment.text for segment in present])
            new = np.array([segment.id not in self._row for segment in present])
            flips += self._refresh([s for s in present if s.id in self._row], vectors[~new])
            flips += self._insert([s for s in present if s.id not in self._row], vectors[new])
        return flips + self._settle(store) if settle else flips

    @contextmanager
    def settled(self, store: SegmentStore) -> Iterator[None]:
        """As if an update had made static what is quiet by now."""
        step, window = store.step, self.grouping.window
        groups = [group for group in self.groups.values() if group.family != "agent" and not group.static]
        quiet = [g for g in groups if step - g.last_changed >= window and not _in_use(g, store)]
        for group in quiet:
            group.static_since = step
        try:
            yield
        finally:
            for group in quiet:
                group.static_since = None

    def _left(self, id: str, store: SegmentStore) -> bool:
        """Is the segment gone, or has another one taken its id?"""
        return id not in store or store.get(id).created != self.graph.nodes[id]["created"]

    def _refresh(self, segments: list[Segment], vectors: NDArray[np.float32]) -> list[Flip]:
        """Known segments have new texts or parents."""
        if not segments:
            return []
        self._vectors[[self._row[segment.id] for segment in segments]] = vectors
        self._relink(segments, vectors)
        flips: list[Flip] = []
        for segment in segments:
            node = self.graph.nodes[segment.id]
            if node["version"] != segment.version:
                node["version"] = segment.version
                flips += self._change(self.group_of(segment.id), segment.last_changed)
        return flips

    def _insert(self, segments: list[Segment], vectors: NDArray[np.float32]) -> list[Flip]:
        headers = {segment.parent for segment in segments}
        flips: list[Flip] = []
        for start in range(0, len(segments), TOGETHER):
            part = slice(start, start + TOGETHER)
            first = len(self._ids)
            self._grow(segments[part], vectors[part])
            similar = vectors[part] @ self._vectors[: len(self._ids)].T
            for row, (segment, values) in enumerate(zip(segments[part], similar, strict=True), first):
                flips += self._enter(segment, row, values[: row + 1], segment.id in headers)
        return flips

    def _enter(self, segment: Segment, row: int, values: NDArray[np.float32], header: bool) -> list[Flip]:
        """A new segment finds its group; ``values`` (row + 1,) are its cosines to those before it and to itself."""
        group = self._near_parent(segment)
        if group is None and not header:
            group = self._most_similar(FAMILY[segment.category], values[:row])
        flips = self._join(group or self._found(FAMILY[segment.category], segment.last_changed), segment, row)
        self._link(segment, row, values)
        return flips

    def _grow(self, segments: list[Segment], vectors: NDArray[np.float32]) -> None:
        used, need = len(self._ids), len(self._ids) + len(segments)
        if need > len(self._vectors):
            room = max(64, 2 * need) - used
            held = self._vectors[:used].reshape(used, vectors.shape[1])
            self._vectors = np.concatenate([held, np.zeros((room, vectors.shape[1]), np.float32)])
            self._row_group = np.concatenate([self._row_group[:used], np.full(room, -1)])
            self._row_family = np.concatenate([self._row_family[:used], np.zeros(room, np.int8)])
            self._row_created = np.concatenate([self._row_created[:used], np.zeros(room, np.int64)])
        self._vectors[used:need] = vectors
        for row, segment in enumerate(segments, used):
            self._ids.append(segment.id)
            self._row[segment.id] = row
            self._row_group[row] = -1
            self._row_family[row] = FAMILIES.index(FAMILY[segment.category])
            self._row_created[row] = segment.created
            self.graph.add_node(segment.id, category=segment.category, created=segment.created, version=segment.version)

    # -- groups ----------------------------------------------------------------------------------------------------

    def _near_parent(self, segment: Segment) -> Group | None:
        """The group of the segment it refers back to. Not bounded: in a prompt the two must stand in one place."""
        group = self.groups.get(self._group_of.get(segment.parent or "", -1))
        return group if group and group.family == FAMILY[segment.category] else None

    def _most_similar(self, family: str, values: NDArray[np.float32]) -> Group | None:
        """The open group with the highest mean of ``values``, cosines by row, if that reaches the threshold.

        Static groups are closed to joins by similarity: a join would throw away a block that has earned its keep.
        """
        candidates = np.fromiter(sorted(self._open[family]), np.int64)
        if not candidates.size:
            return None
        groups = self._row_group[: len(values)]
        place = np.searchsorted(candidates, groups).clip(max=len(candidates) - 1)
        known = candidates[place] == groups
        total = np.bincount(place[known], values[known], len(candidates))
        mean = np.round(total / np.bincount(place[known], minlength=len(candidates)), 5)
        best = int(mean.argmax())
        return self.groups[int(candidates[best])] if mean[best] >= self.grouping.threshold else None

    def _found(self, family: str, step: int) -> Group:
        group = self.groups[self._next] = Group(self._next, family, step)
        self._next += 1
        self._await(group)
        return group

    def _join(self, group: Group, segment: Segment, row: int) -> list[Flip]:
        self._put_in(group, segment, row)
        return self._change(group, segment.last_changed)

    def _put_in(self, group: Group, segment: Segment, row: int) -> None:
        group.members[segment.id] = None
        self._group_of[segment.id] = group.id
        self._row_group[row] = group.id
        self.graph.nodes[segment.id]["group"] = group.id

    def _remove(self, id: str) -> Group:
        group = self.group_of(id)
        del group.members[id], self._group_of[id]
        self.graph.remove_node(id)
        row, last = self._row.pop(id), len(self._ids) - 1
        moved = self._ids.pop()
        if row != last:
            self._ids[row] = moved
            self._row[moved] = row
            for array in (self._vectors, self._row_group, self._row_family, self._row_created):
                array[row] = array[last]
        return group

    def _change(self, group: Group, step: int) -> list[Flip]:
        """A member came, went or changed: the group is dynamic from now on."""
        if not group.members:
            del self.groups[group.id]
            self._open[group.family].discard(group.id)
            return []
        flipped = group.static
        if flipped or step > group.last_changed:
            group.last_changed = max(group.last_changed, step)
            group.static_since = None
            self._await(group)
        self._reopen(group)
        return [Flip(step, group.id, False)] if flipped else []

    def _await(self, group: Group) -> None:
        """From now on it has to be quiet for the whole window; what the agent is at never becomes static."""
        if group.family != "agent":
            heappush(self._due, (group.last_changed, group.id))

    def _settle(self, store: SegmentStore) -> list[Flip]:
        """Groups that were quiet for the whole window become static; those in use have the window before them again."""
        quiet, step = set(), store.step
        while self._due and step - self._due[0][0] >= self.grouping.window:
            changed, id = heappop(self._due)
            if id in self.groups and self.groups[id].last_changed == changed:
                quiet.add(id)
        for id in [id for id in quiet if _in_use(self.groups[id], store)]:
            quiet.remove(id)
            self.groups[id].last_changed = step
            self._await(self.groups[id])
        for group in map(self.groups.__getitem__, sorted(quiet)):
            group.static_since = step
            self._reopen(group)
        return [Flip(step, id, True) for id in sorted(quiet)]

    def _reopen(self, group: Group) -> None:
        open_ = self._open[group.family]
        if group.static or len(group.members) >= self.grouping.bound:
            open_.discard(group.id)
        else:
            open_.add(group.id)

    # -- edges -----------------------------------------------------------------------------------------------------

    def _link(self, segment: Segment, row: int, values: NDArray[np.float32]) -> None:
        """Edges to its parent, and to the most similar of its family by ``values``, cosines by row."""
        self._link_parent(segment)
        values = np.where(self._row_family[: len(values)] == self._row_family[row], values, -np.inf)
        values[row] = -np.inf
        for _ in range(self.grouping.neighbours):
            best = int(values.argmax())
            if values[best] < self.grouping.threshold:
                break
            self.graph.add_edge(segment.id, self._ids[best], similarity=float(values[best]))
            values[best] = -np.inf

    def _relink(self, segments: list[Segment], vectors: NDArray[np.float32]) -> None:
        """Their texts have changed: what they are similar to has to be asked again."""
        for segment in segments:
            self._unlink(segment.id, list(self.graph[segment.id]), "similarity")
        for segment, values in zip(segments, vectors @ self._vectors[: len(self._ids)].T, strict=True):
            self._link(segment, self._row[segment.id], values)

    def _link_parent(self, segment: Segment) -> None:
        node = self.graph.nodes[segment.id]
        old = node.get("parent")
        if old != segment.parent and old is not None and self.graph.has_edge(segment.id, old):
            self._unlink(segment.id, [old], "contains")
        node["parent"] = segment.parent
        if segment.parent in self._row:
            self.graph.add_edge(segment.id, segment.parent, contains=segment.parent)

    def _unlink(self, id: str, others: Iterable[str], kind: str) -> None:
        for other in others:
            edge = self.graph.edges[id, other]
            edge.pop(kind, None)
            if not edge:
                self.graph.remove_edge(id, other)


def _in_use(group: Group, store: SegmentStore) -> bool:
    """Does it hold a line of the log, whose place is behind all else until the task is finished?"""
    latest = next(reversed(group.members))
    return group.family == "history" and store.get(latest).created > store.finished

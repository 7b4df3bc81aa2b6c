"""Segment graph: containment and similarity of segments, and the stable groups they form.

Groups are KEEP's (arXiv 2602.23592, section 4.1): a group is static if none of its members changed within the last
``window`` steps, else dynamic. A new segment joins its parent's group, else the most similar group of its family (the
categories that may share a group), else it starts one. A parent written together with its children joins no group by
similarity. A segment stays in its group until it is removed, so that grouping alone never invalidates a stored block.
The graph is the same for every memory method, also for methods that do not use groups.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Sequence
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

BATCH = 256  # new segments compared with all segments in one product: limits the memory for cosines


class SegmentGraph:
    """Graph of a store's segments. Edges have ``contains`` (the parent's id), ``similarity`` (the cosine), or both."""

    def __init__(self, encoder: SentenceEncoder, grouping: Grouping | None = None) -> None:
        self.encoder, self.grouping = encoder, grouping or Grouping()
        self.embed_seconds = 0.0  # time of the encoder; a session sets it to 0 at every prompt
        self.clear()

    def clear(self) -> None:
        """Delete all groups; the next update reads the whole store."""
        self.graph = nx.Graph()
        self.groups: dict[int, Group] = {}
        self.group_of: dict[str, Group] = {}  # by segment id
        self.next_group = 0  # number of groups ever created
        self._cursor = 0
        self._open: dict[str, set[int]] = {family: set() for family in FAMILIES}  # groups that may grow by similarity
        self._due: list[tuple[int, int]] = []  # heap of (step of a group's last change, group id)
        self._row: dict[str, int] = {}
        self._ids: list[str] = []
        self._vectors: NDArray[np.float32] = np.zeros((0, 0), np.float32)
        self._row_group: NDArray[np.int64] = np.zeros(0, np.int64)  # -1: the segment has no group yet
        self._row_family: NDArray[np.int8] = np.zeros(0, np.int8)
        self._row_created: NDArray[np.int64] = np.zeros(0, np.int64)

    def scores(self, query: str) -> Scores:
        """Return the cosine of every segment to the query, rounded so that ties do not depend on the machine."""
        rows = len(self._ids)
        vector = self._encode([query])[0] if rows else np.zeros(self._vectors.shape[1], np.float32)
        values = np.round(self._vectors[:rows] @ vector, 5)
        return Scores(values, self._row_group[:rows], self._row_created[:rows], self._ids, self._row)

    def _encode(self, texts: Sequence[str]) -> NDArray[np.float32]:
        began = time.perf_counter()
        vectors = self.encoder.encode(texts)
        self.embed_seconds += time.perf_counter() - began
        return vectors

    def restore(self, store: SegmentStore, snapshot: Snapshot) -> None:
        """Restore the groups of a snapshot, whose segments are in ``store``."""
        self.clear()
        self.next_group = snapshot.next_group
        states, segments = {group.id: group for group in snapshot.groups}, list(snapshot.segments)
        vectors = self._encode([segment.text for segment in segments])
        self._grow(segments, vectors)
        order = np.argsort([segment.created for segment in segments], kind="stable")
        for start in range(0, len(segments), BATCH):
            rows = order[start : start + BATCH]
            similar = vectors[rows] @ vectors.T
            for row, values in zip(rows.tolist(), similar, strict=True):
                segment, state = segments[row], states[snapshot.group_of[row]]
                group = self.groups.setdefault(state.id, Group(state.id, FAMILY[segment.category], state.last_changed))
                group.static_since = state.static_since
                self._add_member(group, segment, row)
                self._link(segment, row, values[: row + 1])
        for group in self.groups.values():
            self._update_open(group)
            if not group.static:
                self._schedule(group)

    def update(self, store: SegmentStore, settle: bool = True) -> list[Flip]:
        """Read the store's changes since the last update; returns the groups that became static or dynamic.

        :param settle: True: groups without recent changes become static now; False: at a later update
        """
        touched, self._cursor = store.changed_ids(self._cursor), store.changes
        store.drop(self._cursor)
        flips: list[Flip] = []
        nodes = self.graph.nodes
        for id in [id for id in touched if id in self._row]:
            if id not in store or store.get(id).created != nodes[id]["created"]:  # removed, or the id is reused
                flips += self._change(self._remove(id), store.step)
        present = [store.get(id) for id in touched if id in store]
        if present:
            vectors = self._encode([segment.text for segment in present])
            new = np.array([segment.id not in self._row for segment in present])
            flips += self._refresh([s for s in present if s.id in self._row], vectors[~new])
            flips += self._insert([s for s in present if s.id not in self._row], vectors[new])
        return flips + self._make_static(store) if settle else flips

    @contextmanager
    def quiet_as_static(self, store: SegmentStore) -> Iterator[None]:
        """Treat groups without recent changes as static inside the ``with`` statement, as the next update will."""
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

    def _refresh(self, segments: list[Segment], vectors: NDArray[np.float32]) -> list[Flip]:
        """Update vectors, edges and groups for known segments that have new texts or parents."""
        if not segments:
            return []
        self._vectors[[self._row[segment.id] for segment in segments]] = vectors
        for segment in segments:
            self._unlink(segment.id, list(self.graph[segment.id]), "similarity")
        for segment, values in zip(segments, vectors @ self._vectors[: len(self._ids)].T, strict=True):
            self._link(segment, self._row[segment.id], values)
        flips: list[Flip] = []
        for segment in segments:
            node = self.graph.nodes[segment.id]
            if node["version"] != segment.version:
                node["version"] = segment.version
                flips += self._change(self.group_of[segment.id], segment.last_changed)
        return flips

    def _insert(self, segments: list[Segment], vectors: NDArray[np.float32]) -> list[Flip]:
        headers = {segment.parent for segment in segments}
        flips: list[Flip] = []
        for start in range(0, len(segments), BATCH):
            part = slice(start, start + BATCH)
            first = len(self._ids)
            self._grow(segments[part], vectors[part])
            similar = vectors[part] @ self._vectors[: len(self._ids)].T
            for row, (segment, values) in enumerate(zip(segments[part], similar, strict=True), first):
                flips += self._assign(segment, row, values[: row + 1], segment.id in headers)
        return flips

    def _assign(self, segment: Segment, row: int, values: NDArray[np.float32], header: bool) -> list[Flip]:
        """Put a new segment into a group; a ``header`` (parent) joins none by similarity. ``values``: cosines."""
        family, group = FAMILY[segment.category], self.group_of.get(segment.parent or "")
        if group is None or group.family != family:  # else it joins its parent's group, even a full one
            group = None if header else self._most_similar(family, values[:row])
        if group is None:
            group = self.groups[self.next_group] = Group(self.next_group, family, segment.last_changed)
            self.next_group += 1
            self._schedule(group)
        self._add_member(group, segment, row)
        flips = self._change(group, segment.last_changed)
        self._link(segment, row, values)
        return flips

    def _grow(self, segments: list[Segment], vectors: NDArray[np.float32]) -> None:
        first, need = len(self._ids), len(self._ids) + len(segments)
        if need > len(self._vectors):
            room = max(64, 2 * need) - first
            self._vectors = np.pad(self._vectors[:first].reshape(first, vectors.shape[1]), ((0, room), (0, 0)))
            self._row_group, self._row_family, self._row_created = (
                np.pad(array[:first], (0, room)) for array in (self._row_group, self._row_family, self._row_created)
            )
        self._vectors[first:need] = vectors
        for row, segment in enumerate(segments, first):
            self._ids.append(segment.id)
            self._row[segment.id] = row
            self._row_group[row] = -1
            self._row_family[row] = FAMILIES.index(FAMILY[segment.category])
            self._row_created[row] = segment.created
            self.graph.add_node(segment.id, created=segment.created, version=segment.version)

    def _most_similar(self, family: str, values: NDArray[np.float32]) -> Group | None:
        """Return the open group with the highest mean cosine, if it reaches the threshold; ``values``: cosines by row.

        Static groups are closed to joins by similarity, which would invalidate their blocks.
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

    def _add_member(self, group: Group, segment: Segment, row: int) -> None:
        group.members[segment.id] = None
        self.group_of[segment.id] = group
        self._row_group[row] = group.id

    def _remove(self, id: str) -> Group:
        group = self.group_of.pop(id)
        del group.members[id]
        self.graph.remove_node(id)
        row, last = self._row.pop(id), len(self._ids) - 1
        final = self._ids.pop()
        if row != last:
            self._ids[row], self._row[final] = final, row
            for array in (self._vectors, self._row_group, self._row_family, self._row_created):
                array[row] = array[last]
        return group

    def _change(self, group: Group, step: int) -> list[Flip]:
        """Make a group dynamic, because a member was added, removed or changed; an empty group is deleted."""
        if not group.members:
            del self.groups[group.id]
            self._open[group.family].discard(group.id)
            return []
        flipped = group.static_since is not None
        if flipped or step > group.last_changed:
            group.last_changed = max(group.last_changed, step)
            group.static_since = None
            self._schedule(group)
        self._update_open(group)
        return [Flip(step, group.id, False)] if flipped else []

    def _schedule(self, group: Group) -> None:
        """Schedule a group to become static after a window without changes; the agent's own group never does."""
        if group.family != "agent":
            heappush(self._due, (group.last_changed, group.id))

    def _make_static(self, store: SegmentStore) -> list[Flip]:
        """Make groups static after a window without changes; groups with lines of the current log wait one more."""
        quiet, step = set(), store.step
        while self._due and step - self._due[0][0] >= self.grouping.window:
            changed, id = heappop(self._due)
            if id in self.groups and self.groups[id].last_changed == changed:
                quiet.add(id)
        for id in [id for id in quiet if _in_use(self.groups[id], store)]:
            quiet.remove(id)
            self.groups[id].last_changed = step
            self._schedule(self.groups[id])
        for group in map(self.groups.__getitem__, sorted(quiet)):
            group.static_since = step
            self._update_open(group)
        return [Flip(step, id, True) for id in sorted(quiet)]

    def _update_open(self, group: Group) -> None:
        """Open a group to joins by similarity, or close it if it is static or full."""
        closed = group.static_since is not None or len(group.members) >= self.grouping.bound
        (self._open[group.family].discard if closed else self._open[group.family].add)(group.id)

    def _link(self, segment: Segment, row: int, values: NDArray[np.float32]) -> None:
        """Add edges to the parent, and to the most similar segments of the family; ``values`` are cosines by row."""
        node = self.graph.nodes[segment.id]
        old = node.get("parent")
        if old != segment.parent and old is not None and self.graph.has_edge(segment.id, old):
            self._unlink(segment.id, [old], "contains")
        node["parent"] = segment.parent
        if segment.parent in self._row:
            self.graph.add_edge(segment.id, segment.parent, contains=segment.parent)
        values = np.where(self._row_family[: len(values)] == self._row_family[row], values, -np.inf)
        values[row] = -np.inf
        for _ in range(self.grouping.neighbours):
            best = int(values.argmax())
            if values[best] < self.grouping.threshold:
                break
            self.graph.add_edge(segment.id, self._ids[best], similarity=float(values[best]))
            values[best] = -np.inf

    def _unlink(self, id: str, neighbours: Iterable[str], kind: str) -> None:
        for neighbour in neighbours:
            edge = self.graph.edges[id, neighbour]
            edge.pop(kind, None)
            if not edge:
                self.graph.remove_edge(id, neighbour)


def _in_use(group: Group, store: SegmentStore) -> bool:
    """Tell whether a group has lines of the current log: as these come last in prompts, it cannot become static."""
    latest = next(reversed(group.members))
    return group.family == "history" and store.get(latest).created > store.last_finished

"""Store of the segments that an agent remembers, with their versions and change history."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import islice, takewhile
from typing import TYPE_CHECKING

from keep_agent.errors import ConfigError, DataError
from memory.segments.segment import CATEGORIES, Segment

if TYPE_CHECKING:
    from memory.segments.groups import SegmentGroups

HISTORY = 1000  # number of latest changes that `SegmentStore.drop` keeps


@dataclass(frozen=True, slots=True)
class Change:
    """Entry of the change history; ``text`` is None for a removal."""

    step: int
    id: str
    version: int
    text: str | None


class SegmentStore:
    """Segments by id in creation order.

    :param encode_text: function from a segment's text to its token ids; only `tokens` needs it
    :param graph: groups and embeddings of the segments; only `graph` needs it
    """

    def __init__(
        self, encode_text: Callable[[str], Sequence[int]] | None = None, graph: SegmentGroups | None = None
    ) -> None:
        self._encode_text, self._graph = encode_text, graph
        self.clear()

    def clear(self) -> None:
        """Delete all segments, the history and the graph; begin at step 0."""
        self.history: list[Change] = []  # the latest changes
        self._dropped = 0  # number of earlier changes that are no longer in ``history``
        self.step = 0
        self.created = 0  # number of segments ever created
        self._segments: dict[str, Segment] = {}
        self.ids = self._segments.keys()
        self._tokens: dict[str, tuple[int, ...]] = {}
        self._by_category: dict[str, dict[str, None]] = {category: {} for category in CATEGORIES}
        self._children: dict[tuple[str, str], set[str]] = {}  # by parent and category
        if self._graph is not None:
            self._graph.clear()

    def put(self, id: str, category: str, text: str, parent: str | None = None) -> Segment:
        """Write a segment. The same text and parent change nothing; a new text makes a new version.

        :raises DataError: the text is not one line that ends in a newline, or the category is unknown or has changed
        """
        old = self._segments.get(id)
        if old is not None and (old.text, old.parent, old.category) == (text, parent, category):
            return old
        check_segment(id, category, text)
        if old is not None and old.category != category:
            raise DataError(f"segment {id!r} is a {old.category}, not a {category}: remove it first or use another id")
        if old is None:
            self.created += 1
            new = Segment(id, category, text, 1, self.created, self.step, parent)
        elif old.text == text:
            new = replace(old, parent=parent)
        else:
            new = Segment(id, category, text, old.version + 1, old.created, self.step, parent)
        if old is not None:
            self._unlink(old)
        self._add(new)
        self._tokens.pop(id, None)
        self.history.append(Change(self.step, id, new.version, text))
        return new

    def remove(self, id: str) -> None:
        """Delete a segment. Raises DataError if there is none of that id."""
        old = self.get(id)
        self._unlink(old)
        del self._segments[id], self._by_category[old.category][id]
        self._tokens.pop(id, None)
        self.history.append(Change(self.step, id, old.version, None))

    def get(self, id: str) -> Segment:
        try:
            return self._segments[id]
        except KeyError:
            raise DataError(f"there is no segment {id!r} in this store of {len(self)}: put it first") from None

    def tokens(self, id: str) -> tuple[int, ...]:
        """Return the token ids of a segment's current version."""
        if id not in self._tokens:
            if self._encode_text is None:
                raise ConfigError("this store has no tokenizer: give SegmentStore an encode_text")
            self._tokens[id] = tuple(self._encode_text(self.get(id).text))
        return self._tokens[id]

    def of(self, category: str) -> Collection[str]:
        """Return the ids of the segments of a category."""
        return self._by_category[category].keys()

    def children(self, parent: str, category: str) -> Collection[str]:
        """Return the ids of the segments of a category whose parent is ``parent``, which need not exist."""
        return self._children.get((parent, category), ())

    @property
    def last_finished(self) -> int:
        """Creation number (`Segment.created`) of the last finished task; -1 if there is none."""
        return max((self._segments[id].created for id in self._by_category["task"]), default=-1)

    def latest_actions(self, most: int) -> list[str]:
        """Return the ids of the agent's actions since its last finished task, the latest first, ``most`` at most."""
        finished, latest = self.last_finished, islice(reversed(self._by_category["history"]), most)
        return list(takewhile(lambda id: self._segments[id].created > finished, latest))

    @property
    def log(self) -> list[str]:
        """Ids of the agent's actions since its last finished task, in order of time."""
        return self.latest_actions(len(self._by_category["history"]))[::-1]

    @property
    def graph(self) -> SegmentGroups:
        if self._graph is None:
            raise ConfigError("this store has no segment graph: give SegmentStore a graph")
        return self._graph

    def advance(self) -> int:
        """Begin the next step; returns its number."""
        self.step += 1
        return self.step

    @property
    def changes(self) -> int:
        """Number of changes so far."""
        return self._dropped + len(self.history)

    def changed_ids(self, since: int) -> Collection[str]:
        """Return the ids of the changes after the first ``since``, in order; all ids if some of these were dropped."""
        ids = (change.id for change in self.history[max(0, since - self._dropped) :])
        return dict.fromkeys(ids if since >= self._dropped else (*self._segments, *ids))

    def drop(self, until: int) -> None:
        """Drop the first ``until`` changes from the history, but keep its last `HISTORY` changes in any case."""
        excess = min(until - self._dropped, len(self.history) - HISTORY)
        if excess > 0:
            del self.history[:excess]
            self._dropped += excess

    def restore(self, segments: Sequence[Segment], step: int, created: int) -> None:
        """Replace all segments; the change history begins empty."""
        self.clear()
        for segment in segments:
            self._add(segment)
        self.step, self.created = step, created

    def _add(self, segment: Segment) -> None:
        self._segments[segment.id] = segment
        self._by_category[segment.category].setdefault(segment.id)
        if segment.parent is not None:
            self._children.setdefault((segment.parent, segment.category), set()).add(segment.id)

    def _unlink(self, segment: Segment) -> None:
        """Remove a segment from its parent's children."""
        if segment.parent is not None:
            key = segment.parent, segment.category
            self._children[key].remove(segment.id)
            if not self._children[key]:
                del self._children[key]

    def __iter__(self) -> Iterator[Segment]:
        return iter(self._segments.values())

    def __len__(self) -> int:
        return len(self._segments)

    def __contains__(self, id: object) -> bool:
        return id in self._segments


def prompt_order(ids: Iterable[str], store: SegmentStore) -> list[str]:
    """Sort chosen segments for a prompt: the same order for every memory method.

    Static groups (without recent changes) come first, in the order in which they became static. Then come other
    segments, lines of the current task's log, and the agent's own segment. Within a group and among other
    segments the order is that of the last change, then of creation: segments written together stay together, the latest
    comes last. Segments that rarely change come first, because a prompt's unchanged beginning can be reused.
    """
    group_of, finished = store.graph.group_of, store.last_finished

    def key(segment: Segment) -> tuple[int, int, int, int, int]:
        group, age = group_of[segment.id], (segment.last_changed, segment.created)
        if segment.category == "agent":
            return 3, 0, 0, *age
        if group.static_since is None:
            return 1 + (segment.category == "history" and segment.created > finished), 0, 0, *age
        return 0, group.static_since, group.id, *age

    return [segment.id for segment in sorted(map(store.get, ids), key=key)]


def check_segment(id: str, category: str, text: str) -> None:
    """Raise DataError for an unknown category, or a text that is not one line ending in a newline."""
    if category not in CATEGORIES:
        raise DataError(f"segment {id!r} has the unknown category {category!r}: use one of {', '.join(CATEGORIES)}")
    if not text.endswith("\n") or text.count("\n") != 1 or text == "\n":
        raise DataError(f"segment {id!r} has the text {text!r}: it must be one line that ends in a newline")

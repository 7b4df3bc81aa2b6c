"""The segments an agent remembers right now, and how they came to be."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import islice, takewhile
from typing import TYPE_CHECKING

from keep_agent.errors import ConfigError, DataError
from memory.segments.segment import CATEGORIES, Segment

if TYPE_CHECKING:
    from memory.segments.groups import Groups


KEPT = 1000  # changes that everybody may ask for, however many there were


@dataclass(frozen=True, slots=True)
class Change:
    """One entry of the change history; ``text`` is None for a removal."""

    step: int
    id: str
    version: int
    text: str | None


class SegmentStore:
    """Segments by id in creation order, with versions and a change history.

    ``encode_text`` turns a segment's text into token ids; ``graph`` follows the changes and holds groups and
    embeddings. Both belong to the session; a bare store serves whoever needs neither.
    """

    def __init__(self, encode_text: Callable[[str], Sequence[int]] | None = None, graph: Groups | None = None) -> None:
        self._encode_text = encode_text
        self._graph = graph
        self.clear()

    def clear(self) -> None:
        """Forget everything, the history and the graph too; begin at step 0."""
        self.history: list[Change] = []  # the latest of them
        self._dropped = 0  # changes before those
        self.step = 0
        self._segments: dict[str, Segment] = {}
        self._tokens: dict[str, tuple[int, ...]] = {}
        self._of: dict[str, dict[str, None]] = {category: {} for category in CATEGORIES}
        self._behind: dict[tuple[str, str], set[str]] = {}  # by parent and category
        self._created = 0
        if self._graph is not None:
            self._graph.clear()

    def put(self, id: str, category: str, text: str, parent: str | None = None) -> Segment:
        """Write a segment. The same text and parent change nothing; a new text is a new version.

        Raises DataError for a text that is not one line ending in a newline, an unknown category, or another category
        than before.
        """
        old = self._segments.get(id)
        if old is not None and old.text == text and old.parent == parent and old.category == category:
            return old
        check_segment(id, category, text)
        if old is not None and old.category != category:
            raise DataError(f"segment {id!r} is a {old.category}, not a {category}: remove it first or use another id")
        if old is None:
            self._created += 1
            new = Segment(id, category, text, 1, self._created, self.step, parent)
        elif old.text == text:
            new = replace(old, parent=parent)
        else:
            new = Segment(id, category, text, old.version + 1, old.created, self.step, parent)
        if old is not None:
            self._leave(old)
        self._enter(new)
        self._tokens.pop(id, None)
        self.history.append(Change(self.step, id, new.version, text))
        return new

    def remove(self, id: str) -> None:
        """Forget a segment. Raises DataError if there is none of that id."""
        old = self.get(id)
        self._leave(old)
        del self._segments[id], self._of[old.category][id]
        self._tokens.pop(id, None)
        self.history.append(Change(self.step, id, old.version, None))

    def get(self, id: str) -> Segment:
        try:
            return self._segments[id]
        except KeyError:
            raise DataError(f"no segment {id!r} in the store of {len(self)}: put it first") from None

    def tokens(self, id: str) -> tuple[int, ...]:
        """Token ids of the present version of a segment."""
        found = self._tokens.get(id)
        if found is None:
            if self._encode_text is None:
                raise ConfigError("this store has no tokenizer: give SegmentStore an encode_text")
            found = self._tokens[id] = tuple(self._encode_text(self.get(id).text))
        return found

    def of(self, category: str) -> Collection[str]:
        """Ids of the segments of a category."""
        return self._of[category].keys()

    @property
    def finished(self) -> int:
        """When the last finished task was written, in the order of creation; -1 if there is none."""
        return max((self._segments[id].created for id in self._of["task"]), default=-1)

    def done_lately(self, most: int) -> list[str]:
        """Ids of what the agent did since it last finished a task, the latest first, ``most`` at most."""
        finished, latest = self.finished, islice(reversed(self._of["history"]), most)
        return list(takewhile(lambda id: self._segments[id].created > finished, latest))

    @property
    def log(self) -> list[str]:
        """Ids of what the agent did since it last finished a task, in the order of its doing."""
        return self.done_lately(len(self._of["history"]))[::-1]

    def behind(self, parent: str, category: str) -> Collection[str]:
        """Ids of the segments of a category that refer back to ``parent``, whether or not that is in the store."""
        return self._behind.get((parent, category), ())

    @property
    def graph(self) -> Groups:
        if self._graph is None:
            raise ConfigError("this store has no segment graph: give SegmentStore a graph")
        return self._graph

    def advance(self) -> int:
        """Begin the next step; returns its number."""
        self.step += 1
        return self.step

    @property
    def changes(self) -> int:
        """How many there were."""
        return self._dropped + len(self.history)

    def changed(self, since: int) -> Collection[str]:
        """Ids of what has changed after so many changes, in order; all there are where that is too long ago."""
        ids = (change.id for change in self.history[max(0, since - self._dropped) :])
        return dict.fromkeys(ids if since >= self._dropped else (*self._segments, *ids))

    def drop(self, until: int) -> None:
        """Forget how the first ``until`` changes went, but for the last `KEPT` of all."""
        excess = min(until - self._dropped, len(self.history) - KEPT)
        if excess > 0:
            del self.history[:excess]
            self._dropped += excess

    @property
    def created(self) -> int:
        """Segments ever."""
        return self._created

    def restore(self, segments: Sequence[Segment], step: int, created: int) -> None:
        """Hold these segments and nothing else; the change history begins anew."""
        self.clear()
        for segment in segments:
            self._enter(segment)
        self.step, self._created = step, created

    def _enter(self, segment: Segment) -> None:
        self._segments[segment.id] = segment
        self._of[segment.category].setdefault(segment.id)
        if segment.parent is not None:
            self._behind.setdefault((segment.parent, segment.category), set()).add(segment.id)

    def _leave(self, segment: Segment) -> None:
        """What is found by parent; its place in the order of creation stays, among all and those of its category."""
        if segment.parent is not None:
            key = segment.parent, segment.category
            self._behind[key].remove(segment.id)
            if not self._behind[key]:
                del self._behind[key]

    def __iter__(self) -> Iterator[Segment]:
        return iter(self._segments.values())

    def __len__(self) -> int:
        return len(self._segments)

    def __contains__(self, id: object) -> bool:
        return id in self._segments


def check_segment(id: str, category: str, text: str) -> None:
    """Raises DataError for an unknown category, or a text that is not one line ending in a newline."""
    if category not in CATEGORIES:
        raise DataError(f"segment {id!r} has the unknown category {category!r}: use one of {', '.join(CATEGORIES)}")
    if not text.endswith("\n") or text.count("\n") != 1 or text == "\n":
        raise DataError(f"segment {id!r} has the text {text!r}: it must be one line that ends in a newline")

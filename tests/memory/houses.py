"""Small households for tests: stores whose tokenizer and encoder need no files."""

from __future__ import annotations

from memory.segments.graph import SegmentGraph
from memory.segments.groups import Grouping
from memory.segments.sentence_encoder import CachedEncoder, HashedNgrams
from memory.segments.store import SegmentStore

VOCABULARY = 97


def encode_text(text: str) -> list[int]:
    """Encode one token per word, and 2 for the newline; the ids do not depend on the process."""
    words = text.replace("\n", " \n").split(" ")
    hashes = [sum(ord(c) * (i + 7) for i, c in enumerate(word)) % (VOCABULARY - 3) for word in words]
    return [2 if word == "\n" else 3 + number for word, number in zip(words, hashes, strict=True)]


def make_store(grouping: Grouping | None = None) -> SegmentStore:
    return SegmentStore(encode_text, SegmentGraph(CachedEncoder(HashedNgrams()), grouping))


def furnish(store: SegmentStore, cabinets: int = 4, objects: int = 12) -> None:
    store.put("agent", "agent", "agent at start holding nothing\n")
    for i in range(1, cabinets + 1):
        store.put(f"cabinet_{i}", "receptacle", f"cabinet cabinet_{i} closed\n")
    for i in range(1, objects + 1):
        place = f"cabinet_{1 + i % cabinets}"
        store.put(f"mug_{i}", "object", f"mug mug_{i} {place}\n", parent=place)


def rest(store: SegmentStore, step: int) -> SegmentStore:
    """Advance the store to ``step`` without a change."""
    store.graph.update(store)
    store.step = step
    store.graph.update(store)
    return store


def make_house(quiet: int = 0, cabinets: int = 4, objects: int = 12) -> SegmentStore:
    """Make a furnished house in which nothing has changed for ``quiet`` steps."""
    store = make_store()
    furnish(store, cabinets, objects)
    return rest(store, quiet)

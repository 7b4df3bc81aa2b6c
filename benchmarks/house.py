"""Synthetic house of any size, in which some segments change at every step; all embeddings are cached in advance."""

from __future__ import annotations

import random

from memory.segments.graph import SegmentGraph
from memory.segments.sentence_encoder import make_encoder
from memory.segments.store import SegmentStore

KINDS = ("mug", "apple", "fork", "plate", "book", "pen", "towel", "knife", "pan", "laptop")
STATES = ("clean", "dirty", "hot", "cold", "open", "closed")
QUERY = "put a clean mug in the cabinet"
PER_CABINET = 20


class House:
    """House of ``size`` segments: cabinets, objects in them (every third has its cabinet as parent), and the agent.

    :param steady: let `change` move only a few objects, so that the groups of the others become static
    :param store: the store to fill (default: a new one)
    """

    def __init__(self, size: int, steady: bool = False, store: SegmentStore | None = None) -> None:
        self.size = size
        self.store = store if store is not None else SegmentStore(encode_text, SegmentGraph(make_encoder("hashed")))
        self._encoder = self.store.graph.encoder
        self._encoder.encode([QUERY])
        self._rng = random.Random(0)
        self._cabinets = max(1, size // PER_CABINET)
        self._things = max(1, size - 1 - self._cabinets)
        self._steady = steady
        self._move_agent()
        for number in range(self._cabinets):
            self._put(f"cabinet_{number}", "receptacle", f"cabinet cabinet_{number} closed\n")
        for number in range(self._things):
            self._place(number)
        self.store.graph.update(self.store)

    def change(self, changed: int) -> None:
        """Advance by one step, in which the agent and ``changed`` - 1 objects move."""
        self.store.advance()
        self._move_agent()
        among = min(self._things, 2 * changed) if self._steady else self._things
        for number in self._rng.sample(range(among), min(changed - 1, among)):
            self._place(number)

    def _move_agent(self) -> None:
        self._put("agent", "agent", f"agent at cabinet_{self._rng.randrange(self._cabinets)} holding nothing\n")

    def _place(self, number: int) -> None:
        kind, home = KINDS[number % len(KINDS)], f"cabinet_{self._rng.randrange(self._cabinets)}"
        text = f"{kind} {kind}_{number} {home} {self._rng.choice(STATES)}\n"
        self._put(f"{kind}_{number}", "object", text, None if number % 3 else home)

    def _put(self, id: str, category: str, text: str, parent: str | None = None) -> None:
        self._encoder.encode([text])
        self.store.put(id, category, text, parent)


def encode_text(text: str) -> list[int]:
    """Return about one token id per three letters; nearly all different lines have different ids."""
    return [3 + sum(text[i : i + 3].encode()) * (i + 1) % 1000 for i in range(0, len(text), 3)]

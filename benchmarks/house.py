"""A house of any size, in which some things change at every step; all texts are known to the sentence encoder."""

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
    """``size`` segments: cabinets, things in them (every third refers back to its cabinet), and the agent.

    :param steady: only a few things ever change, so all other groups become static; else any may, and groups flip
    :param store: to be furnished; its own if left out
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
        """One step later the agent has moved, and so have ``changed`` - 1 things."""
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
    """About a token for every three letters, different for different lines."""
    return [3 + sum(text[i : i + 3].encode()) * (i + 1) % 1000 for i in range(0, len(text), 3)]

"""Long and short memory: KARMA's choice of segments, all known places and a few of the latest changed things."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from keep_agent.errors import ConfigError
from memory.segments.store import SegmentStore, prompt_order
from memory.stages import Capabilities


@dataclass(frozen=True)
class LongShort:
    """Choice in the manner of KARMA (arXiv 2409.14908), whose memory is text in the prompt.

    The long-term memory is a map of the house: here all segments of places (receptacles). The short-term memory holds
    the things that changed last, at most ``capacity``; older ones are replaced. Of these the ``top_k`` most similar to
    the query enter the prompt, with the agent's own segment and its ``recent`` last actions in this task. If all this
    exceeds the budget, places are left out, the least similar first.

    KARMA also weighs how often a thing was used when it replaces one; here the oldest change goes first.
    """

    capacity: int = 40
    top_k: int = 16
    recent: int = 12
    capabilities: ClassVar[Capabilities] = Capabilities()

    def __post_init__(self) -> None:
        if not 0 <= self.top_k <= self.capacity or self.recent < 0:
            raise ConfigError(
                f"capacity={self.capacity}, top_k={self.top_k}, recent={self.recent}: use 0 or more, and a top_k up to "
                "the capacity"
            )

    def select(self, query: str, store: SegmentStore, budget: int) -> list[str]:
        scores = store.graph.scores(query)
        nearest = [scores.ids[row] for row in (-scores.values).argsort(kind="stable")]
        things = sorted(map(store.get, store.of("object")), key=lambda thing: (thing.last_changed, thing.created))
        short = {thing.id for thing in things[max(0, len(things) - self.capacity) :]}
        selection = {*store.of("agent"), *store.latest_actions(min(self.recent, budget // 4))}
        selection |= set([id for id in nearest if id in short][: min(self.top_k, max(0, budget - len(selection)))])
        places = [id for id in nearest if id in store.of("receptacle")]
        return prompt_order({*selection, *places[: max(0, budget - len(selection))]}, store)

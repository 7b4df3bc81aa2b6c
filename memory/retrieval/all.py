"""Retrieval of all segments."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from memory.segments.store import SegmentStore, prompt_order
from memory.stages import Capabilities


@dataclass(frozen=True)
class All:
    """Choice of every segment, regardless of the budget."""

    capabilities: ClassVar[Capabilities] = Capabilities()

    def select(self, query: str, store: SegmentStore, budget: int) -> list[str]:
        return prompt_order(store.ids, store)

"""Every segment enters the prompt."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from memory.segments.prompt_order import prompt_order
from memory.segments.store import SegmentStore
from memory.stages import Capabilities


@dataclass(frozen=True)
class All:
    """No choice: the budget is not looked at."""

    capabilities: ClassVar[Capabilities] = Capabilities()

    def select(self, query: str, store: SegmentStore, budget: int) -> list[str]:
        return prompt_order((segment.id for segment in store), store)

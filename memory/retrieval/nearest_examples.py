"""Nearest examples: LLM-Planner's choice of segments, other tasks and their plans instead of facts about the house."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from keep_agent.errors import ConfigError
from memory.segments.store import SegmentStore, prompt_order
from memory.stages import Capabilities


@dataclass(frozen=True)
class NearestExamples:
    """Choice in the manner of LLM-Planner (arXiv 2212.04088), whose prompt has examples and no memory of the house.

    Chosen are the ``top_k`` tasks most similar to the query (in-context examples, and the agent's own finished tasks),
    the agent's own segment, which says what it sees, and its actions in the current task.
    """

    top_k: int = 9
    capabilities: ClassVar[Capabilities] = Capabilities()

    def __post_init__(self) -> None:
        if self.top_k < 0:
            raise ConfigError(f"top_k={self.top_k} is not a number of examples: use 0 or more")

    def select(self, query: str, store: SegmentStore, budget: int) -> list[str]:
        scores = store.graph.scores(query)
        tasks = [id for row in (-scores.values).argsort(kind="stable") if (id := scores.ids[row]) in store.of("task")]
        agent = list(store.of("agent"))
        selection = [*agent, *tasks[: min(self.top_k, max(0, budget - len(agent)))]]
        return prompt_order({*selection, *store.latest_actions(max(0, budget - len(selection)))}, store)

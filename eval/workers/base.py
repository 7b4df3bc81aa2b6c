"""Interface of those who play the episodes of an evaluation."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from keep_agent.errors import KeepError
from keep_agent.rollout.frames import Frames
from keep_agent.rollout.results import EpisodeResult


class CrewError(KeepError, RuntimeError):
    """Processes that end again and again, or do not see the same data and weights."""


@dataclass(frozen=True)
class Setup:
    """What all who play one run have in common."""

    weights: str | None  # a hash of the model's
    episodes: int  # there are, in all shards
    where: str = field(compare=False)
    trained: str | None = None  # a hash of what was trained besides the model: a retention head


@dataclass(frozen=True)
class Played:
    """An episode as a run folder commits it."""

    result: EpisodeResult
    entries: Sequence[Mapping[str, Any]]  # of the trace; empty if none is kept
    frames: Frames | None


class Crew(Protocol):
    """Plays episodes of one config, each from a fresh start: who plays it, and what before, changes nothing."""

    setup: Setup

    def play(self, indices: Sequence[int]) -> Iterator[Played]:
        """Each episode once, in any order, as they are done.

        An error while resetting the world is raised, as `run_episode` says. Raises CrewError if processes do not live.
        """
        ...

    def close(self) -> None:
        """Let go of worlds, models and processes, whatever they are at."""
        ...

"""Interface of the workers that play the episodes of an evaluation."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from keep_agent.errors import KeepError
from keep_agent.rollout.frames import Frames
from keep_agent.rollout.results import EpisodeResult


class WorkerError(KeepError, RuntimeError):
    """Workers that die repeatedly, or whose data or weights differ."""


@dataclass(frozen=True)
class Setup:
    """Data and weights of one worker; all workers of a run must have the same."""

    weights: str | None  # hash of the model's weights
    episodes: int  # in all shards
    where: str = field(compare=False)
    trained: str | None = None  # hash of a trained retention head


@dataclass(frozen=True)
class EpisodeRecord:
    """One finished episode, as a run folder commits it."""

    result: EpisodeResult
    entries: Sequence[Mapping[str, Any]]  # of the trace; empty without eval.trace
    frames: Frames | None


class EpisodeRunner(Protocol):
    """Runner of the episodes of one config. Every episode starts fresh, so its result does not depend on the worker."""

    setup: Setup

    def play(self, indices: Sequence[int]) -> Iterator[EpisodeRecord]:
        """Yield each episode once, in the order in which they finish.

        :raises KeepError: the world cannot be reset
        :raises WorkerError: workers die repeatedly
        """
        ...

    def close(self) -> None:
        """Release worlds, models and processes, even in the middle of an episode."""
        ...

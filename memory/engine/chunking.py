"""Chunk schedule: rows per forward of a long prefill."""

from __future__ import annotations

from dataclasses import dataclass

from keep_agent.errors import ConfigError


@dataclass(frozen=True)
class ChunkSchedule:
    """How many rows a pass computes: fewer, the more it reads, so that its memory stays bounded.

    Semantic's adaptive schedule ("Agent Memory Below the Prompt", section 4): ``steps`` are (rows in the cache, rows
    of a chunk while there are fewer); new rows fewer than ``whole`` are computed at once.
    """

    whole: int = 2048
    steps: tuple[tuple[int, int], ...] = ((2048, 4096), (8192, 2048), (20480, 1024))
    rest: int = 512

    def __post_init__(self) -> None:
        if min(self.whole, self.rest, *(size for _, size in self.steps)) < 1:
            raise ConfigError(f"{self} has a chunk without rows: use sizes of 1 or more")

    def size(self, cached: int, left: int) -> int:
        """Rows of the next chunk of ``left`` rows behind ``cached``."""
        return min(left, next((size for below, size in self.steps if cached < below), self.rest))

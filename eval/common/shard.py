"""Shard: one machine's share of a run's episodes."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

from keep_agent.errors import ConfigError

PATTERN = re.compile(r"(\d+)/(\d+)", re.ASCII)


@dataclass(frozen=True)
class Shard:
    """Share ``number`` of ``of`` shares, counted from 0 and written ``number/of``.

    A shard takes every ``of``-th episode. Official data are sorted by task type, so contiguous shares would hold only
    short or only long tasks; annotations of one trial, which take equally long, go to different shards.
    """

    number: int
    of: int

    @classmethod
    def parse(cls, text: Any) -> Shard:
        """Parse the value of ``eval.shard``; null is the whole run. Raises ConfigError for other text."""
        if text is None:
            return cls(0, 1)
        match = PATTERN.fullmatch(str(text))
        number, of = map(int, match.groups()) if match else (0, 0)
        if number >= of:
            raise ConfigError(f"eval.shard={text} does not work; give i/n with i from 0 to n-1, such as 0/4, or null")
        return cls(number, of)

    def indices(self, episodes: int) -> range:
        """Return the indices of its episodes out of ``episodes``. Raises ConfigError for a shard without episodes."""
        if self.number >= max(episodes, 1):
            raise ConfigError(f"eval.shard={self} has none of the {episodes} episodes; use {episodes} shards at most")
        return range(self.number, episodes, self.of)

    def __str__(self) -> str:
        return f"{self.number}/{self.of}"

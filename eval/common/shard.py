"""A run's episodes, dealt out to machines that do not know of each other."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

from keep_agent.errors import ConfigError

WRITTEN = re.compile(r"(\d+)/(\d+)", re.ASCII)


@dataclass(frozen=True)
class Shard:
    """The ``number``-th of ``of`` shares, counted from 0. Written ``number/of``.

    Episodes are dealt out like cards. Official data lie by kind of task, so a share of neighbours would be one of short
    tasks, or of long ones; annotations of one trial, which cost the same, go to different shares.
    """

    number: int
    of: int

    @classmethod
    def parse(cls, text: Any) -> Shard:
        """The shard that a config names; null is the whole run. Raises ConfigError."""
        if text is None:
            return cls(0, 1)
        found = WRITTEN.fullmatch(str(text))
        number, of = map(int, found.groups()) if found else (0, 0)
        if number >= of:
            raise ConfigError(f"eval.shard={text} does not work; give i/n with i from 0 to n-1, such as 0/4, or null")
        return cls(number, of)

    def indices(self, episodes: int) -> range:
        """Its episodes, out of so many. Raises ConfigError for a shard that has none."""
        if self.number >= max(episodes, 1):
            raise ConfigError(f"eval.shard={self} has no episode of {episodes}; use {episodes} shards at most")
        return range(self.number, episodes, self.of)

    def __str__(self) -> str:
        return f"{self.number}/{self.of}"

"""Lazy sequence of episodes, and checks of the options common to all worlds' loaders."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeVar, overload

from keep_agent.errors import ConfigError

E = TypeVar("E")


class LazyEpisodes(Sequence[E]):
    """Sequence whose items ``make`` builds from ``entries`` on every access."""

    def __init__(self, make: Callable[[Any], E], entries: Sequence[Any]) -> None:
        self._make, self._entries = make, entries

    def __len__(self) -> int:
        return len(self._entries)

    @overload
    def __getitem__(self, index: int) -> E: ...

    @overload
    def __getitem__(self, index: slice) -> Sequence[E]: ...

    def __getitem__(self, index: int | slice) -> E | Sequence[E]:
        if isinstance(index, slice):
            return LazyEpisodes(self._make, self._entries[index])
        return self._make(self._entries[index])


def check_request(data: str | None, stream: int, limit: int | None, unit: str) -> None:
    """Raise ConfigError for an impossible stream or limit; ``unit`` names the embedded items, such as "house"."""
    if stream < 1:
        raise ConfigError(f"a stream of {stream} tasks; it needs at least 1")
    if limit is not None and limit < 1:
        raise ConfigError(f"a limit of {limit} episodes; it needs at least 1, or none")
    if data is not None and stream > 1:
        raise ConfigError(f"a stream of {stream} tasks needs the embedded {unit}s; leave env.data out, or use 1 task")

"""Episodes that are made when they are asked for, and what any world refuses to load."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeVar, overload

from keep_agent.errors import ConfigError

E = TypeVar("E")


class LazyEpisodes(Sequence[E]):
    """``make`` turns each of ``entries`` into an episode, anew whenever it is asked for."""

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


def check_request(data: str | None, stream: int, limit: int | None, what: str) -> None:
    """Raises ConfigError for a stream or limit that cannot be; ``what`` the embedded ones are called ("house")."""
    if stream < 1:
        raise ConfigError(f"a stream of {stream} tasks; it needs at least 1")
    if limit is not None and limit < 1:
        raise ConfigError(f"a limit of {limit} episodes; it needs at least 1, or none")
    if data is not None and stream > 1:
        raise ConfigError(f"a stream of {stream} tasks needs the embedded {what}s; leave env.data out, or use 1 task")

"""Where episodes come from: official ALFRED data, or the embedded houses when no data is named."""

from __future__ import annotations

from collections.abc import Sequence
from typing import overload

from envs.alfred.scene import Episode
from keep_agent.errors import ConfigError

HOUSES_PER_SEED = 10_000  # two seeds share no house unless more are asked for
LAST_SEED = 99_999


class HouseEpisodes(Sequence[Episode]):
    """Embedded houses of one split, generated when they are asked for."""

    def __init__(self, split: str, stream: int, houses: range) -> None:
        """``houses`` are indices within the split."""
        self._split, self._stream, self._houses = split, stream, houses

    def __len__(self) -> int:
        return len(self._houses)

    @overload
    def __getitem__(self, index: int) -> Episode: ...

    @overload
    def __getitem__(self, index: slice) -> Sequence[Episode]: ...

    def __getitem__(self, index: int | slice) -> Episode | Sequence[Episode]:
        from envs.alfred.generator import generate_episode, house_seed

        if isinstance(index, slice):
            return HouseEpisodes(self._split, self._stream, self._houses[index])
        return generate_episode(house_seed(self._split, self._houses[index]), self._stream)


def load_episodes(
    data: str | None, split: str, stream: int = 1, seed: int = 0, limit: int | None = None
) -> Sequence[Episode]:
    """Episodes of a split; ``data`` is a folder json_2.1.0, or None for the embedded houses.

    Embedded: ``limit`` houses (10,000 by default) with ``stream`` tasks each; another ``seed``, other houses of the
    same split. Official: one episode per annotation, ``limit`` drawn with ``seed``. Raises ConfigError for settings
    that cannot work, DataError for missing or damaged files.
    """
    if stream < 1:
        raise ConfigError(f"a stream of {stream} tasks; it needs at least 1")
    if limit is not None and limit < 1:
        raise ConfigError(f"a limit of {limit} episodes; it needs at least 1, or none")
    if data is None:
        return _houses(split, stream, seed, limit)
    if stream > 1:
        raise ConfigError(f"a stream of {stream} tasks needs the embedded houses; leave env.data out, or use 1 task")
    from envs.alfred.official import load_official

    return load_official(data, split, seed, limit)


def _houses(split: str, stream: int, seed: int, limit: int | None) -> HouseEpisodes:
    from envs.alfred.generator import SEEDS_PER_SPLIT, SPLITS

    if split not in SPLITS:
        raise ConfigError(f"unknown split {split!r} of the embedded houses; choose one of {', '.join(SPLITS)}")
    houses = range(seed * HOUSES_PER_SEED, seed * HOUSES_PER_SEED + (limit or HOUSES_PER_SEED))
    if not 0 <= houses.start < houses.stop <= SEEDS_PER_SPLIT:
        raise ConfigError(f"seed {seed} with {len(houses)} houses is beyond the split; use a seed of 0 to {LAST_SEED}")
    return HouseEpisodes(split, stream, houses)

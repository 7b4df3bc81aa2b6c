"""Where episodes come from: files in the official format, or the embedded apartments when no data is named."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, overload

from envs.wah.scene import Episode
from keep_agent.errors import ConfigError

APARTMENTS_PER_SEED = 10_000  # two seeds share no apartment unless more are asked for
LAST_SEED = 99_999


class ApartmentEpisodes(Sequence[Episode]):
    """Embedded apartments of one split, generated when they are asked for."""

    def __init__(self, split: str, stream: int, numbers: range, **tasks: Any) -> None:
        """``numbers`` are indices within the split; ``tasks`` say of `generate_episode` what is asked."""
        self._split, self._stream, self._numbers, self._tasks = split, stream, numbers, tasks

    def __len__(self) -> int:
        return len(self._numbers)

    @overload
    def __getitem__(self, index: int) -> Episode: ...

    @overload
    def __getitem__(self, index: slice) -> Sequence[Episode]: ...

    def __getitem__(self, index: int | slice) -> Episode | Sequence[Episode]:
        from envs.wah.apartments import apartment_seed
        from envs.wah.generator import generate_episode

        if isinstance(index, slice):
            return ApartmentEpisodes(self._split, self._stream, self._numbers[index], **self._tasks)
        seed = apartment_seed(self._split, self._numbers[index])
        return generate_episode(seed, self._stream, **self._tasks)


def load_episodes(
    data: str | None, split: str, stream: int = 1, seed: int = 0, limit: int | None = None, **tasks: Any
) -> Sequence[Episode]:
    """Episodes of a split; ``data`` is a file or folder of tasks, or None for the embedded apartments.

    Embedded: ``limit`` apartments (10,000 by default) with ``stream`` tasks each, of which ``tasks`` say more (see
    `generate_episode`); another ``seed``, other apartments of the same split. Files: one episode per instruction,
    ``limit`` drawn with ``seed``. Raises ConfigError for settings that cannot work, DataError for missing or damaged
    files.
    """
    if stream < 1:
        raise ConfigError(f"a stream of {stream} tasks; it needs at least 1")
    if limit is not None and limit < 1:
        raise ConfigError(f"a limit of {limit} episodes; it needs at least 1, or none")
    if data is None:
        return ApartmentEpisodes(split, stream, _numbers(split, seed, limit), **tasks)
    if stream > 1:
        raise ConfigError(
            f"a stream of {stream} tasks needs the embedded apartments; leave env.data out, or use 1 task"
        )
    from envs.wah.official import load_official

    return load_official(data, split, seed, limit)


def _numbers(split: str, seed: int, limit: int | None) -> range:
    from envs.wah.apartments import SEEDS_PER_SPLIT, SPLITS

    if split not in SPLITS:
        raise ConfigError(f"unknown split {split!r} of the embedded apartments; choose one of {', '.join(SPLITS)}")
    numbers = range(seed * APARTMENTS_PER_SEED, seed * APARTMENTS_PER_SEED + (limit or APARTMENTS_PER_SEED))
    if not 0 <= numbers.start < numbers.stop <= SEEDS_PER_SPLIT:
        raise ConfigError(f"seed {seed} with {len(numbers)} apartments is beyond the split; use 0 to {LAST_SEED}")
    return numbers

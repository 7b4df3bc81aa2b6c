"""Splits of generated houses by seed and hash, lazy sequences of episodes, and checks of a loader's arguments.

Each split has its own range of seeds and its own share of the hashes of houses. A generator keeps only houses whose
hash belongs to the split of their seed, so no house is in two splits.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from random import Random
from typing import Any, TypeVar, overload

from keep_agent.errors import ConfigError, DataError, did_you_mean

E = TypeVar("E")

SPLITS = ("train", "valid", "test")
SEEDS_PER_SPLIT = 10**9
EPISODES_PER_SEED = 10_000  # a higher limit also takes the episodes of the next seeds
LAST_SEED = 99_999
_SPLIT_OF_REMAINDER = ("train", "train", "valid", "test")  # index: a hash modulo 4


def check_split(split: str, unit: str) -> None:
    """Raise ConfigError for an unknown split; ``unit`` is the message's word for one item, such as "house"."""
    if split not in SPLITS:
        known, hint = ", ".join(SPLITS), did_you_mean(split, SPLITS, cutoff=0.7)  # 'valid' is no hint for 'valid_seen'
        raise ConfigError(
            f"unknown split {split!r} of the embedded {unit}s; choose one of {known}, or set env.data to files "
            f"that have this split{hint}"
        )


def seed_of(split: str, index: int, unit: str) -> int:
    """Return the seed of item number ``index`` of a split; splits share no seeds."""
    check_split(split, unit)
    if not 0 <= index < SEEDS_PER_SPLIT:
        raise DataError(f"{unit} {index} is outside 0..{SEEDS_PER_SPLIT - 1}")
    return SPLITS.index(split) * SEEDS_PER_SPLIT + index


def split_of(seed: int) -> str:
    """Return the split that a seed belongs to."""
    return SPLITS[seed // SEEDS_PER_SPLIT % len(SPLITS)]


def split_of_hash(digest: str) -> str:
    """Return the split that a hexadecimal hash belongs to."""
    return _SPLIT_OF_REMAINDER[int(digest[:8], 16) % 4]


def episode_indices(split: str, seed: int, limit: int | None, unit: str) -> range:
    """Return ``limit`` (default `EPISODES_PER_SEED`) indices in a split, from ``seed * EPISODES_PER_SEED`` on."""
    check_split(split, unit)
    block = range(seed * EPISODES_PER_SEED, seed * EPISODES_PER_SEED + (limit or EPISODES_PER_SEED))
    if not 0 <= block.start < block.stop <= SEEDS_PER_SPLIT:
        raise ConfigError(f"seed {seed} with {len(block)} {unit}s is beyond the split; use seed 0 to {LAST_SEED}")
    return block


class LazyEpisodes(Sequence[E]):
    """Lazy sequence: ``make`` builds an item from its entry on every access."""

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
    """Check a loader's arguments; ``stream`` is the number of tasks per episode.

    :raises ConfigError: ``stream`` or ``limit`` is below 1, or ``data`` is set and ``stream`` is above 1
    """
    if stream < 1:
        raise ConfigError(f"a stream of {stream} tasks is too short; use at least 1")
    if limit is not None and limit < 1:
        raise ConfigError(f"a limit of {limit} episodes; use at least 1, or set no limit")
    if data is not None and stream > 1:
        raise ConfigError(f"a stream of {stream} tasks needs the embedded {unit}s; leave env.data out, or use 1 task")


def draw_entries(entries: Sequence[E], limit: int | None, seed: int) -> Sequence[E]:
    """Draw ``limit`` entries with ``seed``, and return them in their original order. Without a limit, return all."""
    if limit is None or limit >= len(entries):
        return entries
    return [entries[index] for index in sorted(Random(seed).sample(range(len(entries)), limit))]


def finite_number(value: Any) -> float:
    """Return a number from a JSON file as a float. Raises ValueError for booleans, texts, NaN and infinities."""
    if type(value) not in (int, float) or not abs(value) < float("inf"):
        raise ValueError(f"{value!r:.40} is not a finite number")
    return float(value)

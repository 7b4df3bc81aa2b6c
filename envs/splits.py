"""Splits of generated houses: each split has its own range of seeds and its own share of house hashes.

A generator that keeps only houses whose hash belongs to the split of their seed has no house in two splits.
"""

from __future__ import annotations

from keep_agent.errors import ConfigError, DataError, did_you_mean

SPLITS = ("train", "valid", "test")
SEEDS_PER_SPLIT = 10**9
EPISODES_PER_SEED = 10_000  # of a user's seed: two user seeds share no house unless a larger limit is set
LAST_SEED = 99_999
_HASH_CLASSES = {"train": (0, 1), "valid": (2,), "test": (3,)}  # remainders of a hash modulo 4


def check_split(split: str, unit: str) -> None:
    """Raise ConfigError for an unknown split; ``unit`` names the split items, such as "house"."""
    if split not in SPLITS:
        known, hint = ", ".join(SPLITS), did_you_mean(split, SPLITS, cutoff=0.7)  # excludes 'valid' for valid_seen
        raise ConfigError(
            f"unknown split {split!r} of the embedded {unit}s; choose one of {known}, or name files that have it by "
            f"env.data{hint}"
        )


def seed_of(split: str, index: int, unit: str) -> int:
    """Return the seed of a split's unit number ``index``; splits share no seeds."""
    check_split(split, unit)
    if not 0 <= index < SEEDS_PER_SPLIT:
        raise DataError(f"{unit} {index} is outside 0..{SEEDS_PER_SPLIT - 1}")
    return SPLITS.index(split) * SEEDS_PER_SPLIT + index


def split_of(seed: int) -> str:
    """Return the split that a seed belongs to."""
    return SPLITS[seed // SEEDS_PER_SPLIT % len(SPLITS)]


def split_of_hash(digest: str) -> str:
    """Return the split that a hexadecimal hash belongs to."""
    remainder = int(digest[:8], 16) % 4
    return next(split for split, classes in _HASH_CLASSES.items() if remainder in classes)


def indices(split: str, seed: int, limit: int | None, unit: str) -> range:
    """Return the indices within a split of a user's seed, `EPISODES_PER_SEED` by default. Raises ConfigError."""
    check_split(split, unit)
    block = range(seed * EPISODES_PER_SEED, seed * EPISODES_PER_SEED + (limit or EPISODES_PER_SEED))
    if not 0 <= block.start < block.stop <= SEEDS_PER_SPLIT:
        raise ConfigError(f"seed {seed} with {len(block)} {unit}s is beyond the split; use 0 to {LAST_SEED}")
    return block

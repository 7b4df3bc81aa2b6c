"""Episodes of Watch-And-Help: from files in the official format, or from the embedded generator."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

from envs.lazy import LazyEpisodes, check_request
from envs.splits import indices
from envs.wah.scene import Episode


def load_episodes(
    data: str | None, split: str, stream: int = 1, seed: int = 0, limit: int | None = None, **tasks: Any
) -> Sequence[Episode]:
    """Load the episodes of a split; ``data`` is a file or folder of tasks, or None for the embedded apartments.

    Embedded: ``limit`` apartments (10,000 by default) with ``stream`` tasks each; ``tasks`` are further options of
    `generate_episode`, and each ``seed`` has its own apartments of the split. Files: one episode per instruction,
    ``limit`` of them drawn with ``seed``. Raises ConfigError for settings that cannot work, DataError for missing or
    damaged files.
    """
    check_request(data, stream, limit, "apartment")
    if data is None:
        return LazyEpisodes(partial(_apartment, split, stream, tasks), indices(split, seed, limit, "apartment"))
    from envs.wah.data.official import load_official  # imported here, as below: only the source in use is loaded

    return load_official(data, split, seed, limit)


def _apartment(split: str, stream: int, tasks: Mapping[str, Any], index: int) -> Episode:
    from envs.wah.apartments.episodes import generate_episode
    from envs.wah.apartments.generator import apartment_seed

    return generate_episode(apartment_seed(split, index), stream, **tasks)

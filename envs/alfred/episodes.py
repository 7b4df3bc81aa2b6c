"""Episode loader of ALFRED: official data, or the embedded houses where no data folder is set."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from envs.alfred.scene import Episode
from envs.lazy import LazyEpisodes, check_request
from envs.splits import indices


def load_episodes(
    data: str | None, split: str, stream: int = 1, seed: int = 0, limit: int | None = None
) -> Sequence[Episode]:
    """Return the episodes of a split; ``data`` is a folder json_2.1.0, or None for the embedded houses.

    Embedded: ``limit`` houses (10,000 by default) with ``stream`` tasks each; a different ``seed`` gives different
    houses of the same split. Official: one episode per annotation, ``limit`` of them drawn with ``seed``. Raises
    ConfigError for settings that cannot work, DataError for missing or damaged files.
    """
    check_request(data, stream, limit, "house")
    if data is None:
        return LazyEpisodes(partial(_house, split, stream), indices(split, seed, limit, "house"))
    from envs.alfred.data.official import load_official  # lazy, as below: each source loads only its own modules

    return load_official(data, split, seed, limit)


def _house(split: str, stream: int, index: int) -> Episode:
    from envs.alfred.houses.generator import generate_episode, house_seed

    return generate_episode(house_seed(split, index), stream)

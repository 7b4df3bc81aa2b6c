"""What ALFWorld's tests share: its engine, or a skip that says how to get it, and a kitchen to play in."""

from __future__ import annotations

import pytest

from envs.alfworld.engine import Engines
from envs.alfworld.episodes import load_episodes
from envs.alfworld.scene import Episode
from keep_agent.errors import ConfigError
from tests.envs.alfworld.kitchen import write_kitchen


@pytest.fixture(scope="session")
def engines() -> Engines:
    """One engine for all tests: each that is made stays in the process."""
    engines = Engines()
    try:
        engines.give_back(engines.take())
    except ConfigError as error:
        pytest.skip(str(error))
    return engines


@pytest.fixture(scope="session")
def kitchen(engines: Engines, tmp_path_factory: pytest.TempPathFactory) -> Episode:
    root = tmp_path_factory.mktemp("alfworld")
    write_kitchen(root)
    return load_episodes(str(root), "valid_seen")[0]

"""Fixtures of ALFWorld's tests: the engine (or a skip that names the package) and a kitchen."""

from __future__ import annotations

import pytest

from envs.alfworld.engine import EnginePool
from envs.alfworld.scene import Episode
from envs.alfworld.spec import load_episodes
from keep_agent.errors import ConfigError
from tests.envs.alfworld.kitchen import write_kitchen


@pytest.fixture(scope="session")
def engines() -> EnginePool:
    """Return one pool of engines for all tests, because a process never unloads an engine."""
    engines = EnginePool()
    try:
        engines.release(engines.acquire())
    except ConfigError as error:
        pytest.skip(str(error))
    return engines


@pytest.fixture(scope="session")
def kitchen(engines: EnginePool, tmp_path_factory: pytest.TempPathFactory) -> Episode:
    root = tmp_path_factory.mktemp("alfworld")
    write_kitchen(root)
    return load_episodes(str(root), "valid_seen")[0]

"""Fixtures: rooms, and separate home and temporary folders, because AI2-THOR's client writes into both."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator

import pytest
from platformdirs import user_cache_path

from envs.alfred.scene import Scene
from envs.alfred.spec import load_episodes
from envs.alfred.thor import launch
from tests.envs.alfred.rooms import kitchen
from tests.envs.alfred.thor.in_process import Sim, beside
from tests.waiting import PATIENCE


@pytest.fixture(scope="module", autouse=True)
def _own_folders(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(user_cache_path()))  # reuse the cached survey of the data
        patch.setenv("HOME", str(tmp_path_factory.mktemp("home")))
        patch.setattr(tempfile, "tempdir", str(tmp_path_factory.mktemp("tmp")))
        patch.setattr(launch, "KILL_TIMEOUT", PATIENCE)
        yield


@pytest.fixture
def sim() -> Sim:
    return Sim(beside(kitchen()))


@pytest.fixture(scope="module")
def houses() -> list[Scene]:
    return [episode.scene for episode in load_episodes(None, "valid")[:8]]

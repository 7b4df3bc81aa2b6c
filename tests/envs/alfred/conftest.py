"""Fixture of ALFRED's tests: the small kitchen as a world."""

from __future__ import annotations

import pytest

from envs.alfred.world import World
from tests.envs.alfred.rooms import kitchen


@pytest.fixture
def world() -> World:
    return World(kitchen())

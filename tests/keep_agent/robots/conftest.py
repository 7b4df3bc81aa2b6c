"""A rosbridge that is played, and a connection to it."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from keep_agent.robots.rosbridge.connection import Bridge
from tests.keep_agent.robots.bridge import WAIT, StandIn, stand_in


@pytest.fixture
def robot() -> Iterator[StandIn]:
    with stand_in() as bridge:
        yield bridge
        assert not bridge.complaints


@pytest.fixture
def bridge(robot: StandIn) -> Iterator[Bridge]:
    with Bridge("127.0.0.1", robot.port, WAIT) as connection:
        yield connection

"""Fixtures: a simulated rosbridge, a connection to it, and servers over that connection."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import pytest

from keep_agent.robots.rosbridge.connection import Bridge
from keep_agent.robots.rosbridge_server import RosbridgeServer
from tests.keep_agent.robots.bridge import WAIT, StandIn, stand_in
from tests.keep_agent.robots.robots import ScriptPlanner, ScriptRobot, scripted


@pytest.fixture
def robot() -> Iterator[StandIn]:
    with stand_in() as bridge:
        yield bridge
        assert not bridge.complaints


@pytest.fixture
def bridge(robot: StandIn) -> Iterator[Bridge]:
    with Bridge("127.0.0.1", robot.port, WAIT) as connection:
        yield connection


@pytest.fixture
def serve(bridge: Bridge) -> Iterator[Callable[..., tuple[RosbridgeServer, ScriptPlanner, ScriptRobot]]]:
    servers: list[RosbridgeServer] = []

    def start(*values: Any, **options: Any) -> tuple[RosbridgeServer, ScriptPlanner, ScriptRobot]:
        server, planner, robot = scripted(*values, kind=partial(RosbridgeServer, bridge), **options)
        servers.append(server)
        return server, planner, robot

    yield start
    for server in servers:
        server.close()

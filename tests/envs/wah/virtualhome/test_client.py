"""Client of the VirtualHome simulator: requests, answers and addresses."""

from __future__ import annotations

import json
import socket
from unittest.mock import patch

import pytest

from envs.wah.virtualhome.client import Simulator
from envs.wah.virtualhome.errors import SimulatorAnswer, SimulatorGone, SimulatorRefusal
from envs.wah.virtualhome.transport import HttpTransport
from keep_agent.errors import ConfigError
from tests.envs.wah.fake_simulator import FakeSimulator
from tests.envs.wah.virtualhome.toy import LINE, NOTHING_LEFT_OPEN, ToyHome, connected, http

pytestmark = NOTHING_LEFT_OPEN


def test_an_episode(server: FakeSimulator, home: ToyHome) -> None:
    added = {"id": 1001, "class_name": "apple"}
    with connected(http(server)) as simulator:
        simulator.check()
        simulator.reset(1)
        graph = simulator.environment_graph()
        assert graph == home.graph() and graph["nodes"][0]["id"] == 12
        simulator.expand_scene({"nodes": [*graph["nodes"], added], "edges": []})
        assert simulator.camera_count() == server.cameras
        simulator.add_character(room="kitchen")
        assert simulator.render_script([LINE])
        assert simulator.environment_graph()["nodes"][1] == added
    assert (home.room, home.lines) == ("kitchen", [LINE])
    assert len({request["id"] for request in server.requests}) == len(server.requests) == 8


def test_a_script_that_fails_is_a_result(simulator: Simulator) -> None:
    assert not simulator.render_script([LINE]), "no character"
    simulator.add_character()
    assert not simulator.render_script(["<char0> [walk] <unicorn> (1)"])


def test_requests(server: FakeSimulator, simulator: Simulator) -> None:
    simulator.reset()
    simulator.expand_scene({"nodes": [], "edges": []})
    simulator.add_character()
    simulator.render_script([LINE, LINE])
    reset, expand, add, render = server.requests
    assert reset["intParams"] == [] and "stringParams" not in reset
    config, graph = map(json.loads, expand["stringParams"])
    assert (config["transfer_transform"], config["random_seed"], graph) == (True, -1, {"nodes": [], "edges": []})
    character = json.loads(add["stringParams"][0])
    assert character == {
        "character_resource": "Chars/Female1", "mode": "random", "character_position": {"x": 0, "y": 0, "z": 0},
        "initial_room": "",
    }  # fmt: skip
    config = json.loads(render["stringParams"][0])
    assert (config["find_solution"], config["skip_animation"], config["recording"]) == (False, True, False)
    assert render["stringParams"][1:] == [LINE, LINE]


def test_refusals_are_errors_with_the_simulators_message(server: FakeSimulator, simulator: Simulator) -> None:
    with pytest.raises(SimulatorRefusal, match="reset at .*Invalid scene index"):
        simulator.reset(7)
    with pytest.raises(SimulatorAnswer, match="Error processing input graph: 'nodes'"):
        simulator.expand_scene({})
    with pytest.raises(SimulatorRefusal, match="add_character") as caught:
        simulator.add_character(room="bathroom")
    assert not caught.value.maybe_executed
    with pytest.raises(ConfigError, match="'garage'.*kitchen"):
        simulator.add_character(room="garage")
    assert len(server.requests) == 3


@pytest.mark.parametrize("url", ["", "127.0.0.1:8080", "https://x:1", "http://", "http://x:99999", "http://a..b:1"])
def test_invalid_addresses_are_errors(url: str) -> None:
    with pytest.raises(ConfigError, match="use http://HOST:PORT"):
        HttpTransport(url)


def test_addresses(server: FakeSimulator) -> None:
    assert HttpTransport("http://[::1]:7/é").address == ("::1", 7, "/%C3%A9")
    assert HttpTransport("http://[::1]:7").address.header == "[::1]:7"
    assert HttpTransport("http://box").address == ("box", 8080, "/")
    Simulator(HttpTransport(f"http://localhost:{server.port}")).check()  # also where localhost means ::1 first


@pytest.mark.parametrize("seconds", [0, -1, float("nan"), float("inf"), 1e9])
def test_impossible_times_are_errors(seconds: float) -> None:
    with pytest.raises(ConfigError, match="timeout="):
        HttpTransport(timeout=seconds)
    with pytest.raises(ConfigError, match="deadline="):
        HttpTransport(deadline=seconds)


def test_an_unknown_host_is_an_error(short_pauses: None) -> None:
    error = socket.gaierror(-2, "Name or service not known")
    with patch("socket.getaddrinfo", side_effect=error), pytest.raises(SimulatorGone, match="no connection"):
        Simulator(HttpTransport("http://nowhere.invalid:1", 1, 3)).check()

"""Client of the VirtualHome simulator: requests, answers and addresses."""

from __future__ import annotations

import json
import socket
from typing import Any

import pytest

from envs.wah.virtualhome.client import Simulator
from envs.wah.virtualhome.errors import (
    SimulatorAnswer,
    SimulatorGone,
    SimulatorRefusal,
)
from envs.wah.virtualhome.transport import HttpTransport
from keep_agent.errors import ConfigError
from tests.envs.wah.fake_simulator import PIXEL, FakeSimulator
from tests.envs.wah.virtualhome.toy import LINE, NOTHING_LEFT_OPEN, ToyHome, http

pytestmark = NOTHING_LEFT_OPEN


def test_an_episode(server: FakeSimulator, home: ToyHome) -> None:
    added = {"id": 1001, "class_name": "apple"}
    with Simulator(http(server)) as simulator:
        simulator.check()
        simulator.reset(1)
        graph = simulator.environment_graph()
        assert graph == home.graph() and graph["nodes"][0]["id"] == 12
        assert simulator.expand_scene({"nodes": [*graph["nodes"], added], "edges": []}) == {}
        assert simulator.camera_count() == server.cameras
        simulator.add_character("Chars/Female1", room="kitchen")
        assert simulator.render_script([LINE]) == (True, "")
        assert simulator.environment_graph()["nodes"][1] == added
    assert (home.room, home.lines) == ("kitchen", [LINE])
    assert len({request["id"] for request in server.requests}) == len(server.requests) == 8


def test_a_script_that_fails_is_a_result(server: FakeSimulator) -> None:
    simulator = Simulator(http(server))
    assert simulator.render_script([LINE]) == (False, "No character added yet!")
    simulator.add_character()
    assert simulator.render_script(["<char0> [walk] <unicorn> (1)"]) == (
        False,
        "ScriptExcutor 0: there is no unicorn\n",
    )


def test_requests(server: FakeSimulator) -> None:
    simulator = Simulator(http(server))
    simulator.reset()
    simulator.expand_scene({"nodes": [], "edges": []}, randomize=True, seed=3, prefabs={"apple": ("Apple1",)})
    simulator.add_character(position=(1.0, 0.5, -2.0))
    simulator.render_script([LINE, LINE], recording=True, camera_mode=("FIRST_PERSON",))
    reset, expand, add, render = server.requests
    assert reset["intParams"] == [] and "stringParams" not in reset
    config, graph, prefabs = map(json.loads, expand["stringParams"])
    assert (config["randomize"], config["randomize_execution"], config["random_seed"]) == (True, True, 3)
    assert (graph, prefabs) == ({"nodes": [], "edges": []}, {"apple": ["Apple1"]})
    character = json.loads(add["stringParams"][0])
    assert character["mode"] == "fix_position" and character["character_position"] == {"x": 1.0, "y": 0.5, "z": -2.0}
    assert (character["character_resource"], character["initial_room"]) == ("Chars/Female1", "")
    config = json.loads(render["stringParams"][0])
    assert (config["find_solution"], config["skip_animation"], config["recording"]) == (False, True, True)
    assert config["camera_mode"] == ["FIRST_PERSON"] and render["stringParams"][1:] == [LINE, LINE]


def test_images(server: FakeSimulator) -> None:
    simulator = Simulator(http(server))
    assert simulator.camera_image([0, 41], mode="depth", width=32, height=16) == [PIXEL, PIXEL]
    assert json.loads(server.requests[0]["stringParams"][0]) == {"mode": "depth", "image_width": 32, "image_height": 16}
    with pytest.raises(SimulatorAnswer, match="Invalid parameters"):
        simulator.camera_image([42])
    with pytest.raises(SimulatorAnswer, match="mode does not exist"):
        simulator.camera_image([0], mode="dreams")


def test_refusals_are_errors_with_the_simulators_message(server: FakeSimulator, home: ToyHome) -> None:
    simulator = Simulator(http(server))
    with pytest.raises(SimulatorRefusal, match="reset at .*Invalid scene index"):
        simulator.reset(7)
    with pytest.raises(SimulatorAnswer, match="Error processing input graph: 'nodes'"):
        simulator.expand_scene({})
    with pytest.raises(SimulatorRefusal, match="add_character") as caught:
        simulator.add_character(room="bathroom")
    assert not caught.value.uncertain
    with pytest.raises(ConfigError, match="'garage'.*kitchen"):
        simulator.add_character(room="garage")
    assert len(server.requests) == 3


def test_the_fake_simulator_speaks_the_protocol(server: FakeSimulator) -> None:
    def post(body: bytes) -> tuple[int, dict[str, Any]]:
        from http.client import HTTPConnection

        connection = HTTPConnection("127.0.0.1", server.port)
        connection.request("POST", "/", body)
        reply = connection.getresponse()
        answer = reply.status, json.loads(reply.read())
        connection.close()
        return answer

    failure = {"success": False, "value": 0, "message_list": None}
    assert post(b"") == (400, failure | {"id": "", "message": "Request body is null or empty"})
    status, fields = post(b"{")
    assert status == 400 and fields["message"].startswith("Invalid request format (")
    assert post(b"[]")[0] == 400
    answer = post(b'{"id": "1", "action": "dance"}')
    assert answer == (200, failure | {"id": "1", "message": "Unknown action dance"})
    fields = post(b'{"id": "1", "action": "render_script", "stringParams": []}')[1]
    assert fields["message"] == "No character added yet!"
    status, fields = post(b'{"id": "2", "action": "camera_image", "intParams": [0]}')
    assert status == 500 and fields["message"].startswith("Unknown error (")


@pytest.mark.parametrize("url", ["", "127.0.0.1:8080", "https://x:1", "http://", "http://x:99999", "http://a..b:1"])
def test_invalid_addresses_are_errors(url: str) -> None:
    with pytest.raises(ConfigError, match="use http://HOST:PORT"):
        HttpTransport(url)


def test_addresses(server: FakeSimulator) -> None:
    assert HttpTransport("http://[::1]:7/é").address == ("::1", 7, "/%C3%A9")
    assert HttpTransport("http://[::1]:7").address.header == "[::1]:7"
    assert HttpTransport("http://box").address == ("box", 8080, "/")
    Simulator(HttpTransport(f"http://localhost:{server.port}")).check()  # also where that means ::1 first


@pytest.mark.parametrize("seconds", [0, -1, float("nan"), float("inf"), 1e9])
def test_impossible_times_are_errors(seconds: float) -> None:
    with pytest.raises(ConfigError, match="timeout="):
        HttpTransport(timeout=seconds)
    with pytest.raises(ConfigError, match="deadline="):
        HttpTransport(deadline=seconds)


def test_an_unknown_host_is_an_error(short_pauses: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("socket.getaddrinfo", unknown)
    with pytest.raises(SimulatorGone, match="no connection"):
        Simulator(HttpTransport("http://nowhere.invalid:1", 1, 3)).check()


def unknown(*args: Any, **kwargs: Any) -> None:
    raise socket.gaierror(-2, "Name or service not known")

"""The client of the VirtualHome simulator, against a stand-in that answers well, badly or not at all."""

from __future__ import annotations

import gc
import gzip
import json
import pickle
import socket
import threading
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from random import Random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from envs.wah.virtualhome import answers, transport
from envs.wah.virtualhome.client import Simulator
from envs.wah.virtualhome.difference import first_difference
from envs.wah.virtualhome.errors import (
    ReplayDeparted,
    SimulatorAnswer,
    SimulatorBusy,
    SimulatorError,
    SimulatorGone,
    SimulatorRefusal,
    SimulatorTimeout,
)
from envs.wah.virtualhome.recording import Recording, Replay
from envs.wah.virtualhome.transport import IDEMPOTENT, TRIES, HttpTransport
from keep_agent.errors import CapacityError, ConfigError, DataError, KeepError
from tests.envs.wah.standin import FAULTS, PIXEL, StandIn

pytestmark = [
    pytest.mark.filterwarnings("error::ResourceWarning"),
    pytest.mark.filterwarnings("error::pytest.PytestUnraisableExceptionWarning"),
    pytest.mark.filterwarnings("error::pytest.PytestUnhandledThreadExceptionWarning"),
]

LIMIT = 1 << 20  # bytes
LINE = "<char0> [walk] <fridge> (11)"
Call = Callable[[Simulator], Any]


class ToyHome:
    """Two scenes with a fridge; a script's lines are remembered, and run unless they name a unicorn."""

    def __init__(self) -> None:
        self.scene = 0
        self.lines: list[str] = []
        self.extra: list[dict[str, Any]] = []
        self.room: str | None = None
        self.gate = threading.Event()  # closed: looking at the home takes as long as that
        self.gate.set()

    def reset(self, scene: int | None) -> None:
        self.scene = (0, 1)[scene] if scene is not None else self.scene
        self.lines, self.extra, self.room = [], [], None

    def graph(self) -> dict[str, Any]:
        self.gate.wait(10)
        fridge = {"id": 11 + self.scene, "class_name": "fridge", "states": ["CLOSED"], "properties": ["CAN_OPEN"]}
        return {"nodes": [fridge, *self.extra], "edges": []}

    def expand(self, graph: dict[str, Any]) -> None:
        self.extra = [node for node in graph["nodes"] if node["id"] > 1000]

    def add_character(self, room: str | None) -> bool:
        self.room = room
        return room != "bathroom"

    def run(self, lines: list[str]) -> tuple[bool, str]:
        self.lines += lines
        return (False, "there is no unicorn") if any("unicorn" in line for line in lines) else (True, "")


CALLS: dict[str, Call] = {
    "idle": lambda simulator: simulator.check(),
    "reset": lambda simulator: simulator.reset(1),
    "environment_graph": lambda simulator: simulator.environment_graph(),
    "camera_count": lambda simulator: simulator.camera_count(),
    "camera_image": lambda simulator: simulator.camera_image([0]),
    "expand_scene": lambda simulator: simulator.expand_scene({"nodes": [], "edges": []}),
    "add_character": lambda simulator: simulator.add_character(room="kitchen"),
    "render_script": lambda simulator: simulator.render_script([LINE]),
}
CHANGING = sorted(CALLS.keys() - IDEMPOTENT)

EXPECTED: dict[str, type[SimulatorError]] = dict.fromkeys(FAULTS, SimulatorAnswer) | {
    "busy": SimulatorBusy,
    "timeout": SimulatorTimeout,
    "hang": SimulatorTimeout,
    "drip": SimulatorTimeout,
    "close": SimulatorGone,
    "half": SimulatorGone,
}
SLOW = ("busy", "hang", "drip")  # end with the deadline
OWN = {  # of some calls only
    "no_value": ("camera_count", "camera_image", "environment_graph"),
    "bad_graph": ("environment_graph",),
    "no_graph": ("environment_graph",),
    "bad_image": ("camera_image",),
}
PASSING = ("timeout", "error", "close", "half")  # tried again where that does no harm
QUICK_CASES = [
    (fault, call) for fault in FAULTS if fault not in (*SLOW, "raw") for call in OWN.get(fault, tuple(CALLS))
]
SLOW_CASES = [(fault, call) for fault in SLOW for call in ("environment_graph", "reset", *CHANGING)]


@pytest.fixture
def home() -> ToyHome:
    return ToyHome()


@pytest.fixture
def standin(home: ToyHome) -> Iterator[StandIn]:
    """Afterwards none of its threads is left."""
    threads = set(threading.enumerate())
    with StandIn(home) as standin:
        yield standin
        home.gate.set()
    assert set(threading.enumerate()) == threads


@pytest.fixture
def pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    """Short ones."""
    monkeypatch.setattr(transport, "FIRST_PAUSE", 0.005)


def http(standin: StandIn, timeout: float = 3.0, deadline: float = 6.0) -> HttpTransport:
    return HttpTransport(standin.url, timeout, deadline, LIMIT)


# what the methods say


def test_an_episode(standin: StandIn, home: ToyHome) -> None:
    added = {"id": 1001, "class_name": "apple"}
    with Simulator(http(standin)) as simulator:
        simulator.check()
        simulator.reset(1)
        graph = simulator.environment_graph()
        assert graph == home.graph() and graph["nodes"][0]["id"] == 12
        assert simulator.expand_scene({"nodes": [*graph["nodes"], added], "edges": []}) == {}
        assert simulator.camera_count() == standin.cameras
        simulator.add_character("Chars/Female1", room="kitchen")
        assert simulator.render_script([LINE]) == (True, "")
        assert simulator.environment_graph()["nodes"][1] == added
    assert (home.room, home.lines) == ("kitchen", [LINE])
    assert len({request["id"] for request in standin.seen}) == len(standin.seen) == 8


def test_a_script_that_fails_is_a_result(standin: StandIn) -> None:
    simulator = Simulator(http(standin))
    assert simulator.render_script([LINE]) == (False, "No character added yet!")
    simulator.add_character()
    assert simulator.render_script(["<char0> [walk] <unicorn> (1)"]) == (
        False,
        "ScriptExcutor 0: there is no unicorn\n",
    )


def test_what_is_sent(standin: StandIn) -> None:
    simulator = Simulator(http(standin))
    simulator.reset()
    simulator.expand_scene({"nodes": [], "edges": []}, randomize=True, seed=3, prefabs={"apple": ("Apple1",)})
    simulator.add_character(position=(1.0, 0.5, -2.0))
    simulator.render_script([LINE, LINE], recording=True, camera_mode=("FIRST_PERSON",))
    reset, expand, add, render = standin.seen
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


def test_images(standin: StandIn) -> None:
    simulator = Simulator(http(standin))
    assert simulator.camera_image([0, 41], mode="depth", width=32, height=16) == [PIXEL, PIXEL]
    assert json.loads(standin.seen[0]["stringParams"][0]) == {"mode": "depth", "image_width": 32, "image_height": 16}
    with pytest.raises(SimulatorAnswer, match="Invalid parameters"):
        simulator.camera_image([42])
    with pytest.raises(SimulatorAnswer, match="mode does not exist"):
        simulator.camera_image([0], mode="dreams")


def test_refusals_are_errors_with_the_simulators_words(standin: StandIn, home: ToyHome) -> None:
    simulator = Simulator(http(standin))
    with pytest.raises(SimulatorRefusal, match="reset at .*Invalid scene index"):
        simulator.reset(7)
    with pytest.raises(SimulatorAnswer, match="Error processing input graph: 'nodes'"):
        simulator.expand_scene({})
    with pytest.raises(SimulatorRefusal, match="add_character") as caught:
        simulator.add_character(room="bathroom")
    assert not caught.value.uncertain
    with pytest.raises(ConfigError, match="'garage'.*kitchen"):
        simulator.add_character(room="garage")
    assert len(standin.seen) == 3


def test_the_stand_in_speaks_the_protocol(standin: StandIn) -> None:
    def post(body: bytes) -> tuple[int, dict[str, Any]]:
        from http.client import HTTPConnection

        connection = HTTPConnection("127.0.0.1", standin.port, timeout=3)
        connection.request("POST", "/", body)
        reply = connection.getresponse()
        found = reply.status, json.loads(reply.read())
        connection.close()
        return found

    nothing = {"success": False, "value": 0, "message_list": None}
    assert post(b"") == (400, nothing | {"id": "", "message": "Request body is null or empty"})
    status, fields = post(b"{")
    assert status == 400 and fields["message"].startswith("Invalid request format (")
    assert post(b"[]")[0] == 400
    found = post(b'{"id": "1", "action": "dance"}')
    assert found == (200, nothing | {"id": "1", "message": "Unknown action dance"})
    assert (
        post(b'{"id": "1", "action": "render_script", "stringParams": []}')[1]["message"] == "No character added yet!"
    )
    status, fields = post(b'{"id": "2", "action": "camera_image", "intParams": [0]}')
    assert status == 500 and fields["message"].startswith("Unknown error (")


# faults


@pytest.mark.parametrize(("fault", "call"), QUICK_CASES)
def test_every_fault_has_a_name(standin: StandIn, pauses: None, fault: str, call: str) -> None:
    standin.faults.extend([fault] * 100)
    client = http(standin)
    with pytest.raises(EXPECTED[fault]) as caught:
        CALLS[call](Simulator(client))
    expect_numbers(caught.value, standin, call)
    tries = TRIES if fault in PASSING and call in IDEMPOTENT else 1
    assert len(standin.seen) == caught.value.tries == client.repeats + 1 == tries


@pytest.mark.parametrize(("fault", "call"), SLOW_CASES)
def test_faults_that_last_end_with_the_deadline(standin: StandIn, fault: str, call: str) -> None:
    standin.faults.extend([fault] * 100)
    client, start = http(standin, 0.3, 0.8), time.monotonic()
    with pytest.raises(EXPECTED[fault]) as caught:
        CALLS[call](Simulator(client))
    assert time.monotonic() - start < 5
    expect_numbers(caught.value, standin, call)
    assert len(standin.seen) == caught.value.tries
    if call in CHANGING and fault != "busy":
        assert caught.value.tries == 1
    else:
        assert caught.value.tries > 1


def expect_numbers(error: SimulatorError, standin: StandIn, call: str) -> None:
    """The message names all that is known, and what to do; it survives a process border."""
    text = str(error)
    assert isinstance(error, KeepError)
    assert (error.action, error.at) == (call, standin.url) and text.startswith(f"{call} at {standin.url}: ")
    assert error.status is None or error.status == 200 or f"status {error.status}" in text
    assert text.endswith(error.remedy.format(port=standin.port))
    changed = call in CHANGING and error.status != 429
    assert error.uncertain == changed == ("may have been done" in text)
    assert str(pickle.loads(pickle.dumps(error))) == text


@pytest.mark.parametrize("call", CALLS)
def test_a_dead_server(home: ToyHome, pauses: None, call: str) -> None:
    with StandIn(home) as standin:
        simulator = Simulator(http(standin))
        simulator.check()
        standin.kill()
        with pytest.raises(
            SimulatorGone, match=rf"start the simulator with -http-port={standin.port} or set"
        ) as caught:
            CALLS[call](simulator)
    assert caught.value.tries == (TRIES if call in IDEMPOTENT else 1)
    assert not caught.value.uncertain  # nothing was sent


def test_a_server_that_dies_at_work(standin: StandIn) -> None:
    standin.faults.append("hang")
    killer = threading.Timer(0.1, standin.kill)
    killer.start()
    with pytest.raises(SimulatorGone, match="may have been done"):
        CALLS["render_script"](Simulator(http(standin)))
    killer.join()


def test_a_server_that_never_accepts() -> None:
    with socket.create_server(("127.0.0.1", 0), backlog=0) as listener:
        crowd = [socket.socket() for _ in range(4)]
        for other in crowd:  # fills the queue
            other.setblocking(False)
            other.connect_ex(listener.getsockname())
        start = time.monotonic()
        with pytest.raises(SimulatorTimeout):
            Simulator(HttpTransport(f"http://127.0.0.1:{listener.getsockname()[1]}", 0.2, 0.5)).check()
        assert time.monotonic() - start < 5
        for other in crowd:
            other.close()


def test_a_server_that_does_not_read() -> None:
    """A request larger than all buffers."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        simulator = Simulator(HttpTransport(f"http://127.0.0.1:{listener.getsockname()[1]}", 0.3, 0.8))
        start = time.monotonic()
        with pytest.raises(SimulatorTimeout, match="may have been done"):
            simulator.expand_scene({"nodes": [{"id": "x" * (16 << 20)}], "edges": []})
        assert time.monotonic() - start < 10


@pytest.mark.parametrize("fault", ["busy", "timeout", "error", "close", "half", "hang", "drip"])
def test_once_and_then_fine(standin: StandIn, home: ToyHome, fault: str) -> None:
    standin.faults.append(fault)
    client = http(standin, 0.5, 3.0)
    assert Simulator(client).environment_graph() == home.graph()
    assert (client.repeats, standin.actions()) == (1, ["environment_graph"] * 2)


def test_a_busy_simulator_is_asked_again_whatever_the_action(standin: StandIn, home: ToyHome) -> None:
    simulator = Simulator(http(standin))
    simulator.add_character()
    standin.faults.extend(["busy", "busy"])
    assert simulator.render_script([LINE]) == (True, "")
    assert home.lines == [LINE] and standin.actions().count("render_script") == 3


@pytest.mark.parametrize("fault", ["half", "wrong_id", "no_success", "bad_json"])
def test_what_was_done_is_never_done_twice(standin: StandIn, home: ToyHome, fault: str) -> None:
    simulator = Simulator(http(standin))
    simulator.add_character()
    standin.faults.append(fault)
    with pytest.raises(SimulatorError, match="may have been done all the same"):
        simulator.render_script([LINE])
    assert home.lines == [LINE]


def test_two_clients_of_one_simulator(standin: StandIn, home: ToyHome) -> None:
    """The one that comes second is told so, and waits."""
    home.gate.clear()
    first = threading.Thread(target=Simulator(http(standin)).environment_graph)
    first.start()
    while not standin.seen:
        time.sleep(0.001)
    with pytest.raises(SimulatorBusy, match=r"status 429.*tried \d+ times"):
        Simulator(http(standin, 0.3, 0.5)).check()
    opener = threading.Timer(0.2, home.gate.set)
    opener.start()
    client = http(standin)
    Simulator(client).check()
    assert client.repeats
    first.join()
    opener.join()


def test_two_threads_of_one_client(standin: StandIn, home: ToyHome) -> None:
    """One request at a time; the wait for the other thread counts."""
    simulator = Simulator(http(standin, 0.6, 0.6))
    home.gate.clear()
    first = threading.Thread(target=simulator.environment_graph)
    first.start()
    while not standin.seen:
        time.sleep(0.001)
    opener = threading.Timer(0.2, home.gate.set)
    opener.start()
    simulator.check()
    assert standin.actions() == ["environment_graph", "idle"]
    first.join()
    opener.join()


def test_the_longest_answer_that_is_read(standin: StandIn, home: ToyHome) -> None:
    home.extra = [{"id": 2000, "text": "x" * (LIMIT // 2)}]
    assert Simulator(http(standin)).environment_graph() == home.graph()
    home.extra = [{"id": 2000, "text": "x" * LIMIT}]
    with pytest.raises(SimulatorAnswer, match=f"more than {LIMIT} bytes"):
        Simulator(http(standin)).environment_graph()


def test_a_chunk_without_end(standin: StandIn) -> None:
    """Of size -1, which http.client takes for all there is."""
    standin.raw = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n-1\r\n" + b" " * (8 * LIMIT)
    standin.faults.append("raw")
    with pytest.raises(SimulatorAnswer, match=f"more than {LIMIT} bytes"):
        Simulator(http(standin)).check()


def test_replies_with_damage_end_in_a_result_or_a_named_error(standin: StandIn) -> None:
    random, simulator = Random(0), Simulator(http(standin, 1.0, 2.0))
    body = b'{"id": "ID", "success": true, "message": "[\\"\xc3\xa9\\"]", "value": 0, "message_list": null}'
    sound = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nTransfer-Encoding: chunked\r\n\r\n"
    sound += b"%x\r\n%s\r\n0\r\n\r\n" % (len(body) + 17, body)  # an id has 19 digits
    outcomes = set()
    for _ in range(300):
        place, length = random.randrange(len(sound)), random.randrange(20)
        patch = random.choice([b"", random.randbytes(length), sound[place : place + length] * 2, b"\r\n", b"-1"])
        standin.raw = sound[:place] + patch + sound[place + random.randrange(20) :]
        standin.faults.append("raw")
        try:
            simulator.expand_scene({})
            outcomes.add("result")
        except SimulatorError as error:
            outcomes.add(type(error).__name__)
    assert outcomes >= {"result", "SimulatorAnswer", "SimulatorGone"}


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=6,
)
FIELDS = st.fixed_dictionaries(
    {}, optional=dict.fromkeys(("success", "message", "value", "message_list"), JSON)
) | st.fixed_dictionaries({"success": st.just(True), "message": JSON.map(json.dumps)})


@settings(deadline=None)
@given(fields=FIELDS)
def test_whatever_fields_come_only_one_error_is_raised(fields: dict[str, Any]) -> None:
    for read in (answers.done, answers.count, answers.graph, answers.messages, answers.report, answers.images):
        try:
            read(answers.parse(fields))
        except SimulatorAnswer as error:
            assert error.what


@pytest.mark.parametrize("url", ["", "127.0.0.1:8080", "https://x:1", "http://", "http://x:99999", "http://a..b:1"])
def test_addresses_that_cannot_work(url: str) -> None:
    with pytest.raises(ConfigError, match="use http://HOST:PORT"):
        HttpTransport(url)


def test_addresses(standin: StandIn) -> None:
    assert HttpTransport("http://[::1]:7/é").address == ("::1", 7, "/%C3%A9")
    assert HttpTransport("http://[::1]:7").address.header == "[::1]:7"
    assert HttpTransport("http://box").address == ("box", 8080, "/")
    Simulator(HttpTransport(f"http://localhost:{standin.port}")).check()  # also where that means ::1 first


@pytest.mark.parametrize("seconds", [0, -1, float("nan"), float("inf"), 1e9])
def test_times_that_cannot_work(seconds: float) -> None:
    with pytest.raises(ConfigError, match="timeout="):
        HttpTransport(timeout=seconds)
    with pytest.raises(ConfigError, match="deadline="):
        HttpTransport(deadline=seconds)


def test_a_host_without_a_name(pauses: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("socket.getaddrinfo", unknown)
    with pytest.raises(SimulatorGone, match="no connection"):
        Simulator(HttpTransport("http://nowhere.invalid:1", 1, 3)).check()


def unknown(*args: Any, **kwargs: Any) -> None:
    raise socket.gaierror(-2, "Name or service not known")


@pytest.mark.slow
@pytest.mark.parametrize("fault", ["hang", "drip", "huge"])
@pytest.mark.parametrize("call", ["environment_graph", "render_script"])
def test_the_defaults_end_every_fault_within_35_seconds(home: ToyHome, fault: str, call: str) -> None:
    with StandIn(home, drip_seconds=1.0) as standin:
        standin.faults.extend([fault] * 100)
        start = time.monotonic()
        with pytest.raises(EXPECTED[fault]):
            CALLS[call](Simulator(HttpTransport(standin.url)))
        assert time.monotonic() - start < 35


def test_no_socket_is_left_open(home: ToyHome, pauses: None) -> None:
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        with StandIn(home) as standin:
            simulator = Simulator(http(standin, 0.3, 0.4))
            for fault in FAULTS:
                standin.faults.append(fault)
                with suppress(SimulatorError):
                    simulator.expand_scene({"nodes": [], "edges": []})
        gc.collect()
    assert not [str(warning.message) for warning in told if warning.category is ResourceWarning]


# recordings


def converse(simulator: Simulator) -> list[Any]:
    simulator.reset(1)
    simulator.add_character()
    return [simulator.environment_graph(), simulator.render_script([LINE]), simulator.camera_image([0])]


@pytest.mark.parametrize("name", ["talk.jsonl", "deep/er/talk.jsonl.gz"])
def test_a_replay_is_identical(standin: StandIn, tmp_path: Path, name: str) -> None:
    path = tmp_path / name
    with Simulator(http(standin), record=path) as simulator:
        said = converse(simulator)
        assert not path.exists()
    standin.kill()
    again = path.with_name(f"again-{path.name}")
    with Simulator(Replay(path), record=again) as simulator:
        assert converse(simulator) == said
    assert again.read_bytes() == path.read_bytes()
    assert sorted(file.name for file in path.parent.iterdir()) == sorted([path.name, again.name])


@pytest.fixture
def recorded(standin: StandIn, tmp_path: Path) -> Path:
    path = tmp_path / "talk.jsonl"
    with Simulator(http(standin), record=path) as simulator:
        converse(simulator)
    return path


def test_a_replay_that_departs(recorded: Path) -> None:
    with Simulator(Replay(recorded)) as simulator:
        simulator.reset(1)
        with pytest.raises(ReplayDeparted, match=r"add_character at recording .*line 2: stringParams\[0\] was .*Fem"):
            simulator.add_character("Chars/Male2")
    with (
        Simulator(Replay(recorded)) as simulator,
        pytest.raises(ReplayDeparted, match=r"intParams\[0\] was 1, is 0"),
    ):
        simulator.reset(0)
    with (
        Simulator(Replay(recorded)) as simulator,
        pytest.raises(ReplayDeparted, match=r"action was 'reset', is 'idle'"),
    ):
        simulator.check()


def test_a_replay_at_its_end(recorded: Path) -> None:
    with Simulator(Replay(recorded)) as simulator:
        converse(simulator)
        for _ in range(2):
            with pytest.raises(ReplayDeparted, match=r"idle at recording .*talk.jsonl: the recording is at its end"):
                simulator.check()


def test_a_recorded_refusal_is_one_again(standin: StandIn, tmp_path: Path) -> None:
    path = tmp_path / "talk.jsonl"
    with Simulator(http(standin), record=path) as simulator, pytest.raises(SimulatorAnswer, match="Invalid scene"):
        simulator.reset(9)
    with Simulator(Replay(path)) as simulator, pytest.raises(SimulatorAnswer, match="at recording .*Invalid scene"):
        simulator.reset(9)


def test_ids_are_not_compared(tmp_path: Path) -> None:
    path = tmp_path / "talk.jsonl"
    line = {"request": {"id": "7", "action": "idle"}, "answer": {"id": "8", "success": True}}
    path.write_text(json.dumps(line) + '\n{"end": 1}\n')
    with Simulator(Replay(path)) as simulator:
        simulator.check()


def test_a_recording_that_goes_on_after_its_end(recorded: Path) -> None:
    recorded.write_bytes(recorded.read_bytes() * 2)
    with Simulator(Replay(recorded)) as simulator:
        converse(simulator)
        with pytest.raises(DataError, match="talk.jsonl:6 is"):
            simulator.check()


@pytest.mark.parametrize("kept", range(6))
def test_recordings_cut_between_lines(recorded: Path, kept: int) -> None:
    lines = recorded.read_text().splitlines(keepends=True)
    assert len(lines) == 6
    recorded.write_text("".join(lines[:kept]))
    with Simulator(Replay(recorded)) as simulator, pytest.raises(DataError, match=rf"talk.jsonl:{kept + 1} is damaged"):
        converse(simulator)
        simulator.check()


@pytest.mark.parametrize(
    "line",
    ["", "{", "[]", "{}", '{"end": 3}', '{"request": {}, "answer": 1}', '{"request": {}}', "\x00", "[" * 9999],
)
def test_damaged_lines(recorded: Path, line: str) -> None:
    lines = recorded.read_text().splitlines()
    recorded.write_text("\n".join([lines[0], line, *lines[2:]]))
    with Simulator(Replay(recorded)) as simulator, pytest.raises(DataError, match="talk.jsonl:2 is"):
        converse(simulator)


def test_damaged_archives(standin: StandIn, tmp_path: Path) -> None:
    path = tmp_path / "talk.jsonl.gz"
    with Simulator(http(standin), record=path) as simulator:
        converse(simulator)
    sound = path.read_bytes()
    flipped = sound[:40] + bytes([sound[40] ^ 255]) + sound[41:]
    for damaged in (b"", b"no gzip", sound[: len(sound) // 2], sound[:-9], flipped):
        path.write_bytes(damaged)
        with Simulator(Replay(path)) as simulator, pytest.raises(DataError, match=r"talk.jsonl.gz:\d+ is"):
            converse(simulator)
            simulator.check()
    assert gzip.decompress(sound).count(b"\n") == 6


def test_a_recording_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="cannot be read"):
        Replay(tmp_path / "none.jsonl")
    with pytest.raises(DataError, match="cannot be read"):
        Replay(tmp_path)


def test_an_unfinished_recording_leaves_the_old_one(standin: StandIn, tmp_path: Path) -> None:
    path = tmp_path / "talk.jsonl"
    path.write_text("old")
    recording = Recording(http(standin), path)
    simulator = Simulator(recording)
    simulator.check()
    assert path.read_text() == "old"
    simulator.close()
    simulator.close()
    assert [json.loads(line) for line in path.read_text().splitlines()][-1] == {"end": 1}


def test_calls_that_fail_are_not_recorded(standin: StandIn, tmp_path: Path) -> None:
    path = tmp_path / "talk.jsonl"
    with pytest.raises(SimulatorAnswer), Simulator(http(standin), record=path) as simulator:
        simulator.check()
        standin.faults.append("bad_json")
        simulator.check()
    assert path.read_text().splitlines()[1:] == ['{"end":1}']


def test_a_place_that_cannot_be_written(standin: StandIn, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(ConfigError, match="cannot|can be recorded"):
        Simulator(http(standin), record=tmp_path / "file" / "talk.jsonl")


@pytest.mark.parametrize("name", ["talk.jsonl", "talk.jsonl.gz"])
def test_a_full_disk(standin: StandIn, tmp_path: Path, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    simulator = Simulator(http(standin), record=tmp_path / name)
    monkeypatch.setattr("os.fsync", full)
    with pytest.raises(CapacityError, match="free some room"), simulator:
        simulator.check()
    assert not list(tmp_path.iterdir())


def full(number: int) -> None:
    raise OSError(28, "No space left on device")


def test_differences() -> None:
    assert first_difference({"a": [1, "x"]}, {"a": [1, "x"]}) is None
    assert first_difference({"a": [1, "x"]}, {"a": [1, "y"]}) == "a[1] was 'x', is 'y'"
    assert first_difference({"a": []}, {"a": {}}) == "a was [], is {}"
    assert first_difference({"a": 1}, {"b": 1}) == "a was 1, is not there"
    assert (
        first_difference({"a": "x" * 99 + "y"}, {"a": "x" * 100}) == f"a was ...{'x' * 40 + 'y'!r}, is ...{'x' * 41!r}"
    )
    assert first_difference({"a": 1}, {"a": 1, "b": "z" * 99}) == f"b was not there, is {'z' * 80!r}..."
    assert first_difference({"a.b": 1}, {"a": {"b": 1}}) == "the same values are nested otherwise"

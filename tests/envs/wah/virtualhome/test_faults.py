"""The client against a stand-in that answers badly, late or not at all."""

from __future__ import annotations

import gc
import json
import pickle
import socket
import threading
import warnings
from collections.abc import Callable
from contextlib import suppress
from random import Random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from envs.clock import Clock
from envs.wah.virtualhome import answers, transport
from envs.wah.virtualhome.client import Simulator
from envs.wah.virtualhome.errors import (
    SimulatorAnswer,
    SimulatorBusy,
    SimulatorError,
    SimulatorGone,
    SimulatorTimeout,
)
from envs.wah.virtualhome.transport import IDEMPOTENT, TRIES, HttpTransport
from keep_agent.errors import KeepError
from tests.envs.wah.standin import FAULTS, StandIn
from tests.envs.wah.virtualhome.toy import CALLS, CHANGING, LIMIT, LINE, NOTHING_LEFT_OPEN, ToyHome, http
from tests.waiting import PATIENCE, until

pytestmark = NOTHING_LEFT_OPEN

EXPECTED: dict[str, type[SimulatorError]] = dict.fromkeys(FAULTS, SimulatorAnswer) | {
    "busy": SimulatorBusy,
    "timeout": SimulatorTimeout,
    "hang": SimulatorTimeout,
    "drip": SimulatorTimeout,
    "close": SimulatorGone,
    "half": SimulatorGone,
}
SLOW = ("busy", "hang", "drip")  # end with a time-out
SHORT = 0.5  # seconds, where nothing else can come than the time-out
ASKED = 3  # times, of a simulator that stays busy
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


@pytest.mark.parametrize(("fault", "call"), QUICK_CASES)
def test_every_fault_has_a_name(standin: StandIn, pauses: None, fault: str, call: str) -> None:
    standin.faults.extend([fault] * 100)
    client = http(standin)
    with pytest.raises(EXPECTED[fault]) as caught:
        CALLS[call](Simulator(client))
    expect_numbers(caught.value, standin, call)
    tries = TRIES if fault in PASSING and call in IDEMPOTENT else 1
    assert len(standin.seen) == caught.value.tries == client.repeats + 1 == tries


class ByRequests(Clock):
    """A time that is over when a simulator has been asked `ASKED` times, however long that takes."""

    def __init__(self, standin: StandIn) -> None:
        super().__init__(PATIENCE)
        self._standin = standin

    @property
    def gone(self) -> float:
        return self.seconds * len(self._standin.seen) / ASKED


class ShortFrom(Clock):
    """A try's time, which is short and begins with a ``look`` at it, when ``ready`` says so, however late all is.

    One look to connect, one to send, and one to wait for the answer.
    """

    def __init__(self, look: int, ready: Callable[[], bool] = lambda: True) -> None:
        super().__init__(PATIENCE)
        self._look, self._ready, self._looks = look, ready, 0

    def left(self) -> float:
        self._looks += 1
        if self._looks == self._look:
            until(self._ready)
            Clock.__init__(self, SHORT)
        return super().left()


def from_fault(standin: StandIn) -> ShortFrom:
    """Short when the try has met a fault."""
    faults = len(standin.faults)
    return ShortFrom(3, lambda: len(standin.faults) < faults)


def set_clocks(patch: pytest.MonkeyPatch, whole: Callable[[], Clock], tries: Callable[[], Clock]) -> None:
    """The next call has one clock, and then each of its tries."""
    made: list[Clock] = []

    def clock(_: float) -> Clock:
        made.append(tries() if made else whole())
        return made[-1]

    patch.setattr(transport, "Clock", clock)


def patient() -> Clock:
    return Clock(PATIENCE)


@pytest.mark.parametrize(("fault", "call"), SLOW_CASES)
def test_faults_that_last_end_with_a_time_out(
    standin: StandIn, pauses: None, fault: str, call: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A busy simulator is asked until the deadline, one that says nothing a few times, if that does no harm."""
    standin.faults.extend([fault] * 1_000_000 if fault == "busy" else [fault] * TRIES)
    if fault == "busy":
        set_clocks(monkeypatch, lambda: ByRequests(standin), patient)
    else:
        set_clocks(monkeypatch, patient, lambda: from_fault(standin))
    with pytest.raises(EXPECTED[fault]) as caught:
        CALLS[call](Simulator(http(standin)))
    expect_numbers(caught.value, standin, call)
    assert len(standin.seen) == caught.value.tries
    if fault == "busy":
        assert caught.value.tries == ASKED
    else:
        assert caught.value.tries == (1 if call in CHANGING else TRIES)


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

    def kill() -> None:
        until(lambda: standin.seen)  # before, nobody would have been there to connect to
        standin.kill()

    killer = threading.Thread(target=kill)
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
        with pytest.raises(SimulatorTimeout):
            Simulator(HttpTransport(f"http://127.0.0.1:{listener.getsockname()[1]}", SHORT, 2 * SHORT)).check()
        for other in crowd:
            other.close()


def test_a_server_that_does_not_read(monkeypatch: pytest.MonkeyPatch) -> None:
    """A request larger than all buffers."""
    set_clocks(monkeypatch, patient, lambda: ShortFrom(2))
    with socket.create_server(("127.0.0.1", 0)) as listener:
        simulator = Simulator(HttpTransport(f"http://127.0.0.1:{listener.getsockname()[1]}"))
        with pytest.raises(SimulatorTimeout, match="may have been done"):
            simulator.expand_scene({"nodes": [{"id": "x" * (16 << 20)}], "edges": []})


@pytest.mark.parametrize("fault", ["busy", "timeout", "error", "close", "half", "hang", "drip"])
def test_once_and_then_fine(standin: StandIn, home: ToyHome, fault: str, monkeypatch: pytest.MonkeyPatch) -> None:
    standin.faults.append(fault)
    client = http(standin)
    if fault in ("hang", "drip"):
        set_clocks(monkeypatch, patient, lambda: from_fault(standin) if standin.faults else patient())
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


def test_two_clients_of_one_simulator(
    standin: StandIn, home: ToyHome, pauses: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The one that comes second is told so, and waits."""
    home.gate.clear()
    first = threading.Thread(target=Simulator(http(standin)).environment_graph)
    first.start()
    until(standin.alone.locked)  # it is at work, and not just read
    with monkeypatch.context() as patch, pytest.raises(SimulatorBusy, match=r"status 429.*tried \d+ times"):
        set_clocks(patch, lambda: ByRequests(standin), patient)
        Simulator(http(standin)).check()
    client = http(standin)
    second = threading.Thread(target=Simulator(client).check)
    second.start()
    until(lambda: client.repeats)
    home.gate.set()
    second.join()
    first.join()


def test_two_threads_of_one_client(standin: StandIn, home: ToyHome) -> None:
    """One request at a time; the wait for the other thread counts."""
    simulator = Simulator(http(standin))
    home.gate.clear()
    first = threading.Thread(target=simulator.environment_graph)
    first.start()
    until(lambda: standin.seen)
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
    random, simulator = Random(0), Simulator(http(standin))
    body = b'{"id": "ID", "success": true, "message": "[\\"\xc3\xa9\\"]", "value": 0, "message_list": null}'
    sound = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nTransfer-Encoding: chunked\r\n\r\n"
    sound += b"%x\r\n%s\r\n0\r\n\r\n" % (len(body) + 17, body)  # an id has 19 digits
    outcomes = set()
    for _ in range(300):
        place, length = random.randrange(len(sound)), random.randrange(20)
        patch = random.choice([b"", random.randbytes(length), sound[place : place + length] * 2, b"\r\n", b"-1", b"-5"])
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


@given(fields=FIELDS)
def test_whatever_fields_come_only_one_error_is_raised(fields: dict[str, Any]) -> None:
    for read in (answers.check_success, answers.count, answers.graph, answers.messages, answers.report, answers.images):
        try:
            read(answers.parse(fields))
        except SimulatorAnswer as error:
            assert error.what


@pytest.mark.slow
@pytest.mark.parametrize("fault", ["hang", "drip", "huge"])
@pytest.mark.parametrize("call", ["environment_graph", "render_script"])
def test_the_defaults_end_every_fault(home: ToyHome, fault: str, call: str) -> None:
    with StandIn(home, drip_seconds=1.0) as standin:
        standin.faults.extend([fault] * 100)
        with pytest.raises(EXPECTED[fault]):
            CALLS[call](Simulator(HttpTransport(standin.url)))


def test_no_socket_is_left_open(home: ToyHome, pauses: None) -> None:
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        with StandIn(home) as standin:
            simulator = Simulator(http(standin, SHORT, SHORT))
            for fault in FAULTS:
                standin.faults.append(fault)
                with suppress(SimulatorError):
                    simulator.expand_scene({"nodes": [], "edges": []})
        gc.collect()
    assert not [str(warning.message) for warning in told if warning.category is ResourceWarning]

"""Faults: the client against a fake simulator that answers wrongly, late or not at all."""

from __future__ import annotations

import json
import pickle
import socket
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from itertools import chain, repeat
from random import Random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from envs.clock import Clock
from envs.wah.virtualhome import client, transport
from envs.wah.virtualhome.client import Simulator
from envs.wah.virtualhome.errors import SimulatorAnswer, SimulatorBusy, SimulatorError, SimulatorGone, SimulatorTimeout
from envs.wah.virtualhome.transport import IDEMPOTENT, TRIES, HttpTransport
from keep_agent.errors import KeepError
from tests.envs.wah.fake_simulator import FAULTS, FakeSimulator
from tests.envs.wah.virtualhome.toy import CALLS, CHANGING, LIMIT, NOTHING_LEFT_OPEN, ToyHome, http
from tests.waiting import PATIENCE, until

pytestmark = NOTHING_LEFT_OPEN

EXPECTED: dict[str, type[SimulatorError]] = dict.fromkeys(FAULTS, SimulatorAnswer) | {
    "busy": SimulatorBusy, "timeout": SimulatorTimeout, "hang": SimulatorTimeout, "drip": SimulatorTimeout,
    "close": SimulatorGone, "half": SimulatorGone,
}  # fmt: skip
SLOW = ("busy", "hang", "drip")  # faults that end with a timeout
SHORT = 0.5  # seconds, for tests that can only end with the timeout
BUSY_TRIES = 3  # requests to a simulator that stays busy
GRAPH = ("environment_graph",)
SPECIFIC = {"no_value": ("camera_count", *GRAPH), "bad_graph": GRAPH, "no_graph": GRAPH}  # faults of some calls only
TEMPORARY = ("timeout", "error", "close", "half")  # retried for idempotent actions
QUICK_CASES = [
    (fault, call) for fault in FAULTS if fault not in (*SLOW, "raw") for call in SPECIFIC.get(fault, tuple(CALLS))
]
SLOW_CASES = [(fault, call) for fault in SLOW for call in ("environment_graph", "reset", *CHANGING)]


@pytest.mark.parametrize(("fault", "call"), QUICK_CASES)
def test_every_fault_has_its_error(server: FakeSimulator, short_pauses: None, fault: str, call: str) -> None:
    server.faults.extend([fault] * 100)
    client = http(server)
    with pytest.raises(EXPECTED[fault]) as caught:
        CALLS[call](Simulator(client))
    expect_numbers(caught.value, server, call)
    tries = TRIES if fault in TEMPORARY and call in IDEMPOTENT else 1
    assert len(server.requests) == caught.value.tries == client.retries + 1 == tries


class RequestClock(Clock):
    """Clock that runs out with request number `BUSY_TRIES`, however long that takes."""

    def __init__(self, server: FakeSimulator) -> None:
        super().__init__(PATIENCE)
        self._server = server

    @property
    def elapsed(self) -> float:
        return self.seconds * len(self._server.requests) / BUSY_TRIES


class LateClock(Clock):
    """Clock of one try that allows only `SHORT` seconds from its n-th query on, after ``ready`` has returned True.

    A try queries it to connect, to send, and to wait for the answer.
    """

    def __init__(self, query: int, ready: Callable[[], bool] = lambda: True) -> None:
        super().__init__(PATIENCE)
        self._query, self._ready, self._queries = query, ready, 0

    def timeout(self) -> float:
        self._queries += 1
        if self._queries == self._query:
            until(self._ready)
            Clock.__init__(self, SHORT)
        return super().timeout()


def clock_from_fault(server: FakeSimulator) -> LateClock:
    """Return a clock that allows a try only `SHORT` seconds after it has triggered a fault."""
    faults = len(server.faults)
    return LateClock(3, lambda: len(server.faults) < faults)


def long_clock() -> Clock:
    return Clock(PATIENCE)


def set_clocks(
    patch: pytest.MonkeyPatch, whole: Callable[[], Clock] = long_clock, tries: Callable[[], Clock] = long_clock
) -> None:
    """Set the clock of the whole next call, and the clocks of its tries."""
    makers = chain([whole], repeat(tries))
    patch.setattr(transport, "Clock", lambda _: next(makers)())


@pytest.mark.parametrize(("fault", "call"), SLOW_CASES)
def test_lasting_faults_end_with_a_timeout(
    server: FakeSimulator, short_pauses: None, fault: str, call: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A busy simulator is retried until the deadline, a silent one a few times for idempotent actions."""
    busy = fault == "busy"
    server.faults.extend([fault] * (1_000_000 if busy else TRIES))
    if busy:
        set_clocks(monkeypatch, whole=lambda: RequestClock(server))
    else:
        set_clocks(monkeypatch, tries=lambda: clock_from_fault(server))
    with pytest.raises(EXPECTED[fault]) as caught:
        CALLS[call](Simulator(http(server)))
    expect_numbers(caught.value, server, call)
    assert len(server.requests) == caught.value.tries
    assert caught.value.tries == (BUSY_TRIES if busy else 1 if call in CHANGING else TRIES)


def expect_numbers(error: SimulatorError, server: FakeSimulator, call: str) -> None:
    """Check that the message has the numbers and the remedy, and that the error can be pickled."""
    text = str(error)
    assert isinstance(error, KeepError)
    assert (error.action, error.address) == (call, server.url) and text.startswith(f"{call} at {server.url}: ")
    assert error.status is None or error.status == 200 or f"status {error.status}" in text
    assert text.endswith(error.remedy.format(port=server.port))
    changed = call in CHANGING and error.status != 429
    assert error.maybe_executed == changed == ("may have been executed" in text)
    assert str(pickle.loads(pickle.dumps(error))) == text


@pytest.mark.parametrize("call", CALLS)
def test_a_dead_server(home: ToyHome, short_pauses: None, call: str) -> None:
    with FakeSimulator(home) as server:
        simulator = Simulator(http(server))
        simulator.check()
        server.kill()
        with pytest.raises(SimulatorGone, match=rf"start the simulator with -http-port={server.port} or set") as caught:
            CALLS[call](simulator)
    assert caught.value.tries == (TRIES if call in IDEMPOTENT else 1)
    assert not caught.value.maybe_executed  # no request was sent


def test_a_server_that_never_accepts() -> None:
    with socket.create_server(("127.0.0.1", 0), backlog=0) as listener:
        crowd = [socket.socket() for _ in range(4)]
        for client in crowd:  # fills the queue
            client.setblocking(False)
            client.connect_ex(listener.getsockname())
        with pytest.raises(SimulatorTimeout):
            Simulator(HttpTransport(f"http://127.0.0.1:{listener.getsockname()[1]}", SHORT, 2 * SHORT)).check()
        for client in crowd:
            client.close()


def test_a_server_that_does_not_read(monkeypatch: pytest.MonkeyPatch) -> None:
    """The request is larger than all buffers."""
    set_clocks(monkeypatch, tries=lambda: LateClock(2))
    with socket.create_server(("127.0.0.1", 0)) as listener:
        simulator = Simulator(HttpTransport(f"http://127.0.0.1:{listener.getsockname()[1]}"))
        with pytest.raises(SimulatorTimeout, match="may have been executed"):
            simulator.expand_scene({"nodes": [{"id": "x" * (16 << 20)}], "edges": []})


@pytest.mark.parametrize("fault", ["busy", "timeout", "error", "close", "half", "hang", "drip"])
def test_one_fault_is_overcome(
    server: FakeSimulator, home: ToyHome, fault: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    server.faults.append(fault)
    client = http(server)
    if fault in ("hang", "drip"):
        set_clocks(monkeypatch, tries=lambda: clock_from_fault(server) if server.faults else long_clock())
    assert Simulator(client).environment_graph() == home.graph()
    assert (client.retries, server.actions()) == (1, ["environment_graph"] * 2)


def test_two_clients_of_one_simulator(
    server: FakeSimulator, home: ToyHome, short_pauses: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The second one gets the status busy, and waits."""
    home.gate.clear()
    with ThreadPoolExecutor() as pool:
        first = pool.submit(Simulator(http(server)).environment_graph)
        until(server.lock.locked)  # the request is running, not only received
        with monkeypatch.context() as patch, pytest.raises(SimulatorBusy, match=r"status 429.*tried \d+ times"):
            set_clocks(patch, whole=lambda: RequestClock(server))
            Simulator(http(server)).check()
        client = http(server)
        second = pool.submit(Simulator(client).check)
        until(lambda: client.retries)
        home.gate.set()
        second.result()
        assert first.result() == home.graph()


def test_two_threads_of_one_client(server: FakeSimulator, simulator: Simulator, home: ToyHome) -> None:
    """One request at a time; the wait for the other thread counts towards the deadline."""
    home.gate.clear()
    with ThreadPoolExecutor() as pool:
        first = pool.submit(simulator.environment_graph)
        until(lambda: server.requests)
        opener = threading.Timer(0.2, home.gate.set)
        opener.start()
        simulator.check()
        assert server.actions() == ["environment_graph", "idle"]
        assert first.result() == home.graph()
    opener.join()


def test_the_limit_of_an_answer(server: FakeSimulator, simulator: Simulator, home: ToyHome) -> None:
    home.extra = [{"id": 2000, "text": "x" * (LIMIT // 2)}]
    assert simulator.environment_graph() == home.graph()
    home.extra = [{"id": 2000, "text": "x" * LIMIT}]
    with pytest.raises(SimulatorAnswer, match=f"more than {LIMIT} bytes"):
        simulator.environment_graph()
    # a chunk of size -1 is an endless one for http.client
    server.raw = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n-1\r\n" + b" " * (8 * LIMIT)
    server.faults.append("raw")
    with pytest.raises(SimulatorAnswer, match=f"more than {LIMIT} bytes"):
        simulator.check()


def test_damaged_replies_end_in_a_result_or_a_simulator_error(server: FakeSimulator, simulator: Simulator) -> None:
    random = Random(0)
    body = b'{"id": "ID", "success": true, "message": "[\\"\xc3\xa9\\"]", "value": 0, "message_list": null}'
    reply = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nTransfer-Encoding: chunked\r\n\r\n"
    reply += b"%x\r\n%s\r\n0\r\n\r\n" % (len(body) + 17, body)  # an id has 19 digits
    outcomes = set()
    for _ in range(300):
        place, length = random.randrange(len(reply)), random.randrange(20)
        patch = random.choice([b"", random.randbytes(length), reply[place : place + length] * 2, b"\r\n", b"-1", b"-5"])
        server.raw = reply[:place] + patch + reply[place + random.randrange(20) :]
        server.faults.append("raw")
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
def test_arbitrary_fields_raise_only_simulator_answer(fields: dict[str, Any]) -> None:
    for read in (client.check_success, client.value_of, client.graph_of):
        try:
            read(client.parse_reply(fields))
        except SimulatorAnswer as error:
            assert error.problem


@pytest.mark.slow
@pytest.mark.parametrize("fault", ["hang", "drip", "huge"])
@pytest.mark.parametrize("call", ["environment_graph", "render_script"])
def test_the_default_limits_end_every_fault(home: ToyHome, fault: str, call: str) -> None:
    with FakeSimulator(home, drip_seconds=1.0) as server:
        server.faults.extend([fault] * 100)
        with pytest.raises(EXPECTED[fault]):
            CALLS[call](Simulator(HttpTransport(server.url)))

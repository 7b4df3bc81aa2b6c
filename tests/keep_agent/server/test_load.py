"""Load: many requests at once, and clients that disconnect: no request waits for them, no agent stays busy."""

from __future__ import annotations

import json
import math
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx
import pytest

from keep_agent.server.limits.request_limits import RequestLimits
from memory.engine.base import Engine
from memory.engine.models.chat_template import SpecialTokens
from tests.keep_agent.server.conftest import Serve, Whole
from tests.keep_agent.server.serving import LiveServer, events, post
from tests.waiting import PATIENCE, until

PATH = "/v1/agents/{}/generate"
LONG = {"prompt": "Robot: find a mug, 2.", "tokens": 3000}


def idle(whole: Whole) -> bool:
    return not whole.conversations._running and whole.limiter.active == 0


def talked(server: LiveServer, agent: str, tokens: int = 30, **more: Any) -> httpx.Response:
    body = {"prompt": f"{agent}: find a mug, 2.", "tokens": tokens, **more}
    return httpx.post(server.url + PATH.format(agent), json=body, timeout=PATIENCE)


class Passes:
    """Counter of the model's forward passes, which can hold them."""

    def __init__(self) -> None:
        self.count, self._most, self._goes_on = 0, math.inf, lambda: True

    def hold(self, goes_on: Callable[[], object], most: int = 20) -> None:
        """Let ``most`` passes continue, and the others once ``goes_on()`` is true."""
        self._most, self._goes_on = self.count + most, goes_on

    def __call__(self, *_: Any) -> None:
        self.count += 1
        if self.count > self._most:
            until(self._goes_on)
            self._most = math.inf


@pytest.fixture
def passes(engine: Engine) -> Iterator[Passes]:
    count = Passes()
    with engine.decoder.layers[0].mlp.register_forward_hook(count):
        yield count


def endless_words(whole: Whole) -> None:
    """Let the model generate no end token."""
    whole.conversations.special = SpecialTokens(frozenset())


@pytest.fixture(scope="module")
def endless(serve: Serve) -> Any:
    with serve() as (server, whole):
        endless_words(whole)
        yield server, whole


def test_sixty_streams_delay_no_other_request(endless: tuple[LiveServer, Whole], passes: Passes) -> None:
    server, whole = endless
    looks, finished = list[int](), threading.Event()
    passes.hold(lambda: sum(inside > 0 for inside in looks) > 1)

    def look() -> None:
        while not finished.is_set():
            assert server.http.get("/healthz").status_code == 200
            assert server.http.get("/metrics").status_code == 200
            looks.append(whole.limiter.active)

    with ThreadPoolExecutor(61) as pool:
        looking = pool.submit(look)
        answers = list(pool.map(lambda n: talked(server, f"s{n}", stream=True), range(60)))
        finished.set()
        looking.result()
    assert {answer.status_code for answer in answers} == {200}
    assert all(events(answer.text)[-2][1]["generated"] == 30 for answer in answers)
    assert sum(inside > 0 for inside in looks) > 1, looks
    alone = talked(server, "alone", prompt="s7: find a mug, 2.").json()
    assert alone["text"] == events(answers[7].text)[-2][1]["text"]
    until(lambda: idle(whole))


def test_requests_of_one_agent_wait_for_each_other(endless: tuple[LiveServer, Whole]) -> None:
    server, _ = endless
    with ThreadPoolExecutor(5) as pool:
        answers = [answer.json() for answer in pool.map(lambda _: talked(server, "one"), range(5))]
    assert len({answer["text"] for answer in answers}) == 1
    assert sorted(answer["origin"] for answer in answers) == ["cold", *["hot"] * 4]


@pytest.mark.parametrize("stream", [True, False])
def test_a_disconnected_client_frees_its_agent(endless: tuple[LiveServer, Whole], passes: Passes, stream: bool) -> None:
    server, whole = endless
    path, works = PATH.format(f"left-{stream}"), whole.conversations._running
    passes.hold(lambda: any(item.turn._is_cancelled for item in list(works.values())))
    with server.socket() as connection:
        connection.sendall(post(path, json.dumps(LONG | {"stream": stream}).encode()))
        data = b""
        while stream and b"data:" not in data:  # until the first piece: then the prompt is computed
            data += connection.recv(1000)
        until(lambda: whole.limiter.active == 1)
    again = server.http.post(path, json=LONG | {"tokens": 1})
    assert again.status_code == 200 and passes.count < LONG["tokens"]
    if stream:
        assert again.json()["kept"] > 0  # the computed rows are not lost
    until(lambda: idle(whole))


def test_a_disconnected_waiting_client_frees_its_place(endless: tuple[LiveServer, Whole], passes: Passes) -> None:
    server, whole = endless
    path, released = PATH.format("long"), threading.Event()
    passes.hold(released.is_set)
    with server.socket() as first:
        first.sendall(post(path, json.dumps(LONG | {"stream": True}).encode()))
        assert b"200 OK" in first.recv(1000)
        with server.socket() as second, server.socket() as third:
            for waiting, stream in ((second, True), (third, False)):
                waiting.sendall(post(path, json.dumps(LONG | {"stream": stream}).encode()))
            until(lambda: whole.limiter.active == 3)
        until(lambda: whole.limiter.active == 1)
        assert len(whole.conversations._running) == 1
        released.set()
        assert first.recv(1000)  # its stream continues
    until(lambda: idle(whole))


def test_requests_of_one_agent_do_not_exclude_others(serve: Serve, passes: Passes) -> None:
    refused_both = threading.Event()
    passes.hold(refused_both.is_set)
    with serve(limits=RequestLimits(requests=4, per_agent=2)) as (server, whole):
        endless_words(whole)
        with server.socket() as first, server.socket() as second:
            for waiting in (first, second):
                waiting.sendall(post(PATH.format("greedy"), json.dumps(LONG).encode()))
            until(lambda: whole.limiter.active == 2)
            for stream in (True, False):
                refusal = talked(server, "greedy", stream=stream)
                assert refusal.status_code == 429 and "this agent" in refusal.json()["error"]["message"]
                assert int(refusal.headers["retry-after"]) >= 1
            refused_both.set()
            assert talked(server, "modest", 1).status_code == 200
        until(lambda: idle(whole))
        assert talked(server, "greedy", 1).status_code == 200


def test_a_client_that_does_not_read_frees_its_agent(endless: tuple[LiveServer, Whole], passes: Passes) -> None:
    server, whole = endless
    with server.socket() as connection:
        connection.sendall(post(PATH.format("deaf"), json.dumps(LONG | {"stream": True, "tokens": 200}).encode()))
        until(lambda: passes.count)  # it has begun: the limiter may be empty again
        until(lambda: not whole.conversations._running)
        assert talked(server, "deaf", 1).status_code == 200


def test_too_many_requests_get_a_time_to_retry(serve: Serve, passes: Passes) -> None:
    refusal = threading.Event()  # until it is set, no admitted request continues, so the limiter stays full

    def attempt(number: int) -> httpx.Response:
        answer = talked(server, f"a{number}", 60)
        if answer.status_code == 429:
            refusal.set()
        return answer

    with serve(limits=RequestLimits(requests=2)) as (server, whole):
        endless_words(whole)
        passes.hold(refusal.is_set, most=0)
        with ThreadPoolExecutor(8) as pool:
            answers = list(pool.map(attempt, range(8)))
        assert {answer.status_code for answer in answers} == {200, 429}
        refusals = [answer for answer in answers if answer.status_code == 429]
        assert all(
            int(item.headers["retry-after"]) >= 1 and item.json()["error"]["type"] == "Busy" for item in refusals
        )
        until(lambda: idle(whole))
        assert talked(server, "later").status_code == 200


def test_a_closing_server_answers_waiting_requests(serve: Serve, passes: Passes) -> None:
    answers: list[httpx.Response] = []
    with serve() as (server, whole):
        passes.hold(lambda: whole.conversations._is_closed)
        endless_words(whole)
        waiting = threading.Thread(target=lambda: answers.append(talked(server, "last", 3000)))
        waiting.start()
        until(lambda: whole.limiter.active == 1)
    waiting.join(PATIENCE)
    assert not waiting.is_alive() and passes.count < 3000
    assert not answers or answers[0].status_code in (500, 503)

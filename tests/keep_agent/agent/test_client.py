"""Client of a server that is slow, down, or of another kind: a fake server with a real agent gives the answers."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from itertools import product
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import httpx
import pytest

from envs.outcome import Outcome
from keep_agent.agent import client as module
from keep_agent.agent.agent import Agent
from keep_agent.agent.client import RETRY_TIME, TIMEOUT, Client, ServerError
from keep_agent.config.planner_factory import PlannerResources
from keep_agent.errors import ConfigError, KeepError, StaleError
from tests.keep_agent.agent.playing import SKILLS
from tests.waiting import FakeTime

Answer = Callable[[httpx.Request], httpx.Response]


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> FakeTime:
    instance = FakeTime()
    monkeypatch.setattr(module, "time", SimpleNamespace(monotonic=instance, sleep=instance.sleep))
    return instance


@pytest.fixture(scope="module")
def agent(resources: Callable[..., PlannerResources]) -> Iterator[Agent]:
    with Agent(resources().planner("kitchen")) as instance:
        yield instance


def client(answer: Answer) -> Client:
    return Client("http://robots.test", transport=httpx.MockTransport(answer))


def server_of(agent: Agent, *faults: Answer) -> Answer:
    """Return a server with one agent, which makes every plan but answers the first ones with ``faults``."""
    remaining = list(faults)

    def answer(request: httpx.Request) -> httpx.Response:
        body = json.loads(request.content or "{}")
        match request.method, request.url.path.rpartition("/")[2]:
            case "POST", "plan":
                try:
                    decision = agent.plan(body["instruction"], body["skills"], after=body["after"])
                except StaleError as error:
                    return httpx.Response(409, json={"error": {"type": "StaleError", "message": str(error)}})
                if remaining:
                    return remaining.pop(0)(request)
                values = {name: getattr(decision, name) for name in ("skill", "scores", "number")} | {"trace": {}}
                lines = f"event: ready\ndata: {{}}\n\nevent: decision\ndata: {json.dumps(values)}\n\n"
                return httpx.Response(200, text=lines) if body.get("stream") else httpx.Response(200, json=values)
            case "POST", "report":
                agent.report(Outcome(body["ok"], body["message"]), body["number"])
            case "POST", "finish":
                agent.finish(body["success"])
        return httpx.Response(200, json={"id": "kitchen", "segments": agent.segments, "decisions": agent.number})

    return answer


def late(request: httpx.Request) -> httpx.Response:
    raise httpx.ReadTimeout("timed out", request=request)


def refusal(status: int, message: str, **headers: str) -> httpx.Response:
    return httpx.Response(status, json={"error": {"type": "Refusal", "message": message}}, headers=headers)


def busy(request: httpx.Request) -> httpx.Response:
    return refusal(429, "come again", **{"Retry-After": "2"})


def ending(request: httpx.Request) -> httpx.Response:
    """Answer as a server that ends before it has finished a request."""
    return refusal(503, "the server is shutting down", **{"Retry-After": "5"})


def short(request: httpx.Request) -> httpx.Response:
    """Answer as a server that begins a stream and then has no file descriptor left."""
    error = {"error": {"type": "Unavailable", "message": "no file descriptor left"}, "status": 503}
    return httpx.Response(200, text=f"event: ready\ndata: {{}}\n\nevent: error\ndata: {json.dumps(error)}\n\n")


def incomplete(request: httpx.Request) -> httpx.Response:
    return httpx.Response(200, text="event: ready\ndata: {}\n\n")


def test_a_plan_whose_answer_was_lost_is_made_once(agent: Agent, clock: FakeTime) -> None:
    """The number of the last decision prevents a second decision, even if a fact was observed in between."""
    before = agent.number
    for stream, fault in (*product((False, True), (late, busy, ending)), (True, incomplete), (True, short)):

        def observe(request: httpx.Request, fault: Answer = fault) -> httpx.Response:
            agent.observe([{"id": f"mug_{agent.number}", "category": "object", "type": "mug"}])
            return fault(request)

        robot = client(server_of(agent, observe)).agent("kitchen")
        costs: list[Any] = []
        decision = robot.plan("get the mug", SKILLS, costs.append if stream else None)
        before += 1
        assert decision.number == agent.number == before and decision.skill in SKILLS
        assert bool(costs) == stream
        robot.report(Outcome(False, "stuck"))
        assert robot.about().decisions == before


def test_a_client_learns_that_another_has_planned_and_continues(agent: Agent) -> None:
    robot = client(server_of(agent)).agent("kitchen")
    robot.plan("get the mug", SKILLS)
    robot.report(Outcome(True))
    latest = agent.plan("get the cup", SKILLS).number
    with pytest.raises(ServerError, match=f"the last decision is number {latest}") as error:
        robot.plan("get the mug", SKILLS)
    assert error.value.status == 409
    robot.report(Outcome(False, "it was not carried out"))
    assert agent.dump()["planner"]["turns"][-1][1:] == [False, "it was not carried out"]
    assert robot.plan("get the mug", SKILLS).number == latest + 1


@pytest.mark.parametrize(
    ("answer", "seconds", "message", "requests", "least", "most"),
    [(late, TIMEOUT, "does not answer", 2, 0, 2 * TIMEOUT + RETRY_TIME), (busy, 0, "come again", 16, 28, RETRY_TIME)],
)
def test_patience_begins_with_the_first_failure(
    clock: FakeTime, answer: Answer, seconds: float, message: str, requests: int, least: float, most: float
) -> None:
    """A request whose answer came too late is repeated, however long the answer took."""
    sent: list[httpx.Request] = []

    def slow(request: httpx.Request) -> httpx.Response:
        sent.append(request)
        clock.sleep(seconds)
        return answer(request)

    with pytest.raises(ServerError, match=message):
        client(slow).agents()
    assert len(sent) == requests and least <= clock.elapsed <= most


@pytest.mark.parametrize(
    ("call", "value"),
    [("report", False), ("report", {"ok": False}), ("finish", "no"), ("observe", None), ("save", None)],
)
def test_a_value_of_the_wrong_type_is_refused(agent: Agent, call: str, value: Any) -> None:
    remote = client(server_of(agent)).agent("kitchen")
    with pytest.raises(KeepError, match="give|name"):
        getattr(remote, call)(value)


def test_names_are_quoted_in_paths() -> None:
    paths: list[bytes] = []

    def answer(request: httpx.Request) -> httpx.Response:
        paths.append(request.url.raw_path)
        return httpx.Response(204)

    for name in ("kitchen#old", "kitchen?old", "kitchen/memory"):
        client(answer).delete(name)
    assert paths == [b"/v1/agents/kitchen%23old", b"/v1/agents/kitchen%3Fold", b"/v1/agents/kitchen%2Fmemory"]


@pytest.mark.parametrize("url", ["localhost:9105", "ftp://robots", "", "http://", "http://a:b", "robots"])
def test_an_invalid_url_is_refused_at_once(url: str) -> None:
    with pytest.raises(ConfigError, match="such as http://localhost:8000"):
        Client(url)


def illegal(request: httpx.Request) -> httpx.Response:
    raise httpx.LocalProtocolError("illegal header value", request=request)


def undecodable(request: httpx.Request) -> httpx.Response:
    return httpx.Response(200, headers={"Content-Encoding": "gzip"}, content=b"no gzip")


@pytest.mark.parametrize(("answer", "message"), [(illegal, "illegal header"), (undecodable, "does not answer")])
def test_an_error_that_no_repetition_mends_is_raised_at_once(clock: FakeTime, answer: Answer, message: str) -> None:
    with pytest.raises(ServerError, match=message):
        client(answer).agents()
    assert clock.elapsed == 0


@pytest.mark.parametrize(
    "page",
    ["<html>sign in</html>", "[]", "7", '{"id": "kitchen"}', "event: ready\ndata: <html>\n\n", "[" * 100_000],
    ids=lambda page: page[:9],
)
def test_a_page_of_another_server_is_no_answer(clock: FakeTime, tmp_path: Path, page: str) -> None:
    """A proxy answers with status 200, too; a call with such an answer is an error."""
    connection = client(lambda request: httpx.Response(200, text=page))
    (tmp_path / "memory").write_text("memory")
    robot = connection.agent("kitchen", create=False)
    for call in (
        connection.agents, lambda: connection.agent("kitchen"), robot.about, lambda: robot.observe([]),
        lambda: robot.plan("get the mug", SKILLS), lambda: robot.report(Outcome(True)), lambda: robot.finish(True),
        lambda: robot.load(tmp_path / "memory"), lambda: robot.save(tmp_path / "saved"),
    ):  # fmt: skip
        with pytest.raises(ServerError, match="a KEEP Agent server would not"):
            call()
    robot._number = 1
    with pytest.raises(ServerError):
        robot.plan("get the mug", SKILLS, lambda cost: None)
    assert not (tmp_path / "saved").exists()


def test_a_task_that_ended_with_a_lost_plan_does_not_block_the_next(agent: Agent, clock: FakeTime) -> None:
    server, down = server_of(agent), True

    def answer(request: httpx.Request) -> httpx.Response:
        content = server(request)
        return late(request) if down and request.url.path.endswith("plan") else content

    robot = client(answer).agent("kitchen")
    robot.about()
    before = agent.number
    with pytest.raises(ServerError, match="does not answer"):
        robot.plan("get the tray", SKILLS)
    assert agent.number == before + 1
    robot.finish(False)
    down = False
    assert robot.plan("get the cup", SKILLS).number == before + 2


def test_a_repeated_report_takes_effect_once(agent: Agent, clock: FakeTime) -> None:
    server, faults = server_of(agent), iter([late, busy])
    number = client(server).agent("kitchen").plan("get the mug", SKILLS).number

    def answer(request: httpx.Request) -> httpx.Response:
        content = server(request)
        return next(faults, lambda request: content)(request) if request.url.path.endswith("report") else content

    client(answer).agent("kitchen").report(Outcome(False, "stuck"))
    assert agent.number == number
    assert agent.dump()["planner"]["turns"][-1][1:] == [False, "stuck"]


def test_deleting_again_after_a_lost_answer_is_no_error(clock: FakeTime) -> None:
    paths: list[str] = []

    def answer(request: httpx.Request) -> httpx.Response:
        if paths:
            return refusal(404, "no such agent")
        paths.append(request.url.path)
        return late(request)

    client(answer).delete("kitchen")
    with pytest.raises(ServerError, match="no such agent"):
        client(answer).delete("kitchen")

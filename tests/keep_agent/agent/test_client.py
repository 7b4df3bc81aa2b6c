"""What a client does when its server is slow, away, or none of ours. A planning agent stands behind it."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from envs.outcome import Outcome
from keep_agent.agent import client as module
from keep_agent.agent.agent import Agent
from keep_agent.agent.client import PATIENCE, TIMEOUT, Client, RemoteAgent, ServerError
from keep_agent.config.planner_factory import brain_of
from keep_agent.errors import ConfigError, KeepError, StaleError

URL = "http://robots.test"
SKILLS = ["go to cabinet 1", "open cabinet 1", "done"]
Answer = Callable[[httpx.Request], httpx.Response]


class Clock:
    """Time goes by where it is waited for."""

    def __init__(self) -> None:
        self.now = 0.0

    def monotonic(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    made = Clock()
    monkeypatch.setattr(module, "time", made)
    return made


@pytest.fixture(scope="module")
def agent(tiny_model: Path) -> Iterator[Agent]:
    brain = brain_of([f"model={tiny_model}", "prompt.encoder=hashed"])
    with Agent(brain.planner("kitchen")) as made:
        yield made
    brain.engine.close()


def client(answer: Answer) -> Client:
    return Client(URL, transport=httpx.MockTransport(answer))


def served(agent: Agent, *troubles: Answer) -> Answer:
    """A server with one agent; what is asked of it meets the troubles first, after it was done."""
    left = list(troubles)

    def about() -> dict[str, Any]:
        return {"id": "kitchen", "segments": agent.segments, "decisions": agent.number}

    def answer(request: httpx.Request) -> httpx.Response:
        asked = json.loads(request.content or "{}")
        match request.method, request.url.path.rpartition("/")[2]:
            case "POST", "plan":
                try:
                    found = agent.plan(asked["instruction"], asked["skills"], after=asked["after"])
                except StaleError as error:
                    return httpx.Response(409, json={"error": {"type": "StaleError", "message": str(error)}})
                if left:
                    return left.pop(0)(request)
                told = {"skill": found.skill, "scores": found.scores, "number": found.number, "trace": {}}
                lines = f"event: ready\ndata: {{}}\n\nevent: decision\ndata: {json.dumps(told)}\n\n"
                return httpx.Response(200, text=lines) if asked.get("stream") else httpx.Response(200, json=told)
            case "POST", "report":
                agent.report(Outcome(asked["ok"], asked["message"]), asked["number"])
            case "POST", "finish":
                agent.finish(asked["success"])
        return httpx.Response(200, json=about())

    return answer


def late(request: httpx.Request) -> httpx.Response:
    raise httpx.ReadTimeout("timed out", request=request)


def busy(request: httpx.Request) -> httpx.Response:
    return httpx.Response(429, json={"error": {"type": "Busy", "message": "come again"}}, headers={"Retry-After": "2"})


def ending(request: httpx.Request) -> httpx.Response:
    """A server that gives up what it could not finish before it ends."""
    told = {"error": {"type": "Unavailable", "message": "the server is ending"}}
    return httpx.Response(503, json=told, headers={"Retry-After": "5"})


def short(request: httpx.Request) -> httpx.Response:
    """An answer that had begun when the server had no file descriptor left."""
    told = {"error": {"type": "Unavailable", "message": "no file descriptor left"}, "status": 503}
    return httpx.Response(200, text=f"event: ready\ndata: {{}}\n\nevent: error\ndata: {json.dumps(told)}\n\n")


def torn(request: httpx.Request) -> httpx.Response:
    return httpx.Response(200, text="event: ready\ndata: {}\n\n")


def test_a_plan_whose_answer_was_lost_is_made_once(agent: Agent, clock: Clock) -> None:
    """Also if something was observed in between. Without its number the server would have made another."""
    before = agent.number
    for stream, trouble in (
        (False, late), (True, late), (False, busy), (True, busy), (False, ending), (True, ending), (True, torn),
        (True, short),
    ):  # fmt: skip

        def observed(request: httpx.Request, trouble: Answer = trouble) -> httpx.Response:
            agent.observe([{"id": f"mug_{agent.number}", "category": "object", "type": "mug"}])
            return trouble(request)

        robot = client(served(agent, observed)).agent("kitchen")
        heard: list[Any] = []
        decision = robot.plan("get the mug", SKILLS, heard.append if stream else None)
        before += 1
        assert decision.number == agent.number == before and decision.skill in SKILLS
        assert bool(heard) == stream
        robot.report(Outcome(False, "stuck"))
        assert robot.about().decisions == before


def test_who_was_overtaken_is_told_so_and_can_go_on(agent: Agent) -> None:
    robot = client(served(agent)).agent("kitchen")
    robot.plan("get the mug", SKILLS)
    robot.report(Outcome(True))
    other = agent.plan("get the cup", SKILLS).number
    with pytest.raises(ServerError, match=f"the last decision is number {other}") as error:
        robot.plan("get the mug", SKILLS)
    assert error.value.status == 409
    robot.report(Outcome(False, "it was not carried out"))
    assert agent.dump()["planner"]["turns"][-1][1:] == [False, "it was not carried out"]
    assert robot.plan("get the mug", SKILLS).number == other + 1


def test_patience_begins_with_the_first_failure(clock: Clock) -> None:
    """So an answer that comes too late is asked for again, however long it was waited for."""
    asked: list[float] = []

    def slow(request: httpx.Request) -> httpx.Response:
        asked.append(clock.now)
        clock.sleep(TIMEOUT)
        raise httpx.ReadTimeout("timed out", request=request)

    def counted(request: httpx.Request) -> httpx.Response:
        asked.append(clock.now)
        return busy(request)

    with pytest.raises(ServerError, match="does not answer"):
        client(slow).agents()
    assert len(asked) == 2 and clock.now <= 2 * TIMEOUT + PATIENCE
    clock.now, asked[:] = 0.0, []
    with pytest.raises(ServerError, match="come again"):
        client(counted).agents()
    assert 28 <= clock.now <= PATIENCE and len(asked) == 16


@pytest.mark.parametrize(
    "call",
    [
        lambda agent: agent.report(False),
        lambda agent: agent.report({"ok": False}),
        lambda agent: agent.finish("no"),
        lambda agent: agent.observe(None),
        lambda agent: agent.save(None),
    ],
)
def test_a_value_of_the_wrong_type_is_refused(agent: Agent, call: Callable[[RemoteAgent], Any]) -> None:
    remote = client(served(agent)).agent("kitchen")
    with pytest.raises(KeepError, match="give|name"):
        call(remote)


def test_names_are_no_paths_and_no_questions() -> None:
    asked: list[bytes] = []

    def answer(request: httpx.Request) -> httpx.Response:
        asked.append(request.url.raw_path)
        return httpx.Response(204)

    for name in ("kitchen#old", "kitchen?old", "kitchen/memory"):
        client(answer).delete(name)
    assert asked == [b"/v1/agents/kitchen%23old", b"/v1/agents/kitchen%3Fold", b"/v1/agents/kitchen%2Fmemory"]


@pytest.mark.parametrize("url", ["localhost:9105", "ftp://robots", "", "http://", "http://a:b", "robots"])
def test_a_wrong_url_is_named_at_once(url: str) -> None:
    with pytest.raises(ConfigError, match="such as http://localhost:8000"):
        Client(url)


def test_what_can_never_be_sent_is_not_tried_again(clock: Clock) -> None:
    def refused(request: httpx.Request) -> httpx.Response:
        raise httpx.LocalProtocolError("illegal header value", request=request)

    with pytest.raises(ServerError, match="illegal header"):
        client(refused).agents()
    assert clock.now == 0


@pytest.mark.parametrize(
    "page",
    ["<html>sign in</html>", "[]", "7", '{"id": "kitchen"}', "event: ready\ndata: <html>\n\n", "[" * 100_000],
    ids=lambda page: page[:9],
)
def test_a_page_of_somebody_else_is_no_answer(clock: Clock, tmp_path: Path, page: str) -> None:
    """A proxy answers with status 200, too: nothing counts as done then."""
    connection = client(lambda request: httpx.Response(200, text=page))
    (tmp_path / "memory").write_text("memory")
    robot = connection.agent("kitchen", create=False)
    for call in (
        connection.agents, lambda: connection.agent("kitchen"), robot.about, lambda: robot.observe([]),
        lambda: robot.plan("get the mug", SKILLS), lambda: robot.report(Outcome(True)), lambda: robot.finish(True),
        lambda: robot.load(tmp_path / "memory"), lambda: robot.save(tmp_path / "saved"),
    ):  # fmt: skip
        with pytest.raises(ServerError, match="no server of KEEP Agent"):
            call()
    robot._number = 1
    with pytest.raises(ServerError):
        robot.plan("get the mug", SKILLS, lambda cost: None)
    assert not (tmp_path / "saved").exists()


def test_a_task_that_ended_with_a_lost_plan_is_not_in_the_way_of_the_next(agent: Agent, clock: Clock) -> None:
    """Nobody else has planned: the decision that was not heard of is over with its task."""
    inner, down = served(agent), True

    def answer(request: httpx.Request) -> httpx.Response:
        told = inner(request)
        return late(request) if down and request.url.path.endswith("plan") else told

    robot = client(answer).agent("kitchen")
    robot.about()
    before = agent.number
    with pytest.raises(ServerError, match="does not answer"):
        robot.plan("get the tray", SKILLS)
    assert agent.number == before + 1
    robot.finish(False)
    down = False
    assert robot.plan("get the cup", SKILLS).number == before + 2


def test_a_report_of_who_was_restarted_is_told_once(agent: Agent, clock: Clock) -> None:
    robot = client(served(agent)).agent("kitchen")
    number = robot.plan("get the mug", SKILLS).number
    answers = iter([late, busy])
    inner = served(agent)

    def answer(request: httpx.Request) -> httpx.Response:
        told = inner(request)
        return next(answers, lambda request: told)(request) if request.url.path.endswith("report") else told

    client(answer).agent("kitchen").report(Outcome(False, "stuck"))
    assert agent.number == number
    assert agent.dump()["planner"]["turns"][-1][1:] == [False, "stuck"]


def test_deleting_again_after_a_lost_answer_is_no_error(clock: Clock) -> None:
    gone: list[str] = []

    def answer(request: httpx.Request) -> httpx.Response:
        if gone:
            return httpx.Response(404, json={"error": {"type": "NotFound", "message": "no such agent"}})
        gone.append(request.url.path)
        return late(request)

    client(answer).delete("kitchen")
    with pytest.raises(ServerError, match="no such agent"):
        client(answer).delete("kitchen")


def test_an_answer_that_cannot_be_decoded_is_named(clock: Clock) -> None:
    def answer(request: httpx.Request) -> httpx.Response:
        return httpx.Response(200, headers={"Content-Encoding": "gzip"}, content=b"no gzip")

    with pytest.raises(ServerError, match="does not answer"):
        client(answer).agents()
    assert clock.now == 0

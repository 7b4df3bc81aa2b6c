"""Parallel planning requests up to the limits, and planning over websockets."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from functools import partial
from typing import Any

import pytest

from keep_agent.agent.client import Client
from keep_agent.agent.durable import DurableAgent
from keep_agent.server.planning.registry import AgentRegistry
from keep_agent.server.planning.websocket import OVERHEAD, Inbox
from keep_agent.server.settings import Settings
from tests.keep_agent.server.conftest import SETTINGS, Serve
from tests.keep_agent.server.planning.conftest import ALL, KITCHEN, MUG, SCOPED, SKILLS
from tests.keep_agent.server.serving import GatedMethod, LiveServer, bearer, post
from tests.threads import at_once
from tests.waiting import PATIENCE, until


def limited(**limits: int) -> Settings:
    return replace(SETTINGS, limits=replace(SETTINGS.limits, **limits))


def test_requests_above_the_limit_get_a_time_to_retry(serve: Serve, monkeypatch: pytest.MonkeyPatch) -> None:
    refusals, plan = list[int](), DurableAgent.plan

    def slowly(agent: DurableAgent, *arguments: Any, **more: Any) -> Any:
        until(lambda: refusals)  # requests overlap, however late their threads begin
        return plan(agent, *arguments, **more)

    monkeypatch.setattr(DurableAgent, "plan", slowly)
    with (
        serve(settings=limited(requests=1)) as server,
        Client(server.url, timeout=PATIENCE, patience=PATIENCE) as client,
    ):
        agents = [client.agent(f"robot-{number}") for number in range(6)]
        client.agent("hasty")  # made first; it has no observations, only plans

        def rush() -> None:
            for _ in range(20):
                answer = server.http.post("/v1/agents/hasty/plan", json={"instruction": "go", "skills": SKILLS})
                if answer.status_code == 429:
                    refusals.append(int(answer.headers["retry-after"]))

        at_once(*[rush] * 4, *(partial(agent.observe, [MUG]) for agent in agents))
        assert refusals and min(refusals) >= 1
        assert [agent.about().segments for agent in agents] == [1] * 6


@contextmanager
def halfway(server: LiveServer, agent: str, token: str) -> Iterator[None]:
    """Keep a planning request running: its body is incomplete."""
    path = f"/v1/agents/{agent}/memory"
    with server.socket() as instance:
        instance.sendall(post(path, b"", Content_Length="1000", **bearer(token)).replace(b"POST", b"PUT", 1))
        until(lambda: "keep_agent_plans_inside 1.0" in server.http.get("/metrics").text)
        yield


def test_planning_and_conversations_have_separate_limits(serve: Serve) -> None:
    make = partial(serve, "kitchen", tokens=SCOPED, settings=limited(requests=1), token=ALL)
    with make() as server, halfway(server, "kitchen", ALL):
        assert server.http.get("/v1/agents").status_code == 429
        body = {"prompt": "go to cabinet_1", "tokens": 1}
        assert server.http.post("/v1/agents/kitchen/generate", json=body).status_code == 200


def test_requests_of_one_agent_leave_room_for_others(serve: Serve) -> None:
    make = partial(serve, "kitchen", "garage", tokens=SCOPED, settings=limited(per_agent=1), token=ALL)
    with make() as server, halfway(server, "garage", ALL):
        refusal = server.http.get("/v1/agents/garage")
        assert refusal.status_code == 429 and "this agent" in refusal.json()["error"]["message"]
        assert server.http.get("/v1/agents/kitchen").status_code == 200
        assert server.http.get("/v1/agents/garage", headers=bearer(KITCHEN)).status_code == 403


def test_a_socket_that_wakes_an_agent_counts_as_a_request(serve: Serve, monkeypatch: pytest.MonkeyPatch) -> None:
    waking = GatedMethod(monkeypatch, AgentRegistry, "_load")
    with serve("kitchen", "garage", settings=limited(requests=1)) as server:
        looking = threading.Thread(target=lambda: server.http.get("/v1/agents/garage"))
        looking.start()
        assert waking.started.acquire(timeout=PATIENCE)
        assert server.denied("/v1/agents/kitchen/socket").status_code == 429
        assert not waking.started.acquire(blocking=False), "the kitchen stays asleep"
        waking.go.set()
        looking.join()
        with server.websocket("/v1/agents/kitchen/socket") as socket:
            socket.send(json.dumps({"type": "observe", "facts": []}))
            assert json.loads(socket.recv(PATIENCE)) == {"type": "observed"}


def test_a_websocket_serves_all_calls_of_a_robot(serve: Serve) -> None:
    with serve("kitchen") as server, server.websocket("/v1/agents/kitchen/socket") as socket:

        def say(**message: Any) -> dict[str, Any]:
            socket.send(json.dumps(message))
            return json.loads(socket.recv(PATIENCE))

        fact = {"id": "mug_1", "category": "object", "type": "mug"}
        assert say(type="observe", facts=[fact]) == {"type": "observed"}
        assert say(type="plan", instruction="get the mug", skills=SKILLS)["type"] == "ready"
        decision = json.loads(socket.recv(PATIENCE))
        assert decision["type"] == "decision" and decision["skill"] in SKILLS
        assert say(type="report", ok=True, number=decision["number"]) == {"type": "reported"}
        assert say(type="finish", success=True) == {"type": "finished"}
        for wrong in ({"type": "fly"}, {"type": "plan"}, {"type": "report", "ok": True}, {}):
            answer = say(**wrong)
            assert (answer["type"], answer["status"]) == ("error", 400) and answer["error"]["message"]
        for text in ("{", "[" * 999, '{"type": "observe", "facts": [NaN]}', '"\\ud800"'):
            socket.send(text)
            answer = json.loads(socket.recv(PATIENCE))
            assert answer["type"] == "error" and answer["error"]["message"][0].isalpha(), answer
        socket.send(b"\xff\xfe")
        assert json.loads(socket.recv(PATIENCE))["type"] == "error"
        assert say(type="observe", facts=[fact]) == {"type": "observed"}


def test_messages_and_pings_are_answered_during_a_plan(serve: Serve, monkeypatch: pytest.MonkeyPatch) -> None:
    """A client would close the connection if pings behind unread messages got no pongs."""
    planning = GatedMethod(monkeypatch, DurableAgent, "plan")
    with serve("kitchen") as server, server.websocket("/v1/agents/kitchen/socket") as socket:
        socket.send(json.dumps({"type": "plan", "instruction": "go", "skills": SKILLS}))
        assert planning.started.acquire(timeout=PATIENCE)
        for _ in range(3):
            socket.send(json.dumps({"type": "observe", "facts": []}))
            assert socket.ping().wait(PATIENCE)
        planning.go.set()
        reply_types = [json.loads(socket.recv(PATIENCE))["type"] for _ in range(5)]
        assert reply_types[-3:] == ["observed"] * 3 and "observed" not in reply_types[:-3]


def test_no_agent_and_no_token_holds_all_websockets(serve: Serve) -> None:
    settings = replace(SETTINGS, sockets=4, agent_sockets=2)
    names = "kitchen", "garage", "attic"
    with serve(*names, tokens=SCOPED, settings=settings, token=ALL) as server, ExitStack() as sockets:

        def open_page(name: str, token: str) -> None:
            sockets.enter_context(server.websocket(f"/v1/agents/{name}/socket", **bearer(token)))

        def refusals(name: str, token: str) -> str:
            answer = server.denied(f"/v1/agents/{name}/socket", **bearer(token))
            assert answer.status_code == 429 and int(answer.headers["retry-after"]) >= 1
            return json.loads(answer.body)["error"]["message"]

        for _ in range(2):
            open_page("garage", ALL)
        assert "of this agent" in refusals("garage", ALL)
        open_page("attic", ALL)
        assert "of this token" in refusals("kitchen", ALL)
        open_page("kitchen", KITCHEN)
        assert "websockets at once" in refusals("kitchen", KITCHEN)


def test_without_tokens_websockets_have_no_share_per_token(serve: Serve) -> None:
    path, settings = "/v1/agents/kitchen/socket", replace(SETTINGS, sockets=2)
    with serve("kitchen", settings=settings) as server, server.websocket(path), server.websocket(path):
        pass


def test_messages_stay_in_order_and_within_the_inboxs_bytes() -> None:
    async def talk() -> None:
        inbox, sizes, inside, received = Inbox(10 + 2 * OVERHEAD), [4, 6, 1, 199, 1], [], []

        async def put() -> None:
            for number, size in enumerate(sizes):
                await inbox.put(bytes([number]) * size)
                inside.append(size)
            await inbox.close()

        putting = asyncio.create_task(put())
        for _ in range(99):
            await asyncio.sleep(0)
        assert inside == [4, 6], "the third has to wait"
        async for message in inbox:
            received.append((message[0], len(message)))
            waiting = inside[len(received) :]
            assert sum(waiting) + OVERHEAD * len(waiting) <= 10 + 2 * OVERHEAD or waiting == [199]
        await putting
        assert received == list(enumerate(sizes))

    asyncio.run(talk())


def test_empty_messages_are_counted_and_let_other_tasks_run() -> None:
    async def talk() -> None:
        inbox, turns = Inbox(10 * OVERHEAD), 0

        async def put() -> None:
            for _ in range(11):
                await inbox.put(b"")
            await inbox.close()

        putting = asyncio.create_task(put())
        for _ in range(99):
            await asyncio.sleep(0)
        assert not putting.done(), "the eleventh has to wait"

        async def rest() -> None:
            nonlocal turns
            while turns := turns + 1:
                await asyncio.sleep(0)

        working = asyncio.create_task(rest())
        received = [turns async for _ in inbox]  # each is answered at once
        assert len(received) == 11 and len(set(received)) > 5
        working.cancel()
        await putting

    asyncio.run(talk())


def test_the_end_of_an_inbox_reaches_a_waiting_reader() -> None:
    async def talk() -> list[bytes]:
        async def read() -> list[bytes]:
            return [message async for message in inbox]

        inbox = Inbox(10)
        reading = asyncio.create_task(read())
        await asyncio.sleep(0)
        await inbox.close()
        return await reading

    assert asyncio.run(talk()) == []

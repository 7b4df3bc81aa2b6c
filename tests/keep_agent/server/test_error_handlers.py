"""Errors of a server that ends during requests, or has no file descriptor left."""

from __future__ import annotations

import asyncio
import errno
import logging
import threading
from collections.abc import AsyncIterator, Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import anyio
import httpx
import pytest
from fastapi import APIRouter, WebSocket
from starlette.responses import StreamingResponse
from websockets.exceptions import ConnectionClosed

from keep_agent.agent.durable import DurableAgent
from keep_agent.errors import DataError
from keep_agent.server.app import make_app
from keep_agent.server.chat.server_sent_events import event, with_error_event
from keep_agent.server.planning.routes import PlanningService
from tests.keep_agent.server.conftest import OPEN, Service
from tests.keep_agent.server.planning.conftest import SKILLS
from tests.keep_agent.server.serving import GatedMethod, LiveServer, events, serving
from tests.waiting import PATIENCE, until

REQUESTS = 8


class Stuck:
    """Routes that wait for a release: on the event loop, in a thread, and after the first event."""

    def __init__(self) -> None:
        self.entered = 0
        self.released = threading.Event()
        self.router = APIRouter()
        for path, route in (("/loop", self.loop), ("/thread", self.run_in_thread), ("/stream", self.stream)):
            self.router.add_api_route(path, route, methods=["POST"], response_model=None)
        self.router.add_api_websocket_route("/socket", self.socket)

    async def loop(self) -> None:
        self.entered += 1
        await asyncio.Event().wait()

    async def socket(self, socket: WebSocket) -> None:
        await socket.accept()
        await self.loop()

    async def run_in_thread(self) -> None:
        self.entered += 1
        await anyio.to_thread.run_sync(self.released.wait, limiter=anyio.CapacityLimiter(1))

    async def stream(self) -> StreamingResponse:
        async def parts() -> AsyncIterator[bytes]:
            yield event({}, "ready")
            self.entered += 1
            await asyncio.Event().wait()

        return StreamingResponse(with_error_event("/stream", parts()), media_type="text/event-stream")


def sent(server: LiveServer, path: str, **more: Any) -> httpx.Response:
    """Send a request by a client of its own, which outlives the server."""
    return httpx.post(f"{server.url}{path}", timeout=PATIENCE, **more)


def tracebacks(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records if record.exc_info]


def await_503(server: LiveServer, path: str) -> None:
    answer = sent(server, path)
    assert answer.status_code == 503 and int(answer.headers["retry-after"]) > 0
    assert "the server is shutting down" in answer.json()["error"]["message"]


def cut_off(server: LiveServer) -> None:
    with pytest.raises(httpx.RemoteProtocolError, match="without sending complete"):
        sent(server, "/stream")


def closed(server: LiveServer) -> None:
    with server.websocket("/socket") as socket, pytest.raises(ConnectionClosed):
        socket.recv()


@pytest.mark.parametrize(
    "ends", [partial(await_503, path="/loop"), partial(await_503, path="/thread"), cut_off, closed]
)
def test_an_ending_server_ends_requests(ends: Callable[[LiveServer], None], caplog: pytest.LogCaptureFixture) -> None:
    stuck = Stuck()
    app = make_app([stuck.router], tokens=OPEN)
    with caplog.at_level(logging.INFO), ThreadPoolExecutor(REQUESTS) as pool:
        with serving(app, grace=0, log_config=None) as server:
            futures = [pool.submit(ends, server) for _ in range(REQUESTS)]
            until(lambda: stuck.entered == REQUESTS)
        assert [future.result() for future in futures] == [None] * REQUESTS
        stuck.released.set()
    assert not tracebacks(caplog)


def test_plans_of_an_ending_server_are_answered_and_stored(
    service: Service, tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A client can repeat them with the number of the last decision."""
    planning, ending = GatedMethod(monkeypatch, DurableAgent, "plan"), PlanningService.run_in_thread

    async def release(planner: PlanningService, work: Callable[[], Any]) -> Any:
        if work == planner.registry.close:
            planning.go.set()
        return await ending(planner, work)

    monkeypatch.setattr(PlanningService, "run_in_thread", release)
    body = {"instruction": "get the mug", "skills": SKILLS, "after": 0}

    def send_request(server: LiveServer) -> httpx.Response:
        return sent(server, "/v1/agents/kitchen/plan", json=body)

    with caplog.at_level(logging.INFO), ThreadPoolExecutor(2) as pool:
        with serving(service(tmp_path), grace=0, log_config=None) as server:
            server.http.post("/v1/agents", json={"id": "kitchen"})
            futures = [pool.submit(send_request, server) for _ in range(2)]
            for _ in futures:
                assert planning.started.acquire(timeout=PATIENCE)
        assert [future.result().status_code for future in futures] == [503, 503]
    assert not tracebacks(caplog)
    with serving(service(tmp_path)) as server:
        assert send_request(server).json()["number"] == 1


@pytest.mark.parametrize("hidden", [False, True])
def test_a_lack_of_file_descriptors_is_answered_with_503(hidden: bool, caplog: pytest.LogCaptureFixture) -> None:
    router, error = APIRouter(), OSError(errno.EMFILE, "Too many open files")

    def fail() -> None:
        if hidden:
            raise DataError("the memory cannot be read") from error
        raise error

    @router.post("/whole")
    async def whole() -> None:
        fail()

    @router.post("/stream", response_model=None)
    async def stream() -> StreamingResponse:
        async def parts() -> AsyncIterator[bytes]:
            yield event({}, "ready")
            fail()

        return StreamingResponse(with_error_event("/stream", parts()), media_type="text/event-stream")

    with serving(make_app([router], tokens=OPEN), log_config=None) as server:
        answer = server.http.post("/whole")
        assert (answer.status_code, answer.json()["error"]["type"]) == (503, "Unavailable")
        assert int(answer.headers["retry-after"]) > 0 and "file descriptor" in answer.json()["error"]["message"]
        assert events(server.http.post("/stream").text)[-1][1] == answer.json() | {"status": 503}
    assert not tracebacks(caplog)

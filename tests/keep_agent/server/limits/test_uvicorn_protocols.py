"""HTTP protocol of ``keep-agent serve``: requests that begin and never end, and bodies with two lengths."""

from __future__ import annotations

import asyncio
import re
import time
from http.client import HTTPResponse
from typing import ClassVar

import pytest
from fastapi import APIRouter, Request, WebSocket

from keep_agent.server.limits.uvicorn_protocols import TimedProtocol
from tests.keep_agent.server.serving import LiveServer, live_server, post, status
from tests.waiting import until

router = APIRouter()


@router.websocket("/socket")
async def socket(websocket: WebSocket) -> None:
    await websocket.accept()
    await websocket.send_text(await websocket.receive_text())
    await websocket.close()


@router.post("/json")
async def json(request: Request) -> None:
    await request.json()


class Hasty(TimedProtocol):
    seconds = 0.4  # for tests that can only end with the time-out


class Stepped(TimedProtocol):
    """A protocol whose deadline passes when a test calls `over`."""

    seconds = 3600.0
    instances: ClassVar[list[Stepped]] = []
    received_bytes = 0  # bytes

    def connection_made(self, transport: asyncio.Transport) -> None:
        super().connection_made(transport)
        self.instances.append(self)

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        self.received_bytes += len(data)

    def over(self) -> None:
        self.loop.call_soon_threadsafe(self.timeout_keep_alive_handler)

    @property
    def waited_for(self) -> bool:
        return self._deadline is not None


hasty = live_server(router, http=Hasty)
stepped = live_server(router, http=Stepped)


@pytest.mark.parametrize("sent", [b"", b"GET /heal", b"GET /healthz HTTP/1.1\r\nHost: localhost\r\nX: "])
def test_an_empty_or_incomplete_request_times_out(stepped: LiveServer, sent: bytes) -> None:
    before = len(Stepped.instances)
    with stepped.socket() as client:
        client.sendall(sent)
        until(lambda: len(Stepped.instances) > before and Stepped.instances[before].received_bytes == len(sent))
        assert Stepped.instances[before].waited_for
        Stepped.instances[before].over()
        assert client.recv(10) == b""


def test_a_slow_request_times_out(hasty: LiveServer) -> None:
    with pytest.raises(OSError), hasty.socket() as client:
        while True:
            client.sendall(b"x")
            time.sleep(0.05)


def test_a_connection_is_kept_between_requests_and_timed_within_them(stepped: LiveServer) -> None:
    ask = b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n"
    with stepped.socket() as client:
        for _ in range(3):
            client.sendall(ask)
            answer = HTTPResponse(client)
            answer.begin()
            assert answer.status == 200 and answer.read()
            until(lambda: not Stepped.instances[-1].waited_for)  # no deadline between requests
        client.sendall(ask[:10])
        connection = Stepped.instances[-1]
        until(lambda: connection.waited_for)
        connection.over()
        assert client.recv(10) == b""


def test_a_silent_websocket_stays_open(stepped: LiveServer) -> None:
    with stepped.websocket("/socket") as client:
        connection = Stepped.instances[-1]
        until(lambda: not connection.waited_for)
        client.send("still here")
        assert client.recv() == "still here"


def test_a_body_with_two_lengths_is_refused_with_the_connection(stepped: LiveServer) -> None:
    """A proxy may have used the other length."""
    smuggled = b"0\r\n\r\n" + post("/json", b"{}")
    answer = stepped.raw(post("/json", smuggled, Transfer_Encoding="chunked", Content_Length="5"))
    assert status(answer) == 400 and answer.count(b"HTTP/1.1") == 1 and b"send one of them" in answer
    chunked = post("/json", b"2\r\n{}\r\n0\r\n\r\n", Transfer_Encoding="chunked", Connection="close")
    assert status(stepped.raw(re.sub(rb"Content-Length: \d+\r\n", b"", chunked))) == 200

"""A real server in a thread, with clients, and raw bytes for requests that no client sends."""

from __future__ import annotations

import json
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import httpx
import pytest
import uvicorn
from fastapi import APIRouter, FastAPI
from websockets.exceptions import InvalidStatus
from websockets.http11 import Response
from websockets.sync.client import ClientConnection

from keep_agent.server.app import make_app
from keep_agent.server.auth.tokens import Access, TokenEntry, Tokens, digest
from keep_agent.server.limits.request_limits import RequestLimits
from keep_agent.server.limits.uvicorn_protocols import RefusableSocket
from tests.sockets import connect
from tests.waiting import PATIENCE

OPEN = Tokens(open=True)


def entry(token: str, name: str, *agents: str) -> TokenEntry:
    """Return the entry of a token for ``agents``, or for all agents if none are given."""
    return TokenEntry(Access(name, frozenset(agents) if agents else None), digest(token))


def patient(limits: RequestLimits) -> RequestLimits:
    return replace(limits, body_seconds=PATIENCE, send_seconds=PATIENCE)


@dataclass(frozen=True)
class LiveServer:
    port: int
    http: httpx.Client

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @contextmanager
    def socket(self, seconds: float = PATIENCE) -> Iterator[socket.socket]:
        with socket.create_connection(("127.0.0.1", self.port), seconds) as instance:
            yield instance

    def raw(self, *parts: bytes, pause: float = 0.0, seconds: float = PATIENCE) -> bytes:
        """Return all bytes of the answer to ``parts`` until the server ends the connection."""
        with self.socket(seconds) as instance:
            for part in parts:
                instance.sendall(part)
                time.sleep(pause)
            return b"".join(iter(lambda: instance.recv(65536), b""))

    def websocket(self, path: str, **headers: str) -> ClientConnection:
        return connect(f"ws://127.0.0.1:{self.port}{path}", additional_headers=headers)

    def denied(self, path: str, **headers: str) -> Response:
        with pytest.raises(InvalidStatus) as refusal, self.websocket(path, **headers):
            pass
        return refusal.value.response


class GatedMethod:
    """Method of a class, patched so that its calls wait for ``go``."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, owner: type, name: str) -> None:
        self.started, self.go, method = threading.Semaphore(0), threading.Event(), getattr(owner, name)

        def slowly(*arguments: Any, **more: Any) -> Any:
            self.started.release()
            assert self.go.wait(PATIENCE)
            return method(*arguments, **more)

        monkeypatch.setattr(owner, name, slowly)


def bearer(token: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {token}"}


def status(answer: bytes) -> int:
    return int(answer.split(b" ", 2)[1])


def post(path: str, body: bytes, **headers: str) -> bytes:
    arguments = {name.replace("_", "-"): value for name, value in headers.items()}
    lines = {"Host": "localhost", "Content-Type": "application/json", "Content-Length": str(len(body)), **arguments}
    head = "".join(f"{name}: {value}\r\n" for name, value in lines.items())
    return f"POST {path} HTTP/1.1\r\n{head}\r\n".encode() + body


@contextmanager
def serving(app: FastAPI, token: str | None = None, grace: int = 5, **knobs: Any) -> Iterator[LiveServer]:
    """Serve ``app`` at a free port, as `keep-agent serve` does; its end waits ``grace`` seconds for requests."""
    arguments = {"ws": RefusableSocket, "log_level": "warning", "ws_ping_interval": None}
    arguments |= {"timeout_keep_alive": int(PATIENCE), "timeout_graceful_shutdown": grace}
    server = uvicorn.Server(uvicorn.Config(app, port=0, **arguments | knobs))
    thread = threading.Thread(target=server.run, daemon=True)
    thread.start()
    while not server.started:
        assert thread.is_alive()
        time.sleep(0.01)
    port = server.servers[0].sockets[0].getsockname()[1]
    headers = {} if token is None else bearer(token)
    try:
        with httpx.Client(base_url=f"http://127.0.0.1:{port}", headers=headers, timeout=PATIENCE) as client:
            yield LiveServer(port, client)
    finally:
        server.should_exit = True
        thread.join(PATIENCE)
        assert not thread.is_alive(), "the server did not end"


def live_server(router: APIRouter, http: Any = "auto", tokens: Tokens = OPEN, **options: Any) -> Any:
    """Return a fixture of a module: a server of ``router``, with ``options`` of `make_app`."""

    @pytest.fixture(scope="module")
    def server() -> Iterator[LiveServer]:
        with serving(make_app([router], tokens=tokens, **options), http=http) as instance:
            yield instance

    return server


def events(text: str) -> list[tuple[str, Any]]:
    """Return names and data of server-sent events."""
    result = []
    for block in text.split("\n\n"):
        lines = dict(line.partition(": ")[::2] for line in block.splitlines() if not line.startswith(":"))
        if "data" in lines:
            data = lines["data"]
            result.append((lines.get("event", ""), data if data == "[DONE]" else json.loads(data)))
    return result

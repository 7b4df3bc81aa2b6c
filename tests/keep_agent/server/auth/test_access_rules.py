"""Access by tokens over HTTP and websockets, foreign web pages, and tokens that change while a server runs."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import httpx
import pytest
from fastapi import APIRouter, WebSocket
from websockets.exceptions import ConnectionClosed, InvalidStatus
from websockets.sync.client import ClientConnection

from keep_agent.server.app import make_app
from keep_agent.server.auth.access_rules import RULES, Caller, Need, Rule
from keep_agent.server.auth.token_file import add_token, load_tokens, remove_token, write_tokens
from keep_agent.server.auth.tokens import Access, TokenEntry, digest
from keep_agent.server.command import set_up_log
from keep_agent.server.error_handlers import Busy, error_response
from tests.keep_agent.server.conftest import TOKENS
from tests.keep_agent.server.serving import LiveServer, bearer, live_server, serving, status
from tests.sockets import connect

router = APIRouter()
AGENT_RULES = (Rule("/agents/{agent}", Need.AGENT), Rule("/agents/{agent}/{rest:path}", Need.AGENT), *RULES)


@router.get("/agents/{agent}")
async def agent(agent: str, caller: Caller) -> str:
    return f"{caller.name}: {agent}"


@router.websocket("/agents/{agent}/socket")
async def socket(websocket: WebSocket, agent: str, caller: Caller) -> None:
    await websocket.accept()
    await websocket.send_text(caller.name)
    await websocket.close()


@router.websocket("/agents/{agent}/full")
async def full(websocket: WebSocket) -> None:
    await websocket.send_denial_response(error_response(websocket.url.path, Busy("too many at once", 1)))


@router.post("/broken")
async def broken() -> None:
    raise ZeroDivisionError("the secret inside")


closed = live_server(router, tokens=TOKENS, rules=AGENT_RULES)
open_page = live_server(router, rules=AGENT_RULES)


@pytest.mark.parametrize(
    "headers",
    [{}, bearer("wrong"), {"Authorization": "Bearer"}, {"Authorization": "token-a"},
     {"Authorization": "Basic dG9rZW4tYTo="}, {"X-API-Key": "wrong"}, bearer("token-a\xe9")],
)  # fmt: skip
def test_requests_without_a_valid_token_are_refused(closed: LiveServer, headers: dict[str, str]) -> None:
    raw = {name: value.encode("latin-1") for name, value in headers.items()}
    for path in ("/agents/a", "/metrics", "/nothing"):
        answer = closed.http.get(path, headers=raw)
        assert (answer.status_code, answer.headers["www-authenticate"]) == (401, "Bearer")
        assert answer.json()["error"]["type"] == "Unauthorized"


def test_a_token_gives_access_to_its_agents(closed: LiveServer) -> None:
    assert closed.http.get("/agents/a", headers=bearer("token-a")).json() == "a: a"
    assert closed.http.get("/agents/a", headers={"X-API-Key": "token-ab"}).json() == "ab: a"
    assert closed.http.get("/agents/a", headers={"Authorization": "bearer  token-all"}).json() == "all: a"
    answers = [closed.http.get(f"/agents/{name}", headers=bearer("token-a")) for name in ("b", "unknown", "%2e%2e")]
    assert {(answer.status_code, answer.text) for answer in answers} == {(403, answers[0].text)}
    with closed.websocket("/agents/a/socket", **bearer("token-a")) as connection:
        assert connection.recv() == "a"


def test_public_routes_need_no_token_and_metrics_one_for_all_agents(closed: LiveServer) -> None:
    assert closed.http.get("/healthz").json()["status"] == "ok"
    assert closed.http.get("/openapi.json").json()["security"] == [{"bearer": []}, {"key": []}]
    assert closed.http.get("/openapi.json").json()["paths"]["/healthz"]["get"]["security"] == []
    assert closed.http.get("/metrics", headers=bearer("token-a")).status_code == 403
    assert "keep_agent_requests_total" in closed.http.get("/metrics", headers=bearer("token-all")).text
    for page in ("/docs", "/redoc"):
        assert closed.http.get(page, headers=bearer("token-all")).status_code == 404


def test_a_path_without_a_rule_needs_a_token_for_all_agents(closed: LiveServer) -> None:
    assert closed.http.post("/broken").status_code == 401
    assert closed.http.post("/broken", headers=bearer("token-ab")).status_code == 403
    assert closed.http.post("/broken", headers=bearer("token-all")).status_code == 500
    for path in ("/agents/a/../b", "//agents/a", "/agents//a", "/agents/", "/healthz/", "/AGENTS/a"):
        assert closed.raw(f"GET {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n".encode())[9:12] == b"401"


REFUSALS = (
    ("/agents/a/socket", "", 401), ("/agents/b/socket", "token-a", 403), ("/agents/a/full", "token-a", 429),
    ("/agents/a/nothing", "token-a", 403), ("/agents/a/socket", "x", 401),
)  # fmt: skip


def test_a_socket_that_is_refused_leaves_no_error_in_the_log(caplog: pytest.LogCaptureFixture) -> None:
    app = make_app([router], tokens=TOKENS, rules=AGENT_RULES)
    with serving(app, log_config=None) as server:  # at its end everything is logged
        for path, token, code in REFUSALS:
            refusal = server.denied(path, **bearer(token))
            assert refusal.status_code == code
            assert path.endswith("nothing") or b"error" in refusal.body
    assert [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING] == []


PAGES: list[dict[str, Any]] = [
    {"Host": "evil.example"}, {"Host": "evil.example:80"}, {"Host": "localhost.evil.example"}, {"Host": "0.0.0.0"},
    {"Host": "[::1"}, {"Host": "x@evil.example"}, {"Host": ""}, {"Origin": "http://evil.example"}, {"Origin": "null"},
    {"Origin": "http://127.0.0.1:1"}, {"Origin": "http://localhost"}, {"Sec-Fetch-Site": "cross-site"},
]  # fmt: skip


@pytest.mark.parametrize("headers", PAGES)
def test_pages_of_other_sites_are_refused(open_page: LiveServer, headers: dict[str, str]) -> None:
    for method, path in (("GET", "/agents/a"), ("GET", "/healthz"), ("POST", "/broken")):
        assert open_page.http.request(method, path, headers=headers).status_code == 403
    if "Host" in headers:
        return  # the package websockets sends its own Host header
    assert open_page.denied("/agents/a/socket", **headers).status_code == 403


def test_two_host_headers_are_refused(open_page: LiveServer) -> None:
    hosts = b"Host: localhost\r\nHost: evil.example"
    answer = open_page.raw(b"GET /healthz HTTP/1.1\r\n" + hosts + b"\r\nConnection: close\r\n\r\n")
    assert status(answer) in (400, 403)


def test_pages_of_this_server_and_programs_have_access(open_page: LiveServer) -> None:
    single = f"127.0.0.1:{open_page.port}"
    for headers in ({}, {"Host": "localhost"}, {"Host": single, "Origin": f"http://{single}"}, {"Host": "[::1]:8000"}):
        assert open_page.http.get("/agents/a", headers=headers).json() == "open: a"
    with connect(f"ws://{single}/agents/a/socket", origin=f"http://{single}") as connection:
        assert connection.recv() == "open"


def test_an_unexpected_error_is_logged_and_not_sent(open_page: LiveServer, caplog: pytest.LogCaptureFixture) -> None:
    answer = open_page.http.post("/broken")
    assert answer.status_code == 500
    assert "secret" not in answer.text and "ZeroDivision" not in answer.text
    assert "the secret inside" in caplog.text
    assert open_page.http.get("/healthz").status_code == 200


def test_unknown_paths_and_methods_share_a_label(open_page: LiveServer) -> None:
    for number in range(5):
        assert open_page.http.get(f"/nothing/{number}").status_code == 404
        assert open_page.http.request("PROPFIND", "/healthz").status_code == 405
        assert open_page.http.get(f"/agents/{number}").status_code == 200
    figures = open_page.http.get("/metrics").text
    assert 'method="GET",route="other",status="404"} 5.0' in figures
    assert "PROPFIND" not in figures and "nothing" not in figures
    assert 'route="/agents/{agent}"' in figures


echo_router = APIRouter()
ECHO = "/v1/agents/a/echo"


@echo_router.websocket("/v1/agents/{agent}/echo")
async def echo(socket: WebSocket) -> None:
    await socket.accept()
    async for text in socket.iter_text():
        await socket.send_text(text)


@dataclass(frozen=True)
class LiveTokens:
    """Server with its file of tokens: the token ``item`` is for agent a, ``all`` for all agents."""

    server: LiveServer
    file: Path

    def get(self, token: str, path: str = "/v1/agents/a/nothing") -> httpx.Response:
        return self.server.http.get(path, headers=bearer(token))

    def socket(self, token: str) -> ClientConnection:
        return self.server.websocket(ECHO, **bearer(token))


def item(expires: datetime | None = None) -> TokenEntry:
    return TokenEntry(Access("one", frozenset({"a"})), digest("one"), expires)


@pytest.fixture
def live(tmp_path: Path) -> Iterator[LiveTokens]:
    file = tmp_path / "tokens.json"
    write_tokens(file, [item(), TokenEntry(Access("all"), digest("all"))])
    with serving(make_app([echo_router], tokens=load_tokens(file, {}))) as server:
        yield LiveTokens(server, file)


def test_a_removed_token_is_void_without_a_restart(live: LiveTokens) -> None:
    assert live.get("one").status_code == 404
    remove_token(live.file, "one")
    assert live.get("one").status_code == 401
    assert live.get("all").status_code == 404
    add_token(live.file, TokenEntry(Access("new"), digest("new")))
    assert live.get("new").status_code == 404


def test_a_websocket_ends_with_its_token(live: LiveTokens) -> None:
    with live.socket("one") as socket, live.socket("all") as second:
        socket.send("x")
        assert socket.recv() == "x"
        remove_token(live.file, "one")
        socket.send("y")
        with pytest.raises(ConnectionClosed) as closed:
            socket.recv()
        assert closed.value.rcvd is not None and closed.value.rcvd.code == 1008
        second.send("z")
        assert second.recv() == "z"
    with pytest.raises(InvalidStatus), live.socket("one"):
        pass


@pytest.mark.parametrize("damaged", ["{", "", None, '{"tokens": [{}]}'])
def test_tokens_survive_a_damaged_file(live: LiveTokens, damaged: str | None, caplog: pytest.LogCaptureFixture) -> None:
    if damaged is None:
        live.file.unlink()
    else:
        live.file.write_text(damaged)
    for _ in range(3):
        assert (live.get("one").status_code, live.get("guess").status_code) == (404, 401)
    messages = [record.message for record in caplog.records if "stay valid" in record.message]
    assert len(messages) == 1 and str(live.file) in messages[0]
    write_tokens(live.file, [])
    assert live.get("one").status_code == 401


def test_a_change_is_read_again_after_a_failure(live: LiveTokens, monkeypatch: pytest.MonkeyPatch) -> None:
    remove_token(live.file, "one")
    with monkeypatch.context() as patch:
        refuse = Mock(side_effect=OSError(24, "Too many open files"))
        patch.setattr("keep_agent.server.auth.token_file.read_json", refuse)
        assert live.get("one").status_code == 404
    assert live.get("one").status_code == 401


def test_a_token_expires(live: LiveTokens) -> None:
    current = datetime.now(UTC)
    for expires, code in ((current + timedelta(days=1), 404), (current - timedelta(seconds=1), 401), (None, 404)):
        add_token(live.file, item(expires), replace=True)
        assert live.get("one").status_code == code


def test_the_log_has_no_token(
    live: LiveTokens, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """uvicorn logs the whole address of every websocket, also of a refused one."""
    monkeypatch.setattr(logging.root, "handlers", [])
    monkeypatch.setattr(logging.root, "level", logging.WARNING)
    set_up_log()
    monkeypatch.setattr(logging.getLogger("uvicorn.error"), "level", logging.INFO)
    for name in ("uvicorn.error", "uvicorn"):
        monkeypatch.setattr(logging.getLogger(name), "propagate", True)
    for query in ("token=SECRET", "%74oken=SECRET", "api_key=SECRET", "SECRET", "a='SECRET", 'a="SECRET'):
        live.server.denied(f"{ECHO}?{query}")
    with live.server.websocket(f"{ECHO}?step=3&token=SECRET&x=1", **bearer("one")) as socket:
        socket.send("x")
        assert socket.recv() == "x"
    logged = capsys.readouterr().err
    assert logged.count('/v1/agents/a/echo?***" 401') == 6 and '/v1/agents/a/echo?***" [accepted]' in logged
    assert "SECRET" not in logged

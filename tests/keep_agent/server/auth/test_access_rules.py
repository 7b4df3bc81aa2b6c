"""Access by tokens over HTTP and websockets, and web pages that try without."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from typing import Any

import pytest
from fastapi import APIRouter, WebSocket

from keep_agent.server.app import make_app
from keep_agent.server.auth.access_rules import RULES, Caller, Need, Rule
from keep_agent.server.error_handlers import Busy, answer_to
from tests.keep_agent.server.conftest import OPEN, TOKENS
from tests.keep_agent.server.serving import LiveServer, bearer, serving, status
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
    await websocket.send_denial_response(answer_to(websocket.url.path, Busy("too many at once", 1)))


@router.post("/broken")
async def broken() -> None:
    raise ZeroDivisionError("the secret inside")


@pytest.fixture(scope="module")
def closed() -> Iterator[LiveServer]:
    with serving(make_app([router], tokens=TOKENS, rules=AGENT_RULES)) as connection:
        yield connection


@pytest.fixture(scope="module")
def open_page() -> Iterator[LiveServer]:
    with serving(make_app([router], tokens=OPEN, rules=AGENT_RULES)) as connection:
        yield connection


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


def test_a_token_opens_what_it_is_for(closed: LiveServer) -> None:
    assert closed.http.get("/agents/a", headers=bearer("token-a")).json() == "a: a"
    assert closed.http.get("/agents/a", headers={"X-API-Key": "token-ab"}).json() == "ab: a"
    assert closed.http.get("/agents/a", headers={"Authorization": "bearer  token-all"}).json() == "all: a"
    answers = [closed.http.get(f"/agents/{name}", headers=bearer("token-a")) for name in ("b", "unknown", "%2e%2e")]
    assert {(answer.status_code, answer.text) for answer in answers} == {(403, answers[0].text)}


def test_some_things_need_none_and_figures_need_one_for_all(closed: LiveServer) -> None:
    assert closed.http.get("/healthz").json()["status"] == "ok"
    assert closed.http.get("/openapi.json").json()["security"] == [{"bearer": []}, {"key": []}]
    assert closed.http.get("/openapi.json").json()["paths"]["/healthz"]["get"]["security"] == []
    assert closed.http.get("/metrics", headers=bearer("token-a")).status_code == 403
    assert "keep_agent_requests_total" in closed.http.get("/metrics", headers=bearer("token-all")).text
    for page in ("/docs", "/redoc"):
        assert closed.http.get(page, headers=bearer("token-all")).status_code == 404


def test_a_path_without_a_rule_takes_a_token_for_all(closed: LiveServer) -> None:
    assert closed.http.post("/broken").status_code == 401
    assert closed.http.post("/broken", headers=bearer("token-ab")).status_code == 403
    assert closed.http.post("/broken", headers=bearer("token-all")).status_code == 500
    for path in ("/agents/a/../b", "//agents/a", "/agents//a", "/agents/", "/healthz/", "/AGENTS/a"):
        assert closed.raw(f"GET {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n".encode())[9:12] == b"401"


@pytest.mark.parametrize(("token", "name", "code"), [("", "a", 401), ("x", "a", 401), ("token-a", "b", 403)])
def test_a_socket_is_refused_before_it_opens(closed: LiveServer, token: str, name: str, code: int) -> None:
    assert closed.denied(f"/agents/{name}/socket", **bearer(token)).status_code == code


REFUSALS = (
    ("/agents/a/socket", "", 401),
    ("/agents/b/socket", "token-a", 403),
    ("/agents/a/full", "token-a", 429),
    ("/agents/a/nothing", "token-a", 403),
)


def test_a_socket_that_is_refused_leaves_no_error_in_the_log(caplog: pytest.LogCaptureFixture) -> None:
    app = make_app([router], tokens=TOKENS, rules=AGENT_RULES)
    with serving(app, log_config=None) as server:  # at its end everything is logged
        for path, token, code in REFUSALS:
            refusal = server.denied(path, **bearer(token))
            assert refusal.status_code == code
            assert path.endswith("nothing") or b"error" in refusal.body
    assert [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING] == []


def test_a_socket_opens_with_a_token(closed: LiveServer) -> None:
    with closed.websocket("/agents/a/socket", **bearer("token-a")) as connection:
        assert connection.recv() == "a"


PAGES: list[dict[str, Any]] = [
    {"Host": "evil.example"}, {"Host": "evil.example:80"}, {"Host": "localhost.evil.example"}, {"Host": "0.0.0.0"},
    {"Host": "[::1"}, {"Host": "x@evil.example"}, {"Host": ""}, {"Origin": "http://evil.example"}, {"Origin": "null"},
    {"Origin": "http://127.0.0.1:1"}, {"Origin": "http://localhost"}, {"Sec-Fetch-Site": "cross-site"},
]  # fmt: skip


@pytest.mark.parametrize("headers", PAGES)
def test_no_page_of_another_site_gets_in(open_page: LiveServer, headers: dict[str, str]) -> None:
    for method, path in (("GET", "/agents/a"), ("GET", "/healthz"), ("POST", "/broken")):
        assert open_page.http.request(method, path, headers=headers).status_code == 403
    if "Host" in headers:
        return  # websockets sends its own
    assert open_page.denied("/agents/a/socket", **headers).status_code == 403


def test_two_hosts_are_one_too_many(open_page: LiveServer) -> None:
    answer = open_page.raw(
        b"GET /healthz HTTP/1.1\r\nHost: localhost\r\nHost: evil.example\r\nConnection: close\r\n\r\n"
    )
    assert status(answer) in (400, 403)


def test_pages_of_this_server_and_programs_get_in(open_page: LiveServer) -> None:
    single = f"127.0.0.1:{open_page.port}"
    for headers in ({}, {"Host": "localhost"}, {"Host": single, "Origin": f"http://{single}"}, {"Host": "[::1]:8000"}):
        assert open_page.http.get("/agents/a", headers=headers).json() == "open: a"
    with connect(f"ws://{single}/agents/a/socket", origin=f"http://{single}") as connection:
        assert connection.recv() == "open"


def test_what_is_inside_stays_inside(open_page: LiveServer, caplog: pytest.LogCaptureFixture) -> None:
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

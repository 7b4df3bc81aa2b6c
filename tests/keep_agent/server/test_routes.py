"""Access to every route of a whole server, with the viewer's and its websockets."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator
from typing import Any

import httpx
import pytest
from starlette.routing import BaseRoute
from websockets.exceptions import InvalidStatus

from keep_agent.server.auth.access_rules import DEFAULT_RULE, Need, rule_of
from keep_agent.server.auth.tokens import Tokens
from keep_agent.server.settings import Settings
from tests.keep_agent.server.conftest import Service
from tests.keep_agent.server.serving import LiveServer, bearer, entry, serving
from tests.waiting import PATIENCE

ALICE, BOB, ALL = "token-of-alice", "token-of-bob", "token-of-all"
TOKENS = Tokens((entry(ALICE, "alice", "alice"), entry(BOB, "bob", "bob"), entry(ALL, "all")))
POLLING, SOCKET = ("/viewer/_nicegui_ws/socket.io/?EIO=4&transport=" + how for how in ("polling", "websocket"))


Whole = tuple[LiveServer, list[tuple[str, frozenset[str]]]]


def addresses(routes: Iterable[BaseRoute], prefix: str = "") -> Iterator[tuple[str, frozenset[str]]]:
    """Yield path and methods of every route: no method for a websocket, GET and POST for a mounted application."""
    for route in routes:
        path = prefix + str(getattr(route, "path", ""))
        inner = getattr(route, "routes", None) or getattr(getattr(route, "original_router", None), "routes", None)
        assert hasattr(route, "path") or inner, f"{route} has neither a path nor routes"
        if inner:
            yield from addresses(inner, path)
        elif hasattr(route, "app") and not hasattr(route, "endpoint"):
            yield f"{path}/{{rest:path}}", frozenset({"GET", "POST"})
        else:
            yield path, frozenset(getattr(route, "methods", None) or ())


def example(path: str, agent: str) -> str:
    """Return an address of a route, with any value for other parameters than the agent."""
    return re.sub(r"\{[^}]*\}", "any", path.replace("{agent}", agent))


@pytest.fixture(scope="module")
def whole(service: Service, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Whole]:
    app = service(tmp_path_factory.mktemp("server"), TOKENS, Settings())
    with serving(app) as instance:
        facts = [{"id": "mug_1", "category": "object", "type": "secret", "place": "drawer_1"}]
        for agent in ("alice", "bob"):
            for path, body in (("", {"id": agent}), (f"/{agent}/observe", {"facts": facts}),
                               (f"/{agent}/plan", {"instruction": "a secret", "skills": ["done"]}),
                               (f"/{agent}/report", {"ok": True})):  # fmt: skip
                assert ask(instance, ALL, "POST", f"/v1/agents{path}", json=body).is_success
        yield instance, sorted(set(addresses(app.routes)), key=str)


@pytest.fixture
def server(whole: Whole) -> LiveServer:
    return whole[0]


def ask(server: LiveServer, token: str | None, method: str, path: str, **more: Any) -> httpx.Response:
    headers = {} if token is None else bearer(token)
    return server.http.request(method, path, headers=headers, **more)


def handshake(server: LiveServer, path: str, **headers: str) -> int:
    try:
        with server.websocket(path, **headers):
            return 101
    except InvalidStatus as refusal:
        return refusal.response.status_code


def status(server: LiveServer, token: str | None, method: str, path: str) -> int:
    if method != "WEBSOCKET":
        return ask(server, token, method, path).status_code
    return handshake(server, path, **({} if token is None else bearer(token)))


def test_all_documented_routes_are_tested(whole: Whole) -> None:
    server, routes = whole
    paths = {path.replace(":path}", "}") for path, _ in routes}  # as the description names them
    assert set(server.http.get("/openapi.json").json()["paths"]) <= paths
    assert {"/", "/metrics", "/viewer", "/viewer/data/step", "/v1/agents/{agent}/socket", "/viewer/episode"} <= paths
    assert any(path.startswith("/viewer/_nicegui_ws/") for path in paths)


def test_every_route_has_a_rule_and_follows_it(whole: Whole) -> None:
    server, routes = whole
    for path, methods in routes:
        rule = rule_of(example(path, "bob"))[0]
        assert rule is not DEFAULT_RULE, f"{path} has no rule in keep_agent.server.auth.access_rules"
        for method in methods or {"WEBSOCKET"}:
            check(server, rule.need, method, example(path, "bob"))


def check(server: LiveServer, need: Need, method: str, path: str) -> None:
    public, foreign = need is Need.NO_TOKEN, need in (Need.AGENT, Need.ALL)
    for token in (None, "guess"):
        code = status(server, token, method, path)
        assert code == (200 if public else 401), (method, path)
    if foreign:
        assert status(server, ALICE, method, path) == 403, (method, path)
    assert need is not Need.ALL or status(server, BOB, method, path) == 403, (method, path)


MODEL = "MODEL"  # stands for the served model's name
CHAT = {"model": MODEL, "max_tokens": 1, "messages": [{"role": "user", "content": "hello"}]}
SPEAKS = {"agents": {"bob": {"system": "You are Bob."}}, "phases": [{"name": "p", "participants": ["bob"]}]}
SCENARIO = {"scenario": {"name": "house", **SPEAKS}}
ROUTE_CHECKS: dict[tuple[str, str], tuple[dict[str, Any], int]] = {  # requests of Alice about Bob, and their status
    ("POST", "/v1/chat/completions"): ({"json": CHAT | {"user": "bob"}}, 403),
    ("POST", "/v1/messages"): ({"json": CHAT | {"metadata": {"user_id": "bob"}}}, 403),
    ("POST", "/v1/agents"): ({"json": {"id": "bob"}}, 403),
    ("GET", "/v1/agents"): ({}, 200),
    ("POST", "/v1/scenarios"): ({"json": SCENARIO}, 403),
    ("GET", "/v1/scenarios"): ({}, 200),
    ("GET", "/v1/scenarios/{number}"): ({}, 404),
    ("DELETE", "/v1/scenarios/{number}"): ({}, 404),
    ("POST", "/v1/scenarios/{number}/turns"): ({"json": {}}, 404),
    ("GET", "/v1/scenarios/{number}/transcript"): ({"params": {"agent": "bob"}}, 404),
}


def test_routes_that_check_agents_themselves_refuse_other_tokens(whole: Whole) -> None:
    """The answers have the same bytes whether there is a Bob or not."""
    server, routes = whole
    number = ask(server, ALL, "POST", "/v1/scenarios", json=SCENARIO).json()["id"]
    model = ask(server, ALICE, "GET", "/v1/models").json()["data"][0]["id"]
    needs = {(item, path) for path, methods in routes for item in methods if rule_of(path)[0].need is Need.ROUTE}
    assert needs == ROUTE_CHECKS.keys(), "add the route's answer to a token for another agent to ROUTE_CHECKS"
    for (method, path), (arguments, code) in ROUTE_CHECKS.items():
        if "json" in arguments and "model" in arguments["json"]:
            arguments = {"json": arguments["json"] | {"model": model}}
        existing = ask(server, ALICE, method, path.replace("{number}", number), **arguments)
        foreign = json.loads(json.dumps(arguments).replace("bob", "eve"))
        second = ask(server, ALICE, method, path.replace("{number}", "ffff"), **foreign)
        assert (existing.status_code, existing.text.replace(number, "ffff")) == (code, second.text), (method, path)
        assert "bob" not in existing.text.lower()
    assert ask(server, ALL, "DELETE", f"/v1/scenarios/{number}").status_code == 204


def test_answers_about_foreign_and_missing_agents_are_equal(whole: Whole) -> None:
    server, routes = whole
    for path, methods in routes:
        for method in (methods or set()) | {"PATCH", "OPTIONS"}:
            if "{agent}" in path:
                existing, nowhere = (ask(server, ALICE, method, example(path, agent)) for agent in ("bob", "eve"))
                assert existing.status_code == nowhere.status_code == 403 and existing.text == nowhere.text


def test_the_viewer_needs_a_token_for_all_agents(server: LiveServer) -> None:
    rows = ask(server, ALL, "GET", "/viewer/data/episodes").json()
    assert len(rows) == 2
    step = f"/viewer/data/step?run={rows[1]['run']}&episode={rows[1]['episode']}&step=0"
    assert "a secret" in ask(server, ALL, "GET", step).text
    bearer, cookie = {"Authorization": f"Bearer {ALICE}"}, {"Cookie": f"keep_agent_token={ALICE}"}
    limited = bearer, {"X-API-Key": ALICE}, cookie, {**bearer, "Cookie": f"keep_agent_token={ALL}"}
    for path in ("/viewer", "/viewer/", "/viewer/episode", "/viewer/data/episodes", step, POLLING, "/viewer/any"):
        for headers_sent in limited:
            answer = server.http.get(path, headers=headers_sent)
            assert answer.status_code == 403 and "secret" not in answer.text
    answer = server.http.get("/viewer/", params={"token": ALICE})
    assert answer.status_code == 403 and "set-cookie" not in answer.headers


def test_the_viewers_websocket_needs_a_token_for_all_agents(server: LiveServer) -> None:
    for name, value in (("Authorization", "Bearer {}"), ("X-API-Key", "{}"), ("Cookie", "keep_agent_token={}")):
        assert handshake(server, SOCKET, **{name: value.format(ALICE)}) == 403
        assert handshake(server, SOCKET, **{name: value.format("guess")}) == 401
        assert handshake(server, SOCKET, **{name: value.format(ALL)}) == 101
    assert handshake(server, SOCKET) == handshake(server, f"{SOCKET}&token={ALL}") == 401


def test_a_token_becomes_a_cookie_for_the_viewer_alone(server: LiveServer) -> None:
    answer = server.http.get(f"/viewer/?token={ALL}&step=3&other=")
    assert (answer.status_code, answer.headers["location"]) == (303, "/viewer/?step=3&other=")
    cookie = answer.headers["set-cookie"]
    assert all(word in cookie for word in (f"keep_agent_token={ALL}", "HttpOnly", "Path=/viewer", "SameSite=strict"))
    headers_sent = {"Cookie": f"keep_agent_token={ALL}"}
    assert server.http.get("/viewer/", headers=headers_sent).status_code == 200
    for path in ("/v1/agents", "/viewerx", "/metrics"):
        assert server.http.get(path, headers=headers_sent).status_code == 401
    assert ask(server, None, "GET", f"/v1/agents?token={ALL}").status_code == 401


def test_a_cookie_counts_on_pages_of_this_server_alone(server: LiveServer) -> None:
    """Browsers send the cookie from pages of another port of the same machine, too."""
    own_headers = {"Cookie": f"keep_agent_token={ALL}", "Origin": f"http://127.0.0.1:{server.port}"}
    for origin, code in ((f"http://127.0.0.1:{server.port}", 200), ("http://127.0.0.1:1", 403), ("null", 403)):
        assert server.http.get(POLLING, headers=own_headers | {"Origin": origin}).status_code == code
    assert handshake(server, SOCKET, **own_headers) == 101
    assert handshake(server, SOCKET, **(own_headers | {"Origin": "http://127.0.0.1:1"})) == 403


def test_a_browser_reaches_the_viewer_from_the_landing_page(server: LiveServer) -> None:
    with httpx.Client(base_url=server.url, follow_redirects=True, timeout=PATIENCE) as browser:
        landing = browser.get("/")
        assert landing.status_code == 200 and landing.headers["content-type"].startswith("text/html")
        for path in re.findall(r'href="([^"]*)"', landing.text):
            assert path in ("/viewer/", "/openapi.json")
        assert "viewer?token=" in browser.get("/viewer").json()["error"]["message"]
        page = browser.get(f"/viewer?token={ALL}&step=3")
        assert page.status_code == 200 and "<title>KEEP Agent: episodes" in page.text
        assert str(page.url) == f"{server.url}/viewer/?step=3"
        assert browser.get("/viewer").status_code == browser.get("/viewer/data/episodes").status_code == 200

"""Every route of a whole server, the viewer's and its websockets included: none is open by mistake."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from starlette.routing import BaseRoute
from websockets.exceptions import InvalidStatus

from keep_agent.config.planner_factory import brain_of
from keep_agent.server.auth.access_rules import RULES, UNKNOWN, Need, Rules
from keep_agent.server.auth.tokens import Access, Entry, Tokens, digest
from keep_agent.server.service import make_service
from tests.keep_agent.server.serving import Served, bearer, serving
from tests.waiting import PATIENCE

ALICE, BOB, ALL = "token-of-alice", "token-of-bob", "token-of-all"
TOKENS = Tokens(
    (
        Entry(Access("alice", frozenset({"alice"})), digest(ALICE)),
        Entry(Access("bob", frozenset({"bob"})), digest(BOB)),
        Entry(Access("all"), digest(ALL)),
    )
)
POLLING, SOCKET = ("/viewer/_nicegui_ws/socket.io/?EIO=4&transport=" + how for how in ("polling", "websocket"))


def addresses(routes: Iterable[BaseRoute], prefix: str = "") -> Iterator[tuple[str, frozenset[str]]]:
    """Path and methods of every route; of a websocket there are none, of a mounted application any."""
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
    """An address of a route; other parameters than the agent have any value."""
    return re.sub(r"\{[^}]*\}", "any", path.replace("{agent}", agent))


@pytest.fixture(scope="module")
def whole(tiny_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Served, list[Any]]]:
    brain = brain_of([f"model={tiny_model}", "prompt.encoder=hashed"])
    app = make_service(brain, tmp_path_factory.mktemp("server"), TOKENS)
    with serving(app) as made:
        facts = [{"id": "mug_1", "category": "object", "type": "secret", "place": "drawer_1"}]
        for agent in ("alice", "bob"):
            for path, body in (("", {"id": agent}), (f"/{agent}/observe", {"facts": facts}),
                               (f"/{agent}/plan", {"instruction": "a secret", "skills": ["done"]}),
                               (f"/{agent}/report", {"ok": True})):  # fmt: skip
                assert ask(made, ALL, "POST", f"/v1/agents{path}", json=body).is_success
        yield made, sorted(set(addresses(app.routes)), key=str)


@pytest.fixture
def served(whole: tuple[Served, list[Any]]) -> Served:
    return whole[0]


def ask(served: Served, token: str | None, method: str, path: str, **more: Any) -> httpx.Response:
    headers = {} if token is None else bearer(token)
    return served.http.request(method, path, headers=headers, **more)


def handshake(served: Served, path: str, **headers: str) -> int:
    """The status of a websocket's handshake."""
    try:
        with served.websocket(path, **headers):
            return 101
    except InvalidStatus as refused:
        return refused.response.status_code


def status(served: Served, token: str | None, method: str, path: str) -> int:
    if method != "WEBSOCKET":
        return ask(served, token, method, path).status_code
    return handshake(served, path, **({} if token is None else bearer(token)))


def test_the_routes_that_are_tested_are_all_there_are(whole: tuple[Served, list[Any]]) -> None:
    served, routes = whole
    found = {path.replace(":path}", "}") for path, _ in routes}  # as the description names them
    assert set(served.http.get("/openapi.json").json()["paths"]) <= found
    assert {"/", "/metrics", "/viewer", "/viewer/data/step", "/v1/agents/{agent}/socket", "/viewer/episode"} <= found
    assert any(path.startswith("/viewer/_nicegui_ws/") for path in found)


def test_every_route_has_a_rule_and_keeps_it(whole: tuple[Served, list[Any]]) -> None:
    served, routes = whole
    for path, methods in routes:
        rule = Rules(RULES).of(example(path, "bob"))[0]
        assert rule is not UNKNOWN, f"{path} has no rule in keep_agent.server.auth.access_rules"
        for method in methods or {"WEBSOCKET"}:
            check(served, rule.need, method, example(path, "bob"))


def check(served: Served, need: Need, method: str, path: str) -> None:
    """Without a token, with a wrong one, and with one for another agent."""
    public, foreign = need is Need.NO_TOKEN, need in (Need.AGENT, Need.ALL)
    for token in (None, "guess"):
        code = status(served, token, method, path)
        assert code == (200 if public else 401), (method, path)
    if foreign:
        assert status(served, ALICE, method, path) == 403, (method, path)
    assert need is not Need.ALL or status(served, BOB, method, path) == 403, (method, path)


MODEL = "MODEL"  # stands for the served one
CHAT = {"model": MODEL, "max_tokens": 1, "messages": [{"role": "user", "content": "hello"}]}
SPEAKS = {"agents": {"bob": {"system": "You are Bob."}}, "phases": [{"name": "p", "participants": ["bob"]}]}
SCENARIO = {"scenario": {"name": "house", **SPEAKS}}
NAMED: dict[tuple[str, str], tuple[dict[str, Any], int]] = {  # what Alice asks of Bob, and what it is answered with
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


def test_routes_that_ask_themselves_do(whole: tuple[Served, list[Any]]) -> None:
    """And answer with the same bytes whether there is a Bob or not."""
    served, routes = whole
    number = ask(served, ALL, "POST", "/v1/scenarios", json=SCENARIO).json()["id"]
    model = ask(served, ALICE, "GET", "/v1/models").json()["data"][0]["id"]
    rules = Rules(RULES)
    named = {(one, path) for path, methods in routes for one in methods if rules.of(path)[0].need is Need.ROUTE}
    assert named == NAMED.keys(), "say in NAMED what such a route answers a token for another agent"
    for (method, path), (asked, code) in NAMED.items():
        if "json" in asked and "model" in asked["json"]:
            asked = {"json": asked["json"] | {"model": model}}
        there = ask(served, ALICE, method, path.replace("{number}", number), **asked)
        other = ask(served, ALICE, method, path.replace("{number}", "ffff"), **nobody(asked))
        assert (there.status_code, there.text.replace(number, "ffff")) == (code, other.text), (method, path)
        assert "bob" not in there.text.lower()
    assert ask(served, ALL, "DELETE", f"/v1/scenarios/{number}").status_code == 204


def nobody(asked: dict[str, Any]) -> dict[str, Any]:
    """The same request about an agent that is not there."""
    return json.loads(json.dumps(asked).replace("bob", "eve"))


def test_an_agent_that_is_another_tokens_is_as_one_that_is_not_there(whole: tuple[Served, list[Any]]) -> None:
    served, routes = whole
    for path, methods in routes:
        for method in (methods or set()) | {"PATCH", "OPTIONS"}:
            if "{agent}" in path:
                there, nowhere = (ask(served, ALICE, method, example(path, agent)) for agent in ("bob", "eve"))
                assert (there.status_code, there.text) == (nowhere.status_code, nowhere.text) == (403, there.text)


# -- the viewer --------------------------------------------------------------------------------------------------------


def test_the_viewer_is_for_tokens_for_all_agents(served: Served) -> None:
    """However the token comes."""
    rows = ask(served, ALL, "GET", "/viewer/data/episodes").json()
    assert len(rows) == 2
    step = f"/viewer/data/step?run={rows[1]['run']}&episode={rows[1]['episode']}&step=0"
    assert "a secret" in ask(served, ALL, "GET", step).text
    bearer, cookie = {"Authorization": f"Bearer {ALICE}"}, {"Cookie": f"keep_agent_token={ALICE}"}
    limited = bearer, {"X-API-Key": ALICE}, cookie, {**bearer, "Cookie": f"keep_agent_token={ALL}"}
    for path in ("/viewer", "/viewer/", "/viewer/episode", "/viewer/data/episodes", step, POLLING, "/viewer/any"):
        for shown in limited:
            answer = served.http.get(path, headers=shown)
            assert answer.status_code == 403 and "secret" not in answer.text
    answer = served.http.get("/viewer/", params={"token": ALICE})
    assert answer.status_code == 403 and "set-cookie" not in answer.headers


def test_the_viewers_websocket_is_for_tokens_for_all_agents(served: Served) -> None:
    for name, value in (("Authorization", "Bearer {}"), ("X-API-Key", "{}"), ("Cookie", "keep_agent_token={}")):
        assert handshake(served, SOCKET, **{name: value.format(ALICE)}) == 403
        assert handshake(served, SOCKET, **{name: value.format("guess")}) == 401
        assert handshake(served, SOCKET, **{name: value.format(ALL)}) == 101
    assert handshake(served, SOCKET) == handshake(served, f"{SOCKET}&token={ALL}") == 401


def test_a_token_becomes_a_cookie_for_the_viewer_alone(served: Served) -> None:
    answer = served.http.get(f"/viewer/?token={ALL}&step=3&other=")
    assert (answer.status_code, answer.headers["location"]) == (303, "/viewer/?step=3&other=")
    cookie = answer.headers["set-cookie"]
    assert all(word in cookie for word in (f"keep_agent_token={ALL}", "HttpOnly", "Path=/viewer", "SameSite=strict"))
    shown = {"Cookie": f"keep_agent_token={ALL}"}
    assert served.http.get("/viewer/", headers=shown).status_code == 200
    for path in ("/v1/agents", "/viewerx", "/metrics"):
        assert served.http.get(path, headers=shown).status_code == 401
    assert ask(served, None, "GET", f"/v1/agents?token={ALL}").status_code == 401


def test_a_cookie_counts_on_pages_of_this_server_alone(served: Served) -> None:
    """Pages of another port of the same machine have the cookie sent along, too."""
    own = {"Cookie": f"keep_agent_token={ALL}", "Origin": f"http://127.0.0.1:{served.port}"}
    for origin, code in ((f"http://127.0.0.1:{served.port}", 200), ("http://127.0.0.1:1", 403), ("null", 403)):
        assert served.http.get(POLLING, headers=own | {"Origin": origin}).status_code == code
    assert handshake(served, SOCKET, **own) == 101
    assert handshake(served, SOCKET, **(own | {"Origin": "http://127.0.0.1:1"})) == 403


def test_a_browser_gets_from_the_printed_address_to_a_page(served: Served) -> None:
    with httpx.Client(base_url=served.url, follow_redirects=True, timeout=PATIENCE) as browser:
        landing = browser.get("/")
        assert landing.status_code == 200 and landing.headers["content-type"].startswith("text/html")
        for path in re.findall(r'href="([^"]*)"', landing.text):
            assert path in ("/viewer/", "/openapi.json")
        assert "viewer?token=" in browser.get("/viewer").json()["error"]["message"]
        page = browser.get(f"/viewer?token={ALL}&step=3")
        assert page.status_code == 200 and "<title>KEEP Agent: episodes" in page.text
        assert str(page.url) == f"{served.url}/viewer/?step=3"
        assert browser.get("/viewer").status_code == browser.get("/viewer/data/episodes").status_code == 200

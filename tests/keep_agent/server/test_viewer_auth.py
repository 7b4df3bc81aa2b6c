"""The viewer of a server with tokens: a browser shows its token once, and then a cookie."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from keep_agent.brain import brain_of
from keep_agent.server.service import make_service
from keep_agent.server.tokens import Access, Entry, Tokens, digest
from tests.keep_agent.server.serving import Served, serving

TOKENS = Tokens((Entry(Access("all"), digest("ALL")), Entry(Access("one", frozenset({"a"})), digest("ONE"))))


@pytest.fixture(scope="module")
def served(tiny_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    brain = brain_of([f"model={tiny_model}", "prompt.encoder=hashed"])
    with serving(make_service(brain, tmp_path_factory.mktemp("server"), TOKENS)) as made:
        yield made


def test_nobody_sees_it_without_the_token_for_all(served: Served) -> None:
    for path in ("/viewer", "/viewer/", "/viewer/data/nothing", "/viewer/_nicegui/x.js"):
        assert served.http.get(path).status_code == 401
        assert served.http.get(path, headers={"Cookie": "keep_agent_token=guess"}).status_code == 401
        assert served.http.get(path, headers={"Cookie": "keep_agent_token=ONE"}).status_code == 403


def test_a_token_becomes_a_cookie_for_the_viewer_alone(served: Served) -> None:
    answer = served.http.get("/viewer/?token=ALL&step=3")
    assert (answer.status_code, answer.headers["location"]) == (303, "/viewer/?step=3")
    cookie = answer.headers["set-cookie"]
    assert all(word in cookie for word in ("keep_agent_token=ALL", "HttpOnly", "Path=/viewer", "SameSite=strict"))
    assert served.http.get("/viewer/", headers={"Cookie": "keep_agent_token=ALL"}).status_code == 200
    assert served.http.get("/v1/agents", headers={"Cookie": "keep_agent_token=ALL"}).status_code == 401
    assert served.http.get("/viewerx", headers={"Cookie": "keep_agent_token=ALL"}).status_code == 401

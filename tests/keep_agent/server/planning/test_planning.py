"""Planning agents on a real server: answers, errors, and memories."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial, reduce
from hashlib import sha256
from math import inf, nan
from operator import getitem
from pathlib import Path
from typing import Any

import pytest

from envs.fact import Fact
from envs.outcome import Outcome
from keep_agent.agent.agent import Agent
from keep_agent.agent.client import Client, ServerError, split_lines
from keep_agent.config.planner_factory import PlannerResources, make_resources
from keep_agent.rollout.trace import read_trace
from keep_agent.server.limits.request_limits import RequestLimits
from keep_agent.server.service import make_service
from keep_agent.server.settings import AgentLimits
from tests.keep_agent.server.conftest import SETTINGS, Serve, Service
from tests.keep_agent.server.planning.conftest import ALL, KITCHEN, MUG, SCOPED, SKILLS
from tests.keep_agent.server.serving import OPEN, LiveServer, bearer, events, post, serving, status
from tests.laws.prompts import broken
from tests.waiting import PATIENCE


def test_a_served_agent_decides_as_a_local_one(serve: Serve, resources: PlannerResources, tmp_path: Path) -> None:
    agent_here = Agent(resources.planner("kitchen"))
    with serve() as server, Client(server.url) as client:
        agent_there = client.agent("kitchen")
        for agent in (agent_here, agent_there):
            agent.observe([MUG, Fact("cabinet_1", "receptacle", "cabinet")])
        for number in range(1, 4):
            ready: list[Any] = []
            decision_there = agent_there.plan("get the mug", SKILLS, ready.append)
            same = agent_here.plan("get the mug", SKILLS)
            assert (decision_there.skill, decision_there.number) == (same.skill, number)
            assert decision_there.warnings == same.warnings != (), "there is no fact about the agent itself"
            assert dict(decision_there.scores) == pytest.approx(dict(same.scores), abs=1e-3)
            assert ready[0]["timings"].keys() <= decision_there.trace["timings"].keys()
            for agent in (agent_here, agent_there):
                agent.report(Outcome(False, "stuck"))
        assert agent_there.about().decisions == 3
        agent_there.save(tmp_path / "memory")
        agent_here.load(tmp_path / "memory")
        agent_there.load(tmp_path / "memory")
        trace = agent_there.plan("get it", SKILLS, trace="full").trace
        assert trace["token_ids"] == agent_here.plan("get it", SKILLS).trace["token_ids"]
        assert not agent_there.plan("get it", SKILLS, trace="none").trace
        agent_there.finish(True)
        assert client.agents() == ["kitchen"]
        client.delete("kitchen")
        assert client.agents() == []
        with pytest.raises(ServerError, match="no agent"):
            agent_there.about()


def test_streamed_and_whole_answers_are_equal_and_errors_have_a_status(serve: Serve) -> None:
    body = {"instruction": "get the mug", "skills": SKILLS, "after": 0}
    with serve("kitchen") as server:
        streamed = server.http.post("/v1/agents/kitchen/plan", json={**body, "stream": True})
        (_, ready), (name, decision) = events(streamed.text)
        assert name == "decision" and ready["counts"] == decision["trace"]["counts"]
        assert server.http.post("/v1/agents/kitchen/plan", json=body).json() == decision  # a repeated request
        assert 'keep_agent_plan_seconds_count{part="queued"} 1.0' in server.http.get("/metrics").text
        stale = [({"after": 2}, 409, "StaleError"), ({"instruction": "get the cup"}, 409, "StaleError")]
        for stream in (True, False):
            for wrong, *expected in ({"skills": []}, 400, "ConfigError"), *stale:
                answer = server.http.post("/v1/agents/kitchen/plan", json={**body, **wrong, "stream": stream})
                assert [answer.status_code, answer.json()["error"]["type"]] == expected
            assert server.http.post("/v1/agents/unknown/plan", json={**body, "stream": stream}).status_code == 404
        assert server.http.get("/v1/agents/kitchen").json()["decisions"] == 1
        assert server.http.post("/v1/agents", json={"id": "kitchen"}).status_code == 409


def test_a_token_for_one_agent_does_not_learn_how_many_there_are(serve: Serve) -> None:
    settings = replace(SETTINGS, agents=AgentLimits(agents=1))
    with serve(tokens=SCOPED, settings=settings, token=ALL) as server:
        assert server.http.post("/v1/agents", json={"id": "garage"}).status_code == 201
        assert server.http.post("/v1/agents", json={"id": "attic"}).status_code == 507
        kitchen_only = bearer(KITCHEN)
        assert server.http.post("/v1/agents", json={"id": "kitchen"}, headers=kitchen_only).status_code == 201
        assert server.http.get("/v1/agents", headers=kitchen_only).json() == {"agents": ["kitchen"]}


@pytest.fixture(scope="module")
def steady(service: Service, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[LiveServer, Path]]:
    """A server whose agent remembers a mug, for requests that change nothing, and its folder."""
    folder = tmp_path_factory.mktemp("steady")
    with serving(service(folder)) as server, Client(server.url) as client:
        client.agent("kitchen").observe([MUG])
        yield server, folder


BAD_IDS = ("..", "../x", "%2e%2e%2fx", "..%2f..%2fetc", "a%00b", "x" * 65, "CON", ".hidden", "a%2Fb", "a%5Cb", "ä")


@pytest.mark.parametrize("name", BAD_IDS)
def test_ids_are_no_paths(steady: tuple[LiveServer, Path], name: str) -> None:
    server, folder = steady
    before = sorted(path for path in folder.rglob("*"))
    for method, path in (("GET", ""), ("DELETE", ""), ("POST", "/plan"), ("GET", "/memory")):
        answer = server.raw(f"{method} /v1/agents/{name}{path} HTTP/1.1\r\nHost: localhost\r\n"
                            "Connection: close\r\nContent-Length: 0\r\n\r\n".encode())  # fmt: skip
        assert 400 <= status(answer) < 500
    assert server.http.post("/v1/agents", json={"id": name.replace("%00", "\0")}).status_code in (400, 422)
    assert sorted(path for path in folder.rglob("*")) == before


@pytest.mark.parametrize(
    "body",
    [
        b"", b"[]", b"7", b'{"facts": 7}', b'{"facts": [7]}', b'{"facts": [{}]}', b'{"facts": [], "more": 1}',
        b'{"facts": [{"id": "a b", "category": "object", "type": "x"}]}', b'{"facts": [NaN]}',
        b'{"facts": [{"id": "did_1", "category": "object", "type": "x"}]}',
    ],
)  # fmt: skip
def test_invalid_bodies_are_refused_and_change_nothing(steady: tuple[LiveServer, Path], body: bytes) -> None:
    server, _ = steady
    saved = server.http.get("/v1/agents/kitchen/memory").content
    answer = server.http.post("/v1/agents/kitchen/observe", content=body, headers={"Content-Type": "application/json"})
    assert answer.status_code in (400, 422) and answer.json()["error"]["message"]
    assert server.http.get("/v1/agents/kitchen/memory").content == saved


def sealed(body: bytes) -> bytes:
    """Return a memory file with a valid checksum."""
    return b"keep-agent memory 1 sha256:" + sha256(body).hexdigest().encode() + b"\n" + body + b"\n"


def edited(text: bytes, key: str, value: Any) -> bytes:
    """Return a memory file with another value in the planner's state."""
    state = json.loads(text.partition(b"\n")[2])
    *path, last = (int(part) if part.isdecimal() else part for part in key.split("."))
    reduce(getitem, path, state["planner"])[last] = value
    return sealed(json.dumps(state).encode())


DEEP = json.loads("[" * 900 + "]" * 900)
EDITS = [
    ("style", "linked"), ("told", 7), ("told", [[["x", inf]]]), ("instruction", "\ud800"), ("instruction", "x" * 9000),
    ("tasks", 1 << 60), ("turns", [["a\nb", ""]]), ("turns", DEEP), ("done", 10**400), ("done", nan),
    ("memory.founded", 1 << 39), ("memory.step", (1 << 53) - 1), ("memory.step", -inf),
    ("memory.segments.0.0", "did_1"),
]  # fmt: skip
CHANGES: list[Callable[[bytes], bytes]] = [
    lambda text: b"", lambda text: b"{}", lambda text: text[:-9], lambda text: text.replace(b"mug", b"cup"),
    lambda text: b"\0" * 1000, lambda text: sealed(b"{}"), lambda text: sealed(b"[" * 200_000),
    lambda text: sealed(b'{"planner": {"memory": {"segments": []}}}'),
    lambda text: sealed(text.partition(b"\n")[2].strip()[:-1] + b',"x":[' + b"[]," * 1_100_000 + b"[]]}"),
    *(partial(edited, key=key, value=value) for key, value in EDITS),
]  # fmt: skip


@pytest.mark.parametrize("change", CHANGES)
def test_an_impossible_memory_is_refused(steady: tuple[LiveServer, Path], change: Callable[[bytes], bytes]) -> None:
    server, _ = steady
    saved = server.http.get("/v1/agents/kitchen/memory").content
    answer = server.http.put("/v1/agents/kitchen/memory", content=change(saved))
    assert answer.status_code == 400 and answer.json()["error"]["message"]
    assert server.http.get("/v1/agents/kitchen/memory").content == saved


def test_many_long_skills_are_chosen_from(serve: Serve) -> None:
    skills = [f"{chr(97 + number % 26)}{number} " * 20 for number in range(160)]
    with serve("kitchen") as server:
        body = {"instruction": "x " * 999, "skills": skills, "trace": "none"}
        assert server.http.post("/v1/agents/kitchen/plan", json=body).json()["skill"] in skills


def test_acknowledged_calls_survive_a_restart_and_are_recorded_for_the_viewer(serve: Serve, tmp_path: Path) -> None:
    with serve() as server, Client(server.url) as client:
        agent = client.agent("kitchen")
        agent.observe([MUG])
        agent.plan("get the mug", SKILLS)
        agent.report(Outcome(False, "stuck"))
        agent.finish(False)
        before = agent.about()
    with serve() as server, Client(server.url) as client:
        agent = client.agent("kitchen")
        assert agent.about() == before and before.segments > 1 == before.decisions
        agent.plan("get the cup", SKILLS)
        agent.report(Outcome(True))
        (run,) = (tmp_path / "server" / "runs").iterdir()
        entries = list(read_trace(run / "trace.jsonl"))
        assert [entry["event"] for entry in entries[:4]] == ["episode", "step", "task", "step"]
        assert [entry["instruction"] for entry in entries[1:4]] == ["get the mug", "get the mug", "get the cup"]
        client.delete("kitchen")
        assert not list((tmp_path / "server" / "runs").iterdir())


def test_large_and_slow_bodies_do_not_reach_a_planner(serve: Serve) -> None:
    settings = replace(SETTINGS, limits=RequestLimits(body_seconds=0.5, large={"/v1/agents/*/memory": 1000}))
    with serve("kitchen", settings=settings) as server:
        assert status(server.raw(post("/v1/agents/kitchen/observe", b"", Content_Length="100000000"))) == 413
        assert status(server.raw(post("/v1/agents/kitchen/observe", b"{", Content_Length="50"))) == 408
        assert server.http.put("/v1/agents/kitchen/memory", content=b"x" * 1001).status_code == 413


def test_a_plan_without_finite_logits_fails(tiny_model: Path, tmp_path: Path) -> None:
    loaded = make_resources([f"model={tiny_model}", "prompt.encoder=hashed"])
    with (
        serving(make_service(loaded, tmp_path, OPEN, SETTINGS)) as server,
        Client(server.url, timeout=PATIENCE) as client,
    ):
        agent = client.agent("kitchen")
        agent.observe([MUG])
        with broken(loaded.engine, float("nan")), pytest.raises(ServerError, match="logits are not finite in") as error:
            agent.plan("get the mug", SKILLS)
        assert (error.value.status, error.value.retry_after, agent.about().decisions) == (500, None, 0)
        assert agent.plan("get the mug", SKILLS).skill in SKILLS


SEPARATORS = "\u2028\u2029\x85\x0b\x0c\x1c\x1d\x1e"
JOINED = "pick up note\u00adbook\u00a01, \u0645\u06cc\u200c\u0631\u0648\u0645"


def test_a_streamed_plan_survives_every_separator(serve: Serve) -> None:
    instruction, failure = f"put a mug{SEPARATORS}in the fridge", f"the{SEPARATORS}door is locked"
    with serve() as server, Client(server.url, patience=0) as client:
        agent = client.agent("kitchen")
        agent.observe([Fact("\u0645\u06cc\u200c\u0631\u0648\u0645", "object", "note\u00adbook", "cabinet_1")])
        ready: list[Any] = []
        decision = agent.plan(instruction, [JOINED], ready.append, trace="full")
        assert (decision.skill, decision.scores[0][0], len(ready)) == (JOINED, JOINED, 1)
        agent.report(Outcome(False, failure))
        trace = agent.plan(instruction, [JOINED, *SKILLS], ready.append, trace="full").trace
        assert trace["instruction"] == instruction
        assert agent.about().decisions == 2


def test_lines_end_at_newlines_wherever_the_parts_are_cut() -> None:
    content = f"event: ready\ndata: {SEPARATORS}é\n\nevent: decision".encode()
    for size in range(1, len(content) + 1):
        parts = [content[start : start + size] for start in range(0, len(content), size)]
        assert list(split_lines(parts)) == ["event: ready", f"data: {SEPARATORS}é", "", "event: decision"]

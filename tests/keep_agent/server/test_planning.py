"""Planning agents behind a real server: what is answered, to whom, and what outlives it."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from websockets.exceptions import ConnectionClosed, InvalidStatus
from websockets.sync.client import connect

from envs.fact import Fact
from envs.outcome import Outcome
from keep_agent.agent import Agent
from keep_agent.brain import Brain, brain_of
from keep_agent.client import Client, ServerError
from keep_agent.errors import ConfigError
from keep_agent.server.limits import Limits
from keep_agent.server.problems import Conflict, NotFound
from keep_agent.server.registry import AgentLimits, Registry
from keep_agent.server.service import Settings, make_service
from keep_agent.server.tokens import Access, Entry, Tokens, digest
from tests.keep_agent.server.serving import Served, events, post, serving, status, until

SKILLS = ["go to cabinet 1", "open cabinet 1", "done"]
MUG = Fact("mug_1", "object", "mug", "cabinet_1")
OPEN = Tokens(open=True)
SETTINGS = Settings(viewer=False)
KITCHEN, ALL = "token-of-the-kitchen", "token-of-everybody"
SCOPED = Tokens((Entry(Access("kitchen", frozenset({"kitchen"})), digest(KITCHEN)), Entry(Access("all"), digest(ALL))))


@pytest.fixture
def make_brain(tiny_model: Path) -> Callable[[], Brain]:
    return lambda: brain_of([f"model={tiny_model}", "prompt.encoder=hashed"])


@pytest.fixture
def serve(make_brain: Callable[[], Brain], tmp_path: Path) -> Callable[..., Any]:
    """A server over a folder that the next one finds again."""

    @contextmanager
    def run(tokens: Tokens = OPEN, settings: Settings = SETTINGS, token: str | None = None) -> Iterator[Served]:
        with serving(make_service(make_brain(), tmp_path / "server", tokens, settings), token) as served:
            yield served

    return run


def test_a_robots_day(serve: Callable[..., Any], make_brain: Callable[[], Brain], tmp_path: Path) -> None:
    """Behind a server an agent decides what it decides here; its memory goes to and fro."""
    brain = make_brain()
    here = Agent(brain.planner("kitchen"))
    with serve() as served, Client(served.url) as client:
        there = client.agent("kitchen")
        for agent in (here, there):
            agent.observe([MUG, Fact("cabinet_1", "receptacle", "cabinet")])
        for number in range(1, 4):
            ready: list[Any] = []
            found, same = there.plan("get the mug", SKILLS, ready.append), here.plan("get the mug", SKILLS)
            assert (found.skill, found.number) == (same.skill, number)
            assert dict(found.scores) == pytest.approx(dict(same.scores), abs=1e-3)
            assert ready[0]["timings"].keys() <= found.trace["timings"].keys()
            for agent in (here, there):
                agent.report(Outcome(False, "stuck"))
        assert there.about().decisions == 3
        there.save(tmp_path / "memory")
        here.load(tmp_path / "memory")
        there.load(tmp_path / "memory")
        assert (
            there.plan("get it", SKILLS, trace="full").trace["token_ids"]
            == here.plan("get it", SKILLS).trace["token_ids"]
        )
        assert not there.plan("get it", SKILLS, trace="none").trace
        there.finish(True)
        assert client.agents() == ["kitchen"]
        client.delete("kitchen")
        assert client.agents() == []
        with pytest.raises(ServerError, match="no agent"):
            there.about()
    brain.engine.close()


def test_what_was_acknowledged_is_there_after_a_restart(serve: Callable[..., Any]) -> None:
    with serve() as served, Client(served.url) as client:
        agent = client.agent("kitchen")
        agent.observe([MUG])
        agent.plan("get the mug", SKILLS)
    with serve() as served, Client(served.url) as client:
        agent = client.agent("kitchen")
        assert (agent.about().segments, agent.about().decisions) == (1, 1)
        agent.report(Outcome(True))


def test_streamed_and_whole_answers_are_the_same_and_errors_have_a_status(serve: Callable[..., Any]) -> None:
    body = {"instruction": "get the mug", "skills": SKILLS}
    with serve() as served:
        served.http.post("/v1/agents", json={"id": "kitchen"})
        streamed = served.http.post("/v1/agents/kitchen/plan", json={**body, "stream": True})
        (_, ready), (name, decision) = events(streamed.text)
        assert name == "decision" and ready["counts"] == decision["trace"]["counts"]
        assert served.http.post("/v1/agents/kitchen/plan", json=body).json() == decision  # asked again
        for stream in (True, False):
            wrong = served.http.post("/v1/agents/kitchen/plan", json={**body, "skills": [], "stream": stream})
            assert (wrong.status_code, wrong.json()["error"]["type"]) == (400, "ConfigError")
            none = served.http.post("/v1/agents/nobody/plan", json={**body, "stream": stream})
            assert none.status_code == 404
        assert served.http.post("/v1/agents", json={"id": "kitchen"}).status_code == 409


def test_a_token_is_for_its_agents_alone(serve: Callable[..., Any]) -> None:
    with serve(SCOPED) as served:
        head = {"Authorization": f"Bearer {KITCHEN}"}
        every = {"Authorization": f"Bearer {ALL}"}
        for name in ("kitchen", "garage"):
            assert served.http.post("/v1/agents", json={"id": name}, headers=every).status_code == 201
        plan = {"instruction": "get it", "skills": SKILLS}
        calls: list[tuple[str, str, Any]] = [
            ("GET", "", None), ("DELETE", "", None), ("POST", "/observe", {"facts": []}), ("POST", "/plan", plan),
            ("POST", "/report", {"ok": True}), ("POST", "/finish", {"success": True}), ("GET", "/memory", None),
            ("PUT", "/memory", None), ("POST", "/generate", {"prompt": "go"}),
        ]  # fmt: skip
        for method, path, body in calls:
            for name in ("garage", "attic"):  # the same whether it is there or not
                url = f"/v1/agents/{name}{path}"
                assert served.http.request(method, url, json=body).status_code == 401
                wrong = served.http.request(method, url, json=body, headers={"Authorization": "Bearer guess"})
                assert wrong.status_code == 401 and "Bearer" in wrong.headers["www-authenticate"]
                refused = served.http.request(method, url, json=body, headers=head)
                assert refused.status_code == 403 and name not in refused.text
        assert served.http.post("/v1/agents", json={"id": "garage"}, headers=head).status_code == 403
        assert served.http.get("/v1/agents", headers=head).json() == {"agents": ["kitchen"]}
        assert served.http.get("/v1/agents", headers=every).json() == {"agents": ["garage", "kitchen"]}
        assert served.http.get("/metrics", headers=head).status_code == 403
        assert served.http.get("/healthz").status_code == 200


BAD_IDS = ("..", "../x", "%2e%2e%2fx", "..%2f..%2fetc", "a%00b", "x" * 65, "CON", ".hidden", "a%2Fb", "a%5Cb", "ä")


@pytest.mark.parametrize("name", BAD_IDS)
def test_ids_are_no_paths(serve: Callable[..., Any], tmp_path: Path, name: str) -> None:
    with serve() as served:
        before = sorted(path for path in tmp_path.rglob("*"))
        for method, path in (("GET", ""), ("DELETE", ""), ("POST", "/plan"), ("GET", "/memory")):
            answer = served.raw(f"{method} /v1/agents/{name}{path} HTTP/1.1\r\nHost: localhost\r\n"
                                "Connection: close\r\nContent-Length: 0\r\n\r\n".encode())  # fmt: skip
            assert 400 <= status(answer) < 500
        assert served.http.post("/v1/agents", json={"id": name.replace("%00", "\0")}).status_code in (400, 422)
        assert sorted(path for path in tmp_path.rglob("*")) == before


@pytest.mark.parametrize(
    "body",
    [
        b"", b"{", b"[]", b"7", b'{"facts": 7}', b'{"facts": [7]}', b'{"facts": [{}]}', b'{"facts": [], "more": 1}',
        b'{"facts": [{"id": "\\ud800", "category": "object", "type": "x"}]}', b'{"facts": [\xff]}',
        b'{"facts": ' + b"[" * 99,
        b'{"facts": [{"id": "a b", "category": "object", "type": "x"}]}', b'{"facts": [NaN]}',
        b'{"facts": [{"id": "did_1", "category": "object", "type": "x"}]}',
    ],
)  # fmt: skip
def test_bad_bodies_are_refused_and_nothing_is_remembered(serve: Callable[..., Any], body: bytes) -> None:
    with serve() as served:
        served.http.post("/v1/agents", json={"id": "kitchen"})
        answer = served.http.post(
            "/v1/agents/kitchen/observe", content=body, headers={"Content-Type": "application/json"}
        )
        assert answer.status_code in (400, 422) and answer.json()["error"]["message"]
        assert served.http.get("/v1/agents/kitchen").json()["segments"] == 0


@pytest.mark.parametrize(
    "change",
    [
        lambda text: b"", lambda text: b"{}", lambda text: text[:-9], lambda text: text.replace(b"mug", b"cup"),
        lambda text: sealed({}), lambda text: sealed({"planner": {"memory": {"segments": []}}}),
        lambda text: sealed(edited(text, "style", "linked")), lambda text: sealed(edited(text, "told", 7)),
        lambda text: sealed(edited(text, "instruction", "\ud800")), lambda text: b"\0" * 1000,
        lambda text: sealed(edited(text, "instruction", "x" * 9000)),
        lambda text: sealed(edited(text, "tasks", 1 << 60)),
        lambda text: sealed(edited(text, "turns", [["a\nb", ""]])), lambda text: sealed(edited(text, "done", 10**400)),
        lambda text: sealed(edited(text, "memory", {**memory_of(text), "founded": 1 << 39})),
        lambda text: sealed(edited(text, "memory", {**memory_of(text), "step": (1 << 53) - 1})),
        lambda text: sealed(edited(text, "memory", renamed(memory_of(text), "did_1"))),
    ],
)  # fmt: skip
def test_a_memory_that_cannot_be_is_refused(serve: Callable[..., Any], change: Callable[[bytes], bytes]) -> None:
    with serve() as served:
        served.http.post("/v1/agents", json={"id": "kitchen"})
        served.http.post(
            "/v1/agents/kitchen/observe", json={"facts": [{"id": "mug_1", "category": "object", "type": "mug"}]}
        )
        saved = served.http.get("/v1/agents/kitchen/memory").content
        answer = served.http.put("/v1/agents/kitchen/memory", content=change(saved))
        assert answer.status_code == 400 and answer.json()["error"]["message"]
        assert served.http.get("/v1/agents/kitchen/memory").content == saved


def sealed(state: dict[str, Any]) -> bytes:
    """With a checksum that is right."""
    from hashlib import sha256

    body = json.dumps(state).encode()
    return b"keep-agent memory 1 sha256:" + sha256(body).hexdigest().encode() + b"\n" + body + b"\n"


def memory_of(text: bytes) -> dict[str, Any]:
    return json.loads(text.partition(b"\n")[2])["planner"]["memory"]


def renamed(memory: dict[str, Any], id: str) -> dict[str, Any]:
    ((_, *rest),) = memory["segments"]
    return {**memory, "segments": [[id, *rest]]}


def edited(text: bytes, key: str, value: Any) -> dict[str, Any]:
    state = json.loads(text.partition(b"\n")[2])
    state["planner"][key] = value
    return state


def test_more_requests_than_allowed_are_told_when_to_come_again(serve: Callable[..., Any]) -> None:
    """And the client does: nothing is lost."""
    settings = replace(SETTINGS, limits=Limits(requests=1))
    with serve(settings=settings) as served, Client(served.url) as client:
        agents = [client.agent(f"robot-{number}") for number in range(6)]
        refused: list[int] = []

        def rush() -> None:
            for _ in range(20):
                answer = served.http.post("/v1/agents/robot-0/plan", json={"instruction": "go", "skills": SKILLS})
                if answer.status_code == 429:
                    refused.append(int(answer.headers["retry-after"]))

        threads = [threading.Thread(target=rush) for _ in range(4)]
        threads += [threading.Thread(target=agent.observe, args=([MUG],)) for agent in agents]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert refused and min(refused) >= 1
        assert [agent.about().segments for agent in agents] == [1] * 6


@contextmanager
def halfway(served: Served, agent: str, token: str) -> Iterator[None]:
    """A request of planning is in the works, until its body is there."""
    path = f"/v1/agents/{agent}/memory"
    with served.socket() as made:
        given = {"Content_Length": "1000", "Authorization": f"Bearer {token}"}
        made.sendall(post(path, b"", **given).replace(b"POST", b"PUT", 1))
        until(lambda: "keep_agent_plans_inside 1.0" in served.http.get("/metrics").text)
        yield


def test_planning_and_talking_do_not_shut_each_other_out(serve: Callable[..., Any]) -> None:
    settings = replace(SETTINGS, limits=replace(SETTINGS.limits, requests=1))
    with serve(SCOPED, settings, ALL) as served:
        served.http.post("/v1/agents", json={"id": "kitchen"})
        with halfway(served, "kitchen", ALL):
            assert served.http.get("/v1/agents").status_code == 429
            asked = {"prompt": "go to cabinet_1", "tokens": 1}
            assert served.http.post("/v1/agents/kitchen/generate", json=asked).status_code == 200


def test_requests_of_one_agent_leave_room_for_others(serve: Callable[..., Any]) -> None:
    """And whoever may not use it does not learn of them."""
    settings = replace(SETTINGS, limits=replace(SETTINGS.limits, per_agent=1))
    with serve(SCOPED, settings, ALL) as served:
        for agent in ("kitchen", "garage"):
            served.http.post("/v1/agents", json={"id": agent})
        with halfway(served, "garage", ALL):
            refused = served.http.get("/v1/agents/garage")
            assert refused.status_code == 429 and "this agent" in refused.json()["error"]["message"]
            assert served.http.get("/v1/agents/kitchen").status_code == 200
            foreign = served.http.get("/v1/agents/garage", headers={"Authorization": f"Bearer {KITCHEN}"})
            assert foreign.status_code == 403


def test_agents_sleep_and_wake_up_as_they_were(serve: Callable[..., Any]) -> None:
    settings = replace(SETTINGS, agents=AgentLimits(agents=5, awake=2))
    with serve(settings=settings) as served, Client(served.url) as client:
        agents = [client.agent(f"robot-{number}") for number in range(5)]
        for number, agent in enumerate(agents):
            agent.observe([Fact(f"mug_{i}", "object", "mug") for i in range(number + 1)])
        assert "keep_agent_agents_awake 2.0" in served.http.get("/metrics").text
        assert [agent.about().segments for agent in agents] == [1, 2, 3, 4, 5]
        with pytest.raises(ServerError, match="5 agents, no more are allowed") as error:
            client.agent("robot-5")
        assert error.value.status == 507


def test_many_use_and_delete_the_same_few(make_brain: Callable[[], Brain], tmp_path: Path) -> None:
    """Nobody meets a half-asleep agent, and nothing is left of a deleted one."""
    brain = make_brain()
    registry = Registry(brain, tmp_path, AgentLimits(awake=1), trace=False)
    failed: list[BaseException] = []

    def work(number: int) -> None:
        name = f"robot-{number % 3}"
        try:
            for turn in range(12):
                with registry.use(name) as agent:
                    agent.observe([Fact(f"mug_{number}_{turn}", "object", "mug")])
        except BaseException as error:
            failed.append(error)

    for number in range(3):
        registry.create(f"robot-{number}")
    threads = [threading.Thread(target=work, args=(number,)) for number in range(9)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failed
    for number in range(3):
        with registry.use(f"robot-{number}") as agent:
            assert agent.agent.segments == 36
    with registry.use("robot-0") as agent:
        registry.delete("robot-0")
        with pytest.raises(ConfigError, match="was closed"):
            agent.observe([MUG])
    registry.create("robot-0")
    with registry.use("robot-0") as agent:
        assert agent.agent.segments == 0
    registry.close()
    assert registry.names() == ["robot-0", "robot-1", "robot-2"]
    brain.engine.close()


def test_who_only_talked_is_forgotten_too(serve: Callable[..., Any]) -> None:
    with serve() as served:
        asked = {"prompt": "go to cabinet_1 " * 20, "tokens": 1}
        served.http.post("/v1/agents/kitchen/generate", json=asked)
        assert served.http.post("/v1/agents/kitchen/generate", json=asked).json()["kept"] > 0
        assert served.http.delete("/v1/agents/kitchen").status_code == 204
        assert served.http.delete("/v1/agents/kitchen").status_code == 404
        assert served.http.post("/v1/agents/kitchen/generate", json=asked).json()["kept"] == 0


def test_deleting_beside_other_calls_brings_nobody_back(make_brain: Callable[[], Brain], tmp_path: Path) -> None:
    """Each ends well, or says that there is none; never are there two owners of one journal."""
    brain = make_brain()
    registry = Registry(brain, tmp_path, trace=False)
    failed: list[BaseException] = []

    def work(what: Callable[[], None]) -> None:
        for _ in range(40):
            try:
                what()
            except (NotFound, Conflict, ConfigError):
                pass
            except BaseException as error:
                failed.append(error)

    def observe() -> None:
        with registry.use("kitchen") as agent:
            agent.observe([MUG])

    delete = [lambda: registry.delete("kitchen")] * 2
    calls = [observe, observe, *delete, lambda: registry.create("kitchen")]
    threads = [threading.Thread(target=work, args=(call,)) for call in calls]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failed
    if "kitchen" in registry.names():
        registry.delete("kitchen")
    assert not registry.awake and not registry.names()
    registry.close()
    brain.engine.close()


def test_a_damaged_agent_disturbs_nobody_and_can_be_deleted(serve: Callable[..., Any], tmp_path: Path) -> None:
    with serve() as served, Client(served.url) as client:
        client.agent("kitchen").observe([MUG])
    (memory,) = (tmp_path / "server" / "agents").glob("kitchen-*/memory.json")
    memory.write_bytes(memory.read_bytes()[:-5])
    with serve() as served, Client(served.url) as client:
        with pytest.raises(ServerError, match="damaged") as error:
            client.agent("kitchen").about()
        assert error.value.status == 400
        client.agent("garage").observe([MUG])
        client.delete("kitchen")
        assert client.agent("kitchen").about().segments == 0


def test_a_damaged_agent_takes_a_memory_that_is_put_in(serve: Callable[..., Any], tmp_path: Path) -> None:
    with serve() as served, Client(served.url) as client:
        client.agent("kitchen").observe([MUG])
        client.agent("kitchen").save(tmp_path / "saved")
    (memory,) = (tmp_path / "server" / "agents").glob("kitchen-*/memory.json")
    memory.write_bytes(memory.read_bytes()[:-5])
    with serve() as served, Client(served.url) as client:
        agent = client.agent("kitchen")
        with pytest.raises(ServerError, match="damaged"):
            agent.about()
        agent.load(tmp_path / "saved")
        assert agent.about().segments == 1
    with serve() as served, Client(served.url) as client:
        assert client.agent("kitchen").about().segments == 1


def test_a_plan_asked_again_is_not_made_twice(serve: Callable[..., Any]) -> None:
    """With the number of the last decision that is known; another's is a conflict."""
    with serve() as served:
        served.http.post("/v1/agents", json={"id": "kitchen"})
        body = {"instruction": "get the mug", "skills": SKILLS, "after": 0}
        for _ in range(3):
            assert served.http.post("/v1/agents/kitchen/plan", json=body).json()["number"] == 1
            facts = [{"id": "mug_1", "category": "object", "type": "mug"}]
            served.http.post("/v1/agents/kitchen/observe", json={"facts": facts})
        for wrong in ({"after": 2}, {"instruction": "get the cup"}):
            for stream in (True, False):
                answer = served.http.post("/v1/agents/kitchen/plan", json={**body, **wrong, "stream": stream})
                assert (answer.status_code, answer.json()["error"]["type"]) == (409, "StaleError")
        assert served.http.get("/v1/agents/kitchen").json()["decisions"] == 1


def test_a_socket_that_wakes_an_agent_is_one_of_the_requests(
    serve: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else as many threads as there are handshakes would wake agents at once."""
    woken, go, wake = [], threading.Event(), Registry._wake

    def slowly(registry: Registry, name: str, *given: Any) -> Any:
        woken.append(name)
        assert go.wait(20)
        return wake(registry, name, *given)

    monkeypatch.setattr(Registry, "_wake", slowly)
    with serve(settings=replace(SETTINGS, limits=Limits(requests=1))) as served:
        for name in ("kitchen", "garage"):
            served.http.post("/v1/agents", json={"id": name})
        looking = threading.Thread(target=lambda: served.http.get("/v1/agents/garage"))
        looking.start()
        until(lambda: bool(woken))
        url = f"ws://127.0.0.1:{served.port}/v1/agents/kitchen/socket"
        with pytest.raises(InvalidStatus), connect(url, open_timeout=5):
            pass
        assert woken == ["garage"]
        go.set()
        looking.join()
        with connect(url) as socket:
            socket.send(json.dumps({"type": "observe", "facts": []}))
            assert json.loads(socket.recv(20)) == {"type": "observed"}


def test_one_process_has_the_folder(make_brain: Callable[[], Brain], tmp_path: Path) -> None:
    brain = make_brain()
    first = Registry(brain, tmp_path)
    with pytest.raises(ConfigError, match="is at work"):
        Registry(brain, tmp_path)
    first.close()
    Registry(brain, tmp_path).close()
    brain.engine.close()


def test_many_long_skills_are_chosen_from(serve: Callable[..., Any]) -> None:
    """In several forwards, so that memory is bounded."""
    skills = [f"{chr(97 + number % 26)}{number} " * 20 for number in range(160)]
    with serve() as served:
        served.http.post("/v1/agents", json={"id": "kitchen"})
        body = {"instruction": "x " * 999, "skills": skills, "trace": "none"}
        assert served.http.post("/v1/agents/kitchen/plan", json=body).json()["skill"] in skills


def test_a_socket_carries_a_robots_whole_day(serve: Callable[..., Any]) -> None:
    with serve() as served:
        served.http.post("/v1/agents", json={"id": "kitchen"})
        with connect(f"ws://127.0.0.1:{served.port}/v1/agents/kitchen/socket") as socket:

            def say(**message: Any) -> dict[str, Any]:
                socket.send(json.dumps(message))
                return json.loads(socket.recv(20))

            fact = {"id": "mug_1", "category": "object", "type": "mug"}
            assert say(type="observe", facts=[fact]) == {"type": "observed"}
            assert say(type="plan", instruction="get the mug", skills=SKILLS)["type"] == "ready"
            decision = json.loads(socket.recv(20))
            assert decision["type"] == "decision" and decision["skill"] in SKILLS
            assert say(type="report", ok=True, number=decision["number"]) == {"type": "reported"}
            assert say(type="finish", success=True) == {"type": "finished"}
            for wrong in ({"type": "fly"}, {"type": "plan"}, {"type": "report", "ok": True}, {}):
                answer = say(**wrong)
                assert (answer["type"], answer["status"]) == ("error", 400) and answer["error"]["message"]
            for text in ("{", "[" * 999, '{"type": "observe", "facts": [NaN]}', '"\\ud800"'):
                socket.send(text)
                assert json.loads(socket.recv(20))["type"] == "error"
            socket.send(b"\xff\xfe")
            assert json.loads(socket.recv(20))["type"] == "error"
            assert say(type="observe", facts=[fact]) == {"type": "observed"}


def test_a_socket_is_for_those_with_a_token(serve: Callable[..., Any]) -> None:
    with serve(SCOPED) as served:
        served.http.post("/v1/agents", json={"id": "kitchen"}, headers={"Authorization": f"Bearer {KITCHEN}"})
        url = f"ws://127.0.0.1:{served.port}/v1/agents"
        for name, token in (("kitchen", "guess"), ("garage", KITCHEN), ("kitchen", "")):
            head = {"Authorization": f"Bearer {token}"} if token else {}
            with (
                pytest.raises((InvalidStatus, ConnectionClosed)),
                connect(f"{url}/{name}/socket", additional_headers=head) as s,
            ):
                s.recv(10)
        with connect(f"{url}/kitchen/socket", additional_headers={"Authorization": f"Bearer {KITCHEN}"}) as socket:
            socket.send(json.dumps({"type": "observe", "facts": []}))
            assert json.loads(socket.recv(20)) == {"type": "observed"}
    with serve() as served:
        served.http.post("/v1/agents", json={"id": "kitchen"})
        foreign = {"Origin": "http://evil.example"}
        with (
            pytest.raises(InvalidStatus),
            connect(f"ws://127.0.0.1:{served.port}/v1/agents/kitchen/socket", additional_headers=foreign),
        ):
            pass


def test_what_happened_is_recorded_for_the_viewer(serve: Callable[..., Any], tmp_path: Path) -> None:
    from keep_agent.trace import read_trace

    with serve() as served, Client(served.url) as client:
        agent = client.agent("kitchen")
        agent.plan("get the mug", SKILLS)
        agent.report(Outcome(False, "stuck"))
        agent.finish(False)
    with serve() as served, Client(served.url) as client:
        agent = client.agent("kitchen")
        agent.plan("get the cup", SKILLS)
        agent.report(Outcome(True))
        (run,) = (tmp_path / "server" / "runs").iterdir()
        entries = list(read_trace(run / "trace.jsonl"))
        assert [entry["event"] for entry in entries[:4]] == ["episode", "step", "task", "step"]
        assert [entry["instruction"] for entry in entries[1:4]] == ["get the mug", "get the mug", "get the cup"]
        client.delete("kitchen")
        assert not list((tmp_path / "server" / "runs").iterdir())


def test_a_client_says_what_is_wrong(serve: Callable[..., Any]) -> None:
    with Client("http://127.0.0.1:9", patience=0.1) as client, pytest.raises(ServerError, match="does not answer"):
        client.agents()
    with serve(SCOPED) as served, Client(served.url, "guess") as client:
        with pytest.raises(ServerError, match="no token") as error:
            client.agents()
        assert error.value.status == 401


def test_large_and_slow_bodies_do_not_reach_a_planner(serve: Callable[..., Any]) -> None:
    settings = replace(SETTINGS, limits=Limits(body_seconds=0.5, large={"/v1/agents/*/memory": 1000}))
    with serve(settings=settings) as served:
        served.http.post("/v1/agents", json={"id": "kitchen"})
        head = post("/v1/agents/kitchen/observe", b"").replace(b"Content-Length: 0", b"Content-Length: 100000000")
        assert status(served.raw(head)) == 413
        slow = post("/v1/agents/kitchen/observe", b"").replace(b"Content-Length: 0", b"Content-Length: 50")
        began = time.monotonic()
        assert status(served.raw(slow, b"{")) == 408
        assert time.monotonic() - began < 5
        assert served.http.put("/v1/agents/kitchen/memory", content=b"x" * 1001).status_code == 413

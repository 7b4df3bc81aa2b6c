"""Scenarios over HTTP: played in parallel with other requests; each token reads only its agents' turns."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any

import httpx
import pytest
from fastapi.testclient import TestClient
from hypothesis import given, settings
from hypothesis import strategies as st

from keep_agent.scenarios import turn_records as turns
from keep_agent.scenarios.scenario import Phase, make_scenario, shipped
from keep_agent.scenarios.transcript import Transcripts
from keep_agent.server.auth.tokens import Access, TokenEntry, Tokens
from keep_agent.server.error_handlers import Unavailable
from keep_agent.server.scenarios.registry import Scenarios, SharedPlayer
from keep_agent.server.settings import ChatLimits
from memory.engine.base import Engine
from tests.keep_agent.scenarios.test_scenario import draw_phase
from tests.keep_agent.server.conftest import Build, Serve
from tests.keep_agent.server.serving import LiveServer, bearer, entry, post
from tests.waiting import PATIENCE, until

PATH = "/v1/scenarios"
AGENTS = ("ada", "ben", "cem")


def scenario(name: str = "house", **phase: Any) -> dict[str, Any]:
    agents = {"ada": {"system": "You are Ada."}, "ben": {"system": "You are Ben.", "permanent": False}}
    first = {"name": "morning", "participants": ["ada", "ben"], "rounds": 2, "max_tokens": 6, **phase}
    return {"name": name, "agents": agents, "phases": [first, {"name": "noon", "participants": ["ben"]}]}


def only(*ids: str) -> TokenEntry:
    return entry("token " + " ".join(ids), "-".join(ids), *ids)


def of(*ids: str) -> dict[str, str]:
    return bearer("token " + " ".join(ids))


OWNERS = "persist_house_ada", "persist_house_ben"
TOKENS = Tokens((entry("token-all", "all"), *(only(owner) for owner in (*OWNERS, "robot")), only(*OWNERS)))
ADA, BEN, ADA_AND_BEN, NEITHER = of(OWNERS[0]), of(OWNERS[1]), of(*OWNERS), of("robot")


@pytest.fixture
def server(serve: Serve) -> Iterator[LiveServer]:
    with serve("token-all", tokens=TOKENS) as (instance, _):
        yield instance


def begin(server: LiveServer, content: dict[str, Any], code: int = 201, **headers: str) -> Any:
    answer = server.http.post(PATH, json={"scenario": content}, headers=headers)
    assert answer.status_code == code, answer.text
    return answer.json()


def test_a_scenario_is_played_turn_by_turn(server: LiveServer) -> None:
    state = begin(server, scenario())
    assert (state["agents"], state["played"], state["turns"], state["done"]) == (["ada", "ben"], 0, 5, False)
    place = f"{PATH}/{state['id']}"
    first = server.http.post(f"{place}/turns", json={"turns": 3}).json()
    assert [turn["agent"] for turn in first["turns"]] == ["ada", "ben", "ada"]
    assert first["turns"][2]["kind"] == "extend" and first["turns"][2]["kept"] > 0
    rest = server.http.post(f"{place}/turns", json={"turns": 9}).json()
    assert [turn["index"] for turn in rest["turns"]] == [3, 4] and rest["done"]
    answer_json = server.http.get(f"{place}/transcript", params={"agent": "ben"}).json()
    assert [phase["phase"] for phase in answer_json["phases"]] == ["morning", "noon"]
    lines = answer_json["phases"][0]["text"].splitlines()
    assert lines[0] == f"ada: {first['turns'][0]['text']}" and lines[1].startswith("You: ")
    assert server.http.post(f"{place}/turns", json={}).json() == {"played": 0, "turns": [], "done": True}
    assert [item["id"] for item in server.http.get(PATH).json()] == [state["id"]]
    assert server.http.delete(place).status_code == 204
    assert server.http.get(place).status_code == 404


def test_a_token_reads_only_what_its_agents_heard(server: LiveServer) -> None:
    state = begin(server, scenario(audience={"ada": ["ada"]}), **ADA_AND_BEN)
    place = f"{PATH}/{state['id']}"
    new = server.http.post(f"{place}/turns", json={"turns": 5}, headers=BEN).json()
    assert [turn["index"] for turn in new["turns"]] == [0, 1, 2] and new["played"] == 3 and new["done"]
    assert {turn["agent"] for turn in new["turns"]} == {"ben"}
    assert all(turn["audience"] == ["ben"] and turn["kept"] is not None for turn in new["turns"])
    for headers, agent, code in ((ADA, "ada", 200), (ADA, "ben", 403), (ADA, "unknown", 403), (BEN, "ada", 403)):
        answer = server.http.get(f"{place}/transcript", params={"agent": agent}, headers=headers)
        assert answer.status_code == code
    assert server.http.get(f"{place}/transcript", params={"agent": "unknown"}).status_code == 404
    answer_json = server.http.get(place, headers=BEN).json()
    assert (answer_json["agents"], answer_json["played"], answer_json["turns"]) == (["ben"], 3, 3)
    assert server.http.get(place).json()["turns"] == 5
    for method, path in (("GET", ""), ("POST", "/turns"), ("GET", "/transcript?agent=ada"), ("DELETE", "")):
        hidden = server.http.request(method, place + path, headers=NEITHER, json={} if method == "POST" else None)
        missing = server.http.request(method, f"{PATH}/ffff{path}", headers=NEITHER, json={})
        assert hidden.status_code == missing.status_code == 404
        assert hidden.text.replace(state["id"], "ffff") == missing.text
    assert server.http.get(PATH, headers=NEITHER).json() == []
    assert server.http.delete(place, headers=ADA).status_code == 403
    assert server.http.delete(place, headers=ADA_AND_BEN).status_code == 204


def test_beginning_a_scenario_needs_tokens_for_all_its_agents(server: LiveServer) -> None:
    begin(server, scenario(), 403, **ADA)
    begin(server, scenario("elsewhere"), 403, **ADA_AND_BEN)
    begin(server, scenario(), **ADA_AND_BEN)
    assert "house" in begin(server, scenario(), 409)["error"]["message"]


def test_scenarios_of_one_name_run_in_parallel_with_different_agents(serve: Serve) -> None:
    tokens = Tokens((*TOKENS.entries, only("persist_house_eve")))
    with serve("token-all", tokens=tokens) as (server, _):
        night = {"name": "night", "participants": ["eve"], "max_tokens": 2}
        eve_scenario = {"name": "house", "agents": {"eve": {"system": "You are Eve."}}, "phases": [night]}
        other_scenario = begin(server, scenario())["id"]
        eve = of("persist_house_eve")
        place = f"{PATH}/{begin(server, eve_scenario, **eve)['id']}"
        assert [item["agents"] for item in server.http.get(PATH, headers=eve).json()] == [["eve"]]
        assert server.http.post(f"{place}/turns", json={}, headers=eve).json()["done"]
        shared = eve_scenario | {"agents": {**eve_scenario["agents"], "ada": {"system": "x"}}}
        shared["phases"] = [{"name": "night", "participants": ["eve", "ada"]}]
        assert "is running" in begin(server, shared, 409)["error"]["message"]
        for item in (place, f"{PATH}/{other_scenario}"):
            assert server.http.delete(item).status_code == 204
        begin(server, shared)


def test_scenarios_of_the_package_are_found_by_name_and_files_are_not(server: LiveServer, tmp_path: Path) -> None:
    for name in shipped():
        assert server.http.post(PATH, json={"name": name}).status_code == 201
    file = tmp_path / "mine.yaml"
    file.write_text(json.dumps(scenario("filed")))
    for name in (str(file), "../phases/handover", "", "nothing"):
        assert server.http.post(PATH, json={"name": name}).status_code == 404


WRONG: list[tuple[dict[str, Any], str]] = [
    ({}, "missing"), (scenario() | {"name": "A B"}, "name"), (scenario(rounds=10**30), "turns"),
    (scenario(max_tokens=10**6), "max_tokens"), (scenario(rounds=0), "rounds"), (scenario(what=1), "what"),
    (scenario() | {"agents": {f"a{n}": {"system": "x"} for n in range(20)}}, "20 agents"),
    (scenario() | {"agents": []}, "agents"), (scenario() | {"phases": {}}, "phases"),
    (scenario(participants=[["ada"]]), "agent"), (scenario(opening="${x.messages[ada]}"), "phase"),
]  # fmt: skip


@pytest.mark.parametrize(("content", "query"), WRONG, ids=[query for _, query in WRONG])
def test_invalid_and_large_scenarios_are_refused(serve: Serve, content: dict[str, Any], query: str) -> None:
    with serve("token-all", tokens=TOKENS) as (server, _):
        assert query in begin(server, content, 400)["error"]["message"]


def test_many_templates_are_refused(server: LiveServer) -> None:
    content = scenario()
    content["phases"][1]["instructions"] = {"ben": "${morning.messages[ben]}\n" * 100}
    assert "100 templates" in begin(server, content, 400)["error"]["message"]


def test_the_number_of_scenarios_is_limited(serve: Serve) -> None:
    """A token for certain agents is not refused because others have many scenarios."""
    with serve("token-all", tokens=TOKENS, chat_limits=ChatLimits(scenarios=2)) as (server, _):
        for name in ("one", "two"):
            begin(server, scenario(name))
        assert "2 scenarios" in begin(server, scenario("three"), 507)["error"]["message"]
        begin(server, scenario(), **ADA_AND_BEN)


def test_a_request_for_one_turn_returns_one_that_its_agents_heard(server: LiveServer) -> None:
    place = f"{PATH}/{begin(server, scenario(audience={'ada': ['ada']}), **ADA_AND_BEN)['id']}"
    for index in range(3):
        new = server.http.post(f"{place}/turns", json={}, headers=BEN).json()
        assert [(turn["index"], turn["agent"]) for turn in new["turns"]] == [(index, "ben")]
        assert new["played"] == 1
    assert server.http.post(f"{place}/turns", json={}, headers=BEN).json() == {"played": 0, "turns": [], "done": True}


def test_a_token_for_an_absent_agent_learns_no_other_agents(serve: Serve) -> None:
    tokens = Tokens((*TOKENS.entries, only("persist_house_ada", "persist_house_zoe")))
    with serve("token-all", tokens=tokens) as (server, _):
        place = f"{PATH}/{begin(server, scenario())['id']}"
        headers = of("persist_house_ada", "persist_house_zoe")
        answer = server.http.get(f"{place}/transcript", params={"agent": "zoe"}, headers=headers)
        assert answer.status_code == 404 and "ada" in answer.text and "ben" not in answer.text


def test_a_scenario_is_played_beside_conversations(server: LiveServer) -> None:
    place = f"{PATH}/{begin(server, scenario(rounds=20))['id']}"
    body = {"prompt": "Robot: find a mug, 2.", "tokens": 30}
    alone = server.http.post("/v1/agents/alone/generate", json=body).json()
    headers = server.http.headers

    def play() -> httpx.Response:
        return httpx.post(f"{server.url}{place}/turns", json={"turns": 40}, headers=headers, timeout=PATIENCE)

    with ThreadPoolExecutor(2) as pool:
        playing = pool.submit(play)
        talked = [server.http.post(f"/v1/agents/t{n}/generate", json=body).json()["text"] for n in range(3)]
        assert playing.result().json()["played"] == 40
    assert set(talked) == {alone["text"]}


def test_rows_of_temporary_agents_are_deleted(serve: Serve, tmp_path: Path) -> None:
    with serve("token-all", tokens=TOKENS, folder=tmp_path) as (server, whole):
        place = f"{PATH}/{begin(server, scenario())['id']}"
        server.http.post(f"{place}/turns", json={"turns": 2})
        assert whole.conversations.memories.stats()["agents"] == 2
        assert server.http.delete(place).status_code == 204
        assert whole.conversations.memories.stats()["agents"] == 1
        place = f"{PATH}/{begin(server, scenario())['id']}"
        server.http.post(f"{place}/turns", json={"turns": 2})
    assert [path.name.split("-")[0] for path in tmp_path.glob("*.safetensors")] == ["persist_house_ada"]


def test_the_reason_of_a_failure_is_for_tokens_of_the_speaker(serve: Serve) -> None:
    content = scenario(audience={"ben": ["ben"]})
    content["agents"]["ben"]["system"] = "You are Ben. " * 40
    with serve("token-all", tokens=TOKENS, chat_limits=ChatLimits(prompt_chars=300)) as (server, _):
        for headers, codes in ((ADA, (409, 409)), (BEN, (413, 409)), (ADA_AND_BEN, (413, 409)), ({}, (413, 409))):
            place = f"{PATH}/{begin(server, content)['id']}"
            assert server.http.post(f"{place}/turns", json={"turns": 1}, headers=headers).status_code == 200
            answers = [server.http.post(f"{place}/turns", json={}, headers=headers) for _ in codes]
            assert tuple(answer.status_code for answer in answers) == codes
            later = server.http.post(f"{place}/turns", json={}, headers=ADA)
            for answer in (*answers[codes.index(409) :], later):
                assert answer.json() == later.json() and "characters" not in answer.text
                assert "TooLarge" not in answer.text
            assert server.http.delete(place).status_code == 204
        body = {"prompt": "Robot", "tokens": 1}
        assert server.http.post("/v1/agents/other/generate", json=body).status_code == 200


def test_one_request_at_a_time_plays_a_scenario(serve: Serve, engine: Engine) -> None:
    release = threading.Event()
    hold = engine.decoder.layers[0].mlp.register_forward_hook(lambda *_: until(release.is_set))
    with hold, serve("token-all", tokens=TOKENS) as (server, whole):
        place = f"{PATH}/{begin(server, scenario(rounds=90, max_tokens=40))['id']}"
        with server.socket() as client:
            client.sendall(post(f"{place}/turns", b'{"turns": 120}', Authorization="Bearer token-all"))
            until(lambda: whole.limiter.active == 1)
            refusal = server.http.post(f"{place}/turns", json={})
            assert refusal.status_code == 429 and int(refusal.headers["retry-after"]) >= 1
            release.set()
        until(lambda: whole.limiter.active == 0)
        assert server.http.post(f"{place}/turns", json={}).json()["played"] == 1


def played_by(player: type[SharedPlayer]) -> type[Scenarios]:
    return type("PlayedBy", (Scenarios,), {"player": player})


class Slow(SharedPlayer):
    """Player whose turns wait for ``go``, and then fail."""

    started, go = threading.Event(), threading.Event()

    def _turn(self, transcripts: Transcripts, phase: Phase, number: int, speaker: str, index: int) -> turns.Turn:
        self.started.set()
        assert self.go.wait(PATIENCE)
        raise Unavailable("it was cancelled")


def test_closing_waits_for_the_turn_of_a_cancelled_request(build: Build) -> None:
    """uvicorn cancels requests after its grace period, but the thread of a turn continues: closing waits for it."""
    whole, access = build(scenarios_of=played_by(Slow)), Access("all")

    async def end() -> None:
        names = ("one", "other")
        first, _ = (whole.scenarios.create(access, make_scenario(scenario(name))) for name in names)
        request = asyncio.create_task(whole.scenarios.play(access, first))
        await asyncio.to_thread(Slow.started.wait, PATIENCE)
        request.cancel()
        with suppress(asyncio.CancelledError):
            await request
        ending = asyncio.create_task(whole.scenarios.close())
        await asyncio.to_thread(until, lambda: first.is_closed)
        assert not ending.done()
        Slow.go.set()
        await ending
        assert not whole.scenarios.all(access)

    asyncio.run(end())


class Scripted(SharedPlayer):
    """Player whose turns have a unique word each, which is found in any answer."""

    def _turn(self, transcripts: Transcripts, phase: Phase, number: int, speaker: str, index: int) -> turns.Turn:
        transcripts.prompt(speaker)
        message = transcripts.add_message(phase, speaker, f"secret{index}x")
        return turns.Turn(
            index=index, id=f"{phase.name}/{number}/{speaker}", phase=phase.name, round=number, agent=speaker,
            name=speaker, text=message.text, audience=message.audience, memory="m", kind="miss", origin="cold",
            kept=0, new=1, generated=1, ttft_ms=0.0, decode_ms=0.0,
        )  # fmt: skip


@pytest.fixture(scope="module")
def scripted(build: Build) -> Iterator[TestClient]:
    tokens = Tokens((entry("token-all", "all"), *(only(f"persist_random_{agent}") for agent in AGENTS)))
    whole = build(tokens=tokens, scenarios_of=played_by(Scripted))
    with TestClient(whole.app) as client:
        yield client


def insert_transcripts(phase_list: list[dict[str, Any]]) -> None:
    """Let the last phase insert each agent's transcript of the first."""
    first, last = phase_list[0], phase_list[-1]
    if first is last:
        return
    new = {agent for item in first["speakers"] for agent in [*first["audience"].get(item, AGENTS), item]}
    present = new & set(first["participants"]) & set(last["participants"])
    if present:
        last["instructions"] = {agent: f"${{{first['name']}.messages[{agent}]}}" for agent in sorted(present)}


@given(st.data(), st.integers(1, 3))
@settings(max_examples=60)
def test_no_answer_has_a_message_its_agent_did_not_hear(scripted: TestClient, data: st.DataObject, count: int) -> None:
    notes = iter(range(1000))
    phase_list = [draw_phase(data.draw, f"p{number}", AGENTS, notes) for number in range(count)]
    insert_transcripts(phase_list)
    present = sorted({agent for phase in phase_list for agent in phase["participants"]})
    content = {"name": "random", "agents": {agent: {"system": "x"} for agent in present}, "phases": phase_list}
    everything = bearer("token-all")
    answer = scripted.post(PATH, json={"scenario": content}, headers=everything)
    assert answer.status_code == 201, answer.text
    place = f"{PATH}/{answer.json()['id']}"
    got: dict[str, str] = dict.fromkeys(AGENTS, "")
    audiences: list[set[str]] = [
        set(phase["participants"]) & {*phase["audience"].get(speaker, present), speaker}
        for phase in phase_list for _ in range(phase["rounds"]) for speaker in phase["speakers"]
    ]  # fmt: skip
    try:
        for _ in range(len(audiences)):
            agent = data.draw(st.sampled_from(present))
            turns_asked = {"turns": data.draw(st.integers(1, 4))}
            got[agent] += scripted.post(f"{place}/turns", json=turns_asked, headers=of(f"persist_random_{agent}")).text
        scripted.post(f"{place}/turns", json={"turns": 50}, headers=everything)
        for agent in AGENTS:
            headers = of(f"persist_random_{agent}")
            for path in (PATH, place, *(f"{place}/transcript?agent={second}" for second in AGENTS)):
                got[agent] += scripted.get(path, headers=headers).text
    finally:
        assert scripted.delete(place, headers=everything).status_code == 204
    for index, audience in enumerate(audiences):
        for agent in AGENTS:
            assert (f"secret{index}x" in got[agent]) == (agent in audience)

"""Scenarios over HTTP: they are played beside everything else, and nobody hears what was not for its ears."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Iterator
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
from keep_agent.scenarios.transcript import Story
from keep_agent.server.auth.tokens import Access, Entry, Tokens, digest
from keep_agent.server.error_handlers import Unavailable
from keep_agent.server.scenarios.registry import Running, Scenarios, SharedPlayer
from keep_agent.server.settings import ChatLimits
from memory.engine.base import Engine
from tests.keep_agent.server.conftest import Build, Serve
from tests.keep_agent.server.serving import Served, post
from tests.waiting import PATIENCE, until

PATH = "/v1/scenarios"
AGENTS = ("ada", "ben", "cem")


def scenario(name: str = "house", **phase: Any) -> dict[str, Any]:
    agents = {"ada": {"system": "You are Ada."}, "ben": {"system": "You are Ben.", "permanent": False}}
    first = {"name": "morning", "participants": ["ada", "ben"], "rounds": 2, "max_tokens": 6, **phase}
    return {"name": name, "agents": agents, "phases": [first, {"name": "noon", "participants": ["ben"]}]}


def only(*ids: str) -> Entry:
    return Entry(Access("-".join(ids), frozenset(ids)), digest("token " + " ".join(ids)))


TOKENS = Tokens(
    (
        Entry(Access("all"), digest("token-all")), only("persist_house_ada"), only("persist_house_ben"),
        only("persist_house_ada", "persist_house_ben"), only("robot"),
    )
)  # fmt: skip


def of(*ids: str) -> dict[str, str]:
    return {"Authorization": "Bearer token " + " ".join(ids)}


ADA, BEN, BOTH, NEITHER = (
    of("persist_house_ada"), of("persist_house_ben"), of("persist_house_ada", "persist_house_ben"), of("robot")
)  # fmt: skip


@pytest.fixture
def served(serve: Serve) -> Iterator[Served]:
    with serve("token-all", tokens=TOKENS) as (made, _):
        yield made


def begun(served: Served, content: dict[str, Any], code: int = 201, **headers: str) -> Any:
    answer = served.http.post(PATH, json={"scenario": content}, headers=headers)
    assert answer.status_code == code, answer.text
    return answer.json()


def test_a_scenario_is_played_turn_by_turn(served: Served) -> None:
    shown = begun(served, scenario())
    assert (shown["agents"], shown["played"], shown["turns"], shown["done"]) == (["ada", "ben"], 0, 5, False)
    place = f"{PATH}/{shown['id']}"
    first = served.http.post(f"{place}/turns", json={"turns": 3}).json()
    assert [turn["agent"] for turn in first["turns"]] == ["ada", "ben", "ada"]
    assert first["turns"][2]["kind"] == "extend" and first["turns"][2]["kept"] > 0
    rest = served.http.post(f"{place}/turns", json={"turns": 9}).json()
    assert [turn["index"] for turn in rest["turns"]] == [3, 4] and rest["done"]
    told = served.http.get(f"{place}/transcript", params={"agent": "ben"}).json()
    assert [phase["phase"] for phase in told["phases"]] == ["morning", "noon"]
    lines = told["phases"][0]["text"].splitlines()
    assert lines[0] == f"ada: {first['turns'][0]['text']}" and lines[1].startswith("You: ")
    assert served.http.post(f"{place}/turns", json={}).json() == {"played": 0, "turns": [], "done": True}
    assert [one["id"] for one in served.http.get(PATH).json()] == [shown["id"]]
    assert served.http.delete(place).status_code == 204
    assert served.http.get(place).status_code == 404


def test_what_is_not_for_all_ears_is_told_to_those_only(served: Served) -> None:
    shown = begun(served, scenario(audience={"ada": ["ada"]}), **BOTH)
    place = f"{PATH}/{shown['id']}"
    heard = served.http.post(f"{place}/turns", json={"turns": 5}, headers=BEN).json()
    assert [turn["index"] for turn in heard["turns"]] == [0, 1, 2] and heard["played"] == 3 and heard["done"]
    assert {turn["agent"] for turn in heard["turns"]} == {"ben"}
    assert all(turn["audience"] == ["ben"] and turn["kept"] is not None for turn in heard["turns"])
    for headers, agent, code in ((ADA, "ada", 200), (ADA, "ben", 403), (ADA, "nobody", 403), (BEN, "ada", 403)):
        answer = served.http.get(f"{place}/transcript", params={"agent": agent}, headers=headers)
        assert answer.status_code == code
    assert served.http.get(f"{place}/transcript", params={"agent": "nobody"}).status_code == 404
    told = served.http.get(place, headers=BEN).json()
    assert (told["agents"], told["played"], told["turns"]) == (["ben"], 3, 3)
    assert served.http.get(place).json()["turns"] == 5
    for method, path in (("GET", ""), ("POST", "/turns"), ("GET", "/transcript?agent=ada"), ("DELETE", "")):
        hidden = served.http.request(method, place + path, headers=NEITHER, json={} if method == "POST" else None)
        nothing = served.http.request(method, f"{PATH}/ffff{path}", headers=NEITHER, json={})
        assert hidden.status_code == nothing.status_code == 404
        assert hidden.text.replace(shown["id"], "ffff") == nothing.text
    assert served.http.get(PATH, headers=NEITHER).json() == []
    assert served.http.delete(place, headers=ADA).status_code == 403
    assert served.http.delete(place, headers=BOTH).status_code == 204


def test_to_begin_one_takes_all_its_agents(served: Served) -> None:
    begun(served, scenario(), 403, **ADA)
    begun(served, scenario("elsewhere"), 403, **BOTH)
    begun(served, scenario(), **BOTH)
    assert "house" in begun(served, scenario(), 409)["error"]["message"]


def test_a_name_that_others_play_is_no_secret_to_be_learned(serve: Serve) -> None:
    tokens = Tokens((*TOKENS.entries, only("persist_house_eve")))
    with serve("token-all", tokens=tokens) as (served, _):
        content = scenario()
        own = {
            "name": "house",
            "agents": {"eve": {"system": "You are Eve."}},
            "phases": [{"name": "night", "participants": ["eve"], "max_tokens": 2}],
        }
        played = begun(served, content)["id"]
        eve = of("persist_house_eve")
        place = f"{PATH}/{begun(served, own, **eve)['id']}"
        assert [one["agents"] for one in served.http.get(PATH, headers=eve).json()] == [["eve"]]
        assert served.http.post(f"{place}/turns", json={}, headers=eve).json()["done"]
        both = own | {"agents": {**own["agents"], "ada": {"system": "x"}}}
        both["phases"] = [{"name": "night", "participants": ["eve", "ada"]}]
        assert "is running" in begun(served, both, 409)["error"]["message"]
        for one in (place, f"{PATH}/{played}"):
            assert served.http.delete(one).status_code == 204
        begun(served, both)


def test_those_of_the_package_are_found_by_name_and_no_file_is(served: Served, tmp_path: Path) -> None:
    for name in shipped():
        assert served.http.post(PATH, json={"name": name}).status_code == 201
    file = tmp_path / "mine.yaml"
    file.write_text(json.dumps(scenario("filed")))
    for name in (str(file), "../phases/handover", "", "nothing"):
        assert served.http.post(PATH, json={"name": name}).status_code == 404


WRONG: list[tuple[dict[str, Any], str]] = [
    ({}, "missing"), (scenario() | {"name": "A B"}, "name"), (scenario(rounds=10**30), "turns"),
    (scenario(max_tokens=10**6), "max_tokens"), (scenario(rounds=0), "rounds"), (scenario(what=1), "what"),
    (scenario() | {"agents": {f"a{n}": {"system": "x"} for n in range(20)}}, "20 agents"),
    (scenario() | {"agents": []}, "agents"), (scenario() | {"phases": {}}, "phases"),
    (scenario(participants=[["ada"]]), "agent"), (scenario(opening="${x.messages[ada]}"), "phase"),
]  # fmt: skip


@pytest.mark.parametrize(("content", "named"), WRONG, ids=[named for _, named in WRONG])
def test_what_is_no_scenario_or_too_much_is_refused(serve: Serve, content: dict[str, Any], named: str) -> None:
    with serve("token-all", tokens=TOKENS) as (served, _):
        assert named in begun(served, content, 400)["error"]["message"]


def test_templates_that_swell_are_refused(served: Served) -> None:
    content = scenario()
    content["phases"][1]["instructions"] = {"ben": "${morning.messages[ben]}\n" * 100}
    assert "100 templates" in begun(served, content, 400)["error"]["message"]


def test_so_many_and_no_more(serve: Serve) -> None:
    """A token for certain agents does not learn that others play as many as there may be."""
    with serve("token-all", tokens=TOKENS, chat_limits=ChatLimits(scenarios=2)) as (served, _):
        for name in ("one", "two"):
            begun(served, scenario(name))
        assert "2 scenarios" in begun(served, scenario("three"), 507)["error"]["message"]
        begun(served, scenario(), **BOTH)


def test_who_asks_for_one_turn_hears_one_whatever_is_played_meanwhile(served: Served) -> None:
    place = f"{PATH}/{begun(served, scenario(audience={'ada': ['ada']}), **BOTH)['id']}"
    for index in range(3):
        heard = served.http.post(f"{place}/turns", json={}, headers=BEN).json()
        assert [(turn["index"], turn["agent"]) for turn in heard["turns"]] == [(index, "ben")]
        assert heard["played"] == 1
    assert served.http.post(f"{place}/turns", json={}, headers=BEN).json() == {"played": 0, "turns": [], "done": True}


def test_a_voice_without_an_agent_is_not_told_of_the_others(serve: Serve) -> None:
    tokens = Tokens((*TOKENS.entries, only("persist_house_ada", "persist_house_zoe")))
    with serve("token-all", tokens=tokens) as (served, _):
        place = f"{PATH}/{begun(served, scenario())['id']}"
        headers = of("persist_house_ada", "persist_house_zoe")
        answer = served.http.get(f"{place}/transcript", params={"agent": "zoe"}, headers=headers)
        assert answer.status_code == 404 and "ada" in answer.text and "ben" not in answer.text


def test_a_scenario_is_played_while_others_talk(served: Served) -> None:
    place = f"{PATH}/{begun(served, scenario(rounds=20))['id']}"
    body = {"prompt": "Robot: find a mug, 2.", "tokens": 30}
    alone = served.http.post("/v1/agents/alone/generate", json=body).json()
    from concurrent.futures import ThreadPoolExecutor

    with ThreadPoolExecutor(2) as pool:
        playing = pool.submit(
            lambda: httpx.post(
                f"{served.url}{place}/turns", json={"turns": 40}, headers=served.http.headers, timeout=PATIENCE
            )
        )
        talked = [served.http.post(f"/v1/agents/t{n}/generate", json=body).json()["text"] for n in range(3)]
        assert playing.result().json()["played"] == 40
    assert set(talked) == {alone["text"]}


def test_rows_of_those_who_pass_by_are_forgotten(serve: Serve, tmp_path: Path) -> None:
    with serve("token-all", tokens=TOKENS, folder=tmp_path) as (served, whole):
        place = f"{PATH}/{begun(served, scenario())['id']}"
        served.http.post(f"{place}/turns", json={"turns": 2})
        assert whole.conversations.memories.stats()["agents"] == 2
        assert served.http.delete(place).status_code == 204
        assert whole.conversations.memories.stats()["agents"] == 1
        place = f"{PATH}/{begun(served, scenario())['id']}"
        served.http.post(f"{place}/turns", json={"turns": 2})
    assert [path.name.split("-")[0] for path in tmp_path.glob("*.safetensors")] == ["persist_house_ada"]


def test_a_turn_that_fails_ends_the_scenario_and_nothing_else(served: Served) -> None:
    content = scenario(opening="word " * 30_000)
    place = f"{PATH}/{begun(served, content)['id']}/turns"
    assert served.http.post(place, json={}).status_code == 413
    assert served.http.post(place, json={}).status_code == 409
    body = {"prompt": "Robot", "tokens": 1}
    assert served.http.post("/v1/agents/other/generate", json=body).status_code == 200


def test_why_a_turn_failed_is_told_to_those_who_hear_its_speaker(serve: Serve) -> None:
    content = scenario(audience={"ben": ["ben"]})
    content["agents"]["ben"]["system"] = "You are Ben. " * 40
    with serve("token-all", tokens=TOKENS, chat_limits=ChatLimits(prompt_chars=300)) as (served, _):
        for headers, codes in ((ADA, (409, 409)), (BEN, (413, 409)), (BOTH, (413, 409)), ({}, (413, 409))):
            place = f"{PATH}/{begun(served, content)['id']}"
            assert served.http.post(f"{place}/turns", json={"turns": 1}, headers=headers).status_code == 200
            answers = [served.http.post(f"{place}/turns", json={}, headers=headers) for _ in codes]
            assert tuple(answer.status_code for answer in answers) == codes
            later = served.http.post(f"{place}/turns", json={}, headers=ADA)
            for answer in (*answers[codes.index(409) :], later):
                assert answer.json() == later.json() and "characters" not in answer.text
                assert "TooLarge" not in answer.text
            assert served.http.delete(place).status_code == 204


def test_one_request_at_a_time_plays_a_scenario_on(serve: Serve, engine: Engine) -> None:
    told = threading.Event()
    hold = engine.decoder.layers[0].mlp.register_forward_hook(lambda *_: until(told.is_set))
    with hold, serve("token-all", tokens=TOKENS) as (served, whole):
        place = f"{PATH}/{begun(served, scenario(rounds=90, max_tokens=40))['id']}"
        with served.socket() as made:
            asked = post(f"{place}/turns", b'{"turns": 120}', Authorization="Bearer token-all")
            made.sendall(asked)
            until(lambda: whole.limiter.inside == 1)
            refused = served.http.post(f"{place}/turns", json={})
            assert refused.status_code == 429 and int(refused.headers["retry-after"]) >= 1
            told.set()
        until(lambda: whole.limiter.inside == 0)
        assert served.http.post(f"{place}/turns", json={}).json()["played"] == 1


def played_by(player: type[SharedPlayer]) -> type[Scenarios]:
    class Played(Scenarios):
        def _player(self, running: Running) -> SharedPlayer:
            plain = super()._player(running)
            return player(**{name: getattr(plain, name) for name in plain.__dataclass_fields__})

    return Played


class Slow(SharedPlayer):
    """Says nothing until it may."""

    begun, go = threading.Event(), threading.Event()

    def _turn(self, story: Story, phase: Phase, number: int, speaker: str, index: int) -> turns.Turn:
        self.begun.set()
        assert self.go.wait(PATIENCE)
        raise Unavailable("it was cancelled")


def test_the_end_waits_for_a_turn_whose_request_was_given_up(build: Build) -> None:
    """uvicorn cancels requests after its grace; the thread that plays goes on, and all scenarios are to be ended."""
    whole, access = build(scenarios_of=played_by(Slow)), Access("all")

    async def end() -> None:
        names = ("one", "other")
        first, _ = (whole.scenarios.create(access, make_scenario(scenario(name))) for name in names)
        request = asyncio.create_task(whole.scenarios.play(access, first))
        await asyncio.to_thread(Slow.begun.wait, PATIENCE)
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


# -- whatever the audiences are ----------------------------------------------------------------------------------------


class Scripted(SharedPlayer):
    """Says a word of its own at each turn, so that any of them is found wherever it gets."""

    def _turn(self, story: Story, phase: Phase, number: int, speaker: str, index: int) -> turns.Turn:
        story.prompt(speaker)
        said = story.say(phase, speaker, f"secret{index}x")
        return turns.Turn(
            index=index, id=f"{phase.name}/{number}/{speaker}", phase=phase.name, round=number, agent=speaker,
            name=speaker, text=said.text, audience=said.audience, memory="m", kind="miss", origin="cold", kept=0, new=1,
            generated=1, ttft_ms=0.0, decode_ms=0.0,
        )  # fmt: skip


@pytest.fixture(scope="module")
def scripted(build: Build) -> Iterator[TestClient]:
    entries = [Entry(Access("all"), digest("token-all"))]
    entries += [only(f"persist_random_{agent}") for agent in AGENTS]
    whole = build(tokens=Tokens(tuple(entries)), scenarios_of=played_by(Scripted))
    with TestClient(whole.app) as client:
        yield client


def some(of_these: tuple[str, ...]) -> st.SearchStrategy[list[str]]:
    return st.lists(st.sampled_from(of_these), min_size=1, unique=True)


@st.composite
def phases(draw: st.DrawFn, name: str) -> dict[str, Any]:
    there = draw(some(AGENTS))
    speakers = draw(some(tuple(there)))
    heard_by = {one: draw(some(tuple(there))) for one in speakers if draw(st.booleans())}
    made = {"name": name, "participants": there, "speakers": speakers, "rounds": draw(st.integers(1, 2))}
    return made | ({"audience": heard_by} if heard_by else {})


def told_back(made: list[dict[str, Any]]) -> None:
    """Let the last phase tell each agent what it heard of the first."""
    first, last = made[0], made[-1]
    if first is last:
        return
    heard = {agent for one in first["speakers"] for agent in [*first.get("audience", {}).get(one, AGENTS), one]}
    there = heard & set(first["participants"]) & set(last["participants"])
    if there:
        last["instructions"] = {agent: f"${{{first['name']}.messages[{agent}]}}" for agent in sorted(there)}


@given(st.data(), st.integers(1, 3))
@settings(max_examples=60)
def test_no_answer_tells_an_agent_what_it_did_not_hear(scripted: TestClient, data: st.DataObject, count: int) -> None:
    made = [data.draw(phases(f"p{number}")) for number in range(count)]
    told_back(made)
    there = sorted({agent for phase in made for agent in phase["participants"]})
    content = {"name": "random", "agents": {agent: {"system": "x"} for agent in there}, "phases": made}
    everything = {"Authorization": "Bearer token-all"}
    answer = scripted.post(PATH, json={"scenario": content}, headers=everything)
    assert answer.status_code == 201, answer.text
    place = f"{PATH}/{answer.json()['id']}"
    got: dict[str, str] = dict.fromkeys(AGENTS, "")
    audiences: list[set[str]] = [
        {agent for agent in phase["participants"] if agent in phase.get("audience", {}).get(one, there) or agent == one}
        for phase in made for _ in range(phase["rounds"]) for one in phase["speakers"]
    ]  # fmt: skip
    try:
        for _ in range(len(audiences)):
            agent = data.draw(st.sampled_from(there))
            asked = {"turns": data.draw(st.integers(1, 4))}
            got[agent] += scripted.post(f"{place}/turns", json=asked, headers=of(f"persist_random_{agent}")).text
        scripted.post(f"{place}/turns", json={"turns": 50}, headers=everything)
        for agent in AGENTS:
            headers = of(f"persist_random_{agent}")
            for path in (PATH, place, *(f"{place}/transcript?agent={other}" for other in AGENTS)):
                got[agent] += scripted.get(path, headers=headers).text
    finally:
        assert scripted.delete(place, headers=everything).status_code == 204
    for index, audience in enumerate(audiences):
        for agent in AGENTS:
            assert (f"secret{index}x" in got[agent]) == (agent in audience)

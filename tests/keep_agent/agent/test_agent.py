"""Planner API: agents decide as the planner in an evaluation's loop, and refuse invalid input."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import closing
from dataclasses import replace
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any

import pytest

from envs.fact import Fact
from envs.outcome import Outcome
from keep_agent.agent.agent import Agent
from keep_agent.config.planner_factory import PlannerResources
from keep_agent.errors import CapacityError, ConfigError, DataError, KeepError, StaleError
from tests.keep_agent.agent.playing import MUG_FACT, SKILLS, AsPlanner, play
from tests.threads import at_once

METHODS = "keep", "full_recompute", "cacheblend", "sparsex", "prefix_cache", "h2o"
FAST = ("keep", "linked"), ("prefix_cache", "plain")
SLOW = [
    pytest.param(*case, marks=pytest.mark.slow) for case in product(METHODS, ("plain", "linked")) if case not in FAST
]
GetResources = Callable[..., PlannerResources]
MakeAgent = Callable[..., Agent]


@pytest.mark.parametrize(("name", "style"), [*FAST, *SLOW])
def test_an_agent_decides_as_a_planner(resources: GetResources, make_agent: MakeAgent, name: str, style: str) -> None:
    """Encoding in advance never changes a decision."""
    overrides = f"planner={name}", f"prompt.style={style}", "memory.grouping.window=3", "prompt.budget=6"
    plain = play(resources(*overrides).planner("loop"))
    assert len(plain) > 16  # enough steps for executed skills to be memory too
    for ahead in (True, False):
        adapter = AsPlanner(make_agent(*overrides, name=f"ahead-{ahead}", ahead=ahead))
        steps = play(adapter)
        assert [step["skill"] for step in steps] == [step["skill"] for step in plain]
        for decision, step in zip(adapter.decisions, plain, strict=True):
            assert decision.trace["token_ids"] == step["token_ids"]
            assert [unit["kind"] for unit in decision.trace["units"]] == [unit["kind"] for unit in step["units"]]
            assert dict(decision.scores) == pytest.approx(dict(map(tuple, step["scores"])), abs=2e-3)


def test_changes_are_encoded_before_the_plan(agent: Agent) -> None:
    agent.observe([MUG_FACT, Fact("cabinet_1", "receptacle", "cabinet")])
    settle(agent)
    first = agent.plan("get the mug", SKILLS)
    assert "encoded_token_layers" not in first.trace["counts"]
    assert first.trace["ahead"]["tokens"] > 0
    agent.observe([Fact("mug_1", "object", "mug", "agent")])
    settle(agent)
    agent.report(Outcome(True))
    second = agent.plan("get the mug", SKILLS)
    assert "encoded_token_layers" not in second.trace["counts"]
    assert 0 < second.trace["ahead"]["tokens"] < first.trace["ahead"]["tokens"]
    agent._engine.run(lambda: agent._prefetcher.stop())
    agent.observe([Fact("mug_1", "object", "mug", "table_1")])
    agent.report(Outcome(True))
    assert agent.plan("get the mug", SKILLS).trace["counts"]["encoded_token_layers"] > 0


def settle(agent: Agent) -> None:
    while agent._engine.run(lambda: agent._prefetcher._queued):
        agent._engine.in_background(lambda: None).result()


def test_a_repeated_plan_is_one_decision(agent: Agent) -> None:
    agent.observe([MUG_FACT])
    first = agent.plan("Get the mug", SKILLS)
    assert agent.plan("get  the mug", [*SKILLS, SKILLS[0]]) is first
    agent.observe([Fact("mug_1", "object", "mug", "agent")])
    assert agent.plan("get the mug", SKILLS).number == first.number + 1


def test_a_report_names_its_decision_and_may_be_repeated(agent: Agent) -> None:
    with pytest.raises(ConfigError, match="^no decision to report on: there is none"):
        agent.report(Outcome(True))
    with pytest.raises(ConfigError, match="^no decision 4 to report on"):
        agent.report(Outcome(True), 4)
    number = agent.plan("get the mug", SKILLS).number
    with pytest.raises(ConfigError, match=f"last one is number {number}"):
        agent.report(Outcome(True), number + 1)
    for _ in range(2):
        agent.report(Outcome(False, "the door is stuck"), number)
    with pytest.raises(ConfigError, match="report once"):
        agent.report(Outcome(True))


def test_a_task_ends_with_done_with_another_instruction_and_by_finish(make_agent: MakeAgent) -> None:
    entries: list[dict[str, Any]] = []
    agent = make_agent(record=entries.append)
    agent.plan("get the mug", ["done"])
    agent.report(Outcome(True))
    agent.plan("get the apple", SKILLS[:1])
    agent.plan("get the plate", SKILLS[:1])
    agent.finish(True)
    agent.finish(True)  # without effect: no task is open
    tasks = [(e["instruction"], e["success"], e["steps"]) for e in entries if e["event"] == "task"]
    assert tasks == [("get the mug", True, 1), ("get the apple", False, 1), ("get the plate", True, 1)]
    texts = [segment.text for segment in agent._session.store]
    assert "finished get the apple failed after 1 steps\n" in texts
    assert [entry["event"] for entry in entries] == ["episode", *["step", "task"] * 3]
    assert entries[3]["instruction"] == "get the apple" and entries[3]["ok"]


@pytest.mark.parametrize("success", [True, False])
def test_a_decision_without_a_report_is_carried_out_if_the_task_succeeds(agent: Agent, success: bool) -> None:
    agent.plan("get the mug", SKILLS[:1])
    agent.finish(success)
    assert bool(agent._session.store.of("history")) == success


@pytest.mark.parametrize("message", ["The Door is stuck.", "", " \n"])
def test_a_failure_reaches_the_prompt(agent: Agent, resources: GetResources, message: str) -> None:
    skill = agent.plan("get the mug", SKILLS).skill
    agent.report(Outcome(False, message))
    prompt = resources("planner=keep").format.decode(agent.plan("get the mug", SKILLS).trace["token_ids"])
    assert skill.replace(" 1", "_1") in prompt and "failed" in prompt and ("stuck" in prompt) == ("stuck" in message)


def test_a_plan_without_a_fact_about_the_agent_warns_once(agent: Agent, caplog: pytest.LogCaptureFixture) -> None:
    for instruction in ("get the mug", "get the apple"):
        (warning,) = agent.plan(instruction, SKILLS).warnings
        assert "category 'agent'" in warning
    assert [record.levelname for record in caplog.records] == ["WARNING"]
    agent.observe([Fact("agent", "agent", "agent", place="cabinet_1")])
    assert agent.plan("get the mug", SKILLS).warnings == ()


def thing(id: str = "mug_1", **fields: Any) -> dict[str, Any]:
    return {"id": id, "category": "object", "type": "mug", **fields}


@pytest.mark.parametrize(
    ("fact", "message"),
    [
        ({"id": "mug_1", "category": "object"}, "no type"), (thing(category="thing"), "thing"),
        (thing("mug 1"), "mug 1"), (thing("mug_1\n"), "mug_1"), (thing("mug_1/now"), "mug_1/now"),
        (thing("did_3"), "did_3"), (thing("m" * 65), "64 characters"), (thing("cabinet_1"), "was a receptacle"),
        (thing(states="hot"), "list of words"), (thing(states=[1]), "states=1"), (thing(type="\ud800"), "type"),
        (thing(type="mu\x9bg"), "type"), (thing(type="mug\u00a0cup"), "type"), (thing(color="red"), "color"),
        (thing(gone="no"), "gone"), (thing(place=0), "place=0"), (7, "no id"),
        (thing(place="mug_1"), "place='mug_1'.*than its own"), (thing(holds="mug_1"), "holds='mug_1'.*than its own"),
        (thing(sees=["a", "mug_1"]), "sees='mug_1'.*than its own"),
    ],
)  # fmt: skip
def test_a_wrong_fact_is_named_and_nothing_of_its_batch_is_remembered(agent: Agent, fact: Any, message: str) -> None:
    agent.observe([Fact("cabinet_1", "receptacle", "cabinet")])
    before = agent.dump()
    with pytest.raises(DataError, match=message):
        agent.observe([MUG_FACT, fact])
    assert agent.dump() == before


@pytest.mark.parametrize(
    "call",
    [
        *(partial(Agent.observe, facts=facts) for facts in (None, MUG_FACT, thing())),
        *(partial(Agent.plan, instruction="get the mug", skills=SKILLS, after=after) for after in ("1", True)),
        *(partial(Agent.report, outcome=outcome) for outcome in (False, "failed", {"ok": False})),
        partial(Agent.report, outcome=Outcome(False), number="1"),
        *(partial(Agent.finish, success=success) for success in ("no", None, 0)),
        *(partial(Agent.save, path=path) for path in (None, "")),
        *(partial(Agent.load, path=path) for path in (b"x", "\0")), partial(Agent.restore, state=None),
        lambda agent: Agent.from_config(overrides="prompt.style=linked"),
        lambda agent: Agent.from_config(overrides=[7]), lambda agent: Agent.from_config(model=None),
    ],
)  # fmt: skip
def test_a_value_of_the_wrong_type_is_refused_and_changes_nothing(agent: Agent, call: Callable[[Agent], Any]) -> None:
    agent.plan("get the mug", SKILLS)
    before = agent.dump()
    with pytest.raises(KeepError, match="give|name|agent's memory"):
        call(agent)
    assert agent.dump() == before


@pytest.mark.parametrize(
    ("instruction", "skills", "message"),
    [
        *((instruction, SKILLS, "instruction") for instruction in ("", " \n", "\ud800")),
        ("x" * 2001, SKILLS, "2000"),
        *(("get it", skills, "skills") for skills in ([], "done", None, 7)),
        *(("get it", ["done", f"go{end}home"], "one line") for end in ("\n", "\u2028", "\u2029", "\x85", " \ud800")),
        ("get it", ["done", 7], "skill 7"), ("get it", ["x"] * 1001, "1000"),
    ],
)  # fmt: skip
def test_a_wrong_plan_is_named_and_changes_nothing(agent: Agent, instruction: str, skills: Any, message: str) -> None:
    before = agent.dump()
    with pytest.raises(ConfigError, match=message):
        agent.plan(instruction, skills)
    assert agent.dump() == before


@pytest.mark.parametrize(
    "word",
    [
        "می\u200cروم", "ന\u200dൻ", "👩\u200d👩\u200d👧", "tasse\u00a0!", "note\u00adbook",
        "prendre\u202fla", "取\u3000杯", "a\ue000b",
    ],
)  # fmt: skip
def test_text_of_every_script_is_a_skill_and_remembered(agent: Agent, word: str) -> None:
    skill = f"pick up {word}"
    agent.observe([Fact("mug_1", "object", "_".join(word.split()), "table_1")])
    assert agent.plan("get it", [skill]).skill == skill
    agent.report(Outcome(True))
    agent.plan("get it", SKILLS)
    agent.restore(agent.dump())


@pytest.mark.parametrize("name", ["keep", "full_recompute", "sparsex", "prefix_cache", "h2o", "memart"])
def test_a_too_long_plan_changes_nothing(make_agent: MakeAgent, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The task and its decision stay open, and the agent continues as one that did not get the request."""
    entries: list[dict[str, Any]] = []
    rejected = make_agent(f"planner={name}", name="rejected", record=entries.append)
    alone, engine = make_agent(f"planner={name}", name="alone"), rejected._session.engine
    for agent in (rejected, alone):
        agent.observe([MUG_FACT])
        agent.plan("get the mug", SKILLS)
        agent.report(Outcome(True))
        agent.plan("get the mug", SKILLS)
    before, count = rejected.dump(), len(entries)
    with monkeypatch.context() as patch:
        patch.setattr(engine, "info", replace(engine.info, max_positions=600))
        for instruction in ("get the apple", "get the mug") * 2:
            with pytest.raises(CapacityError, match="longer than the model's 600"):
                rejected.plan(instruction + "ü" * 800, SKILLS)
    assert rejected.dump() == before and len(entries) == count
    for agent in (rejected, alone):
        agent.report(Outcome(False, "the door is stuck"), 2)
    same, decision = (agent.plan("get the mug", SKILLS) for agent in (alone, rejected))
    assert (decision.skill, decision.number) == (same.skill, 3)
    if name in ("keep", "full_recompute", "sparsex"):  # the other methods begin a new transcript
        assert decision.trace["token_ids"] == same.trace["token_ids"]
        assert dict(decision.scores) == pytest.approx(dict(same.scores), abs=2e-3)


def test_a_plan_after_the_last_known_decision_is_made_once(agent: Agent) -> None:
    first = agent.plan("get the mug", SKILLS, after=0)
    assert first.number == 1 and agent.plan("get the mug", SKILLS, after=0) is first
    agent.observe([MUG_FACT])
    assert agent.plan("get the mug", SKILLS, after=0) is first
    with pytest.raises(StaleError, match="last decision is number 1"):
        agent.plan("get the apple", SKILLS, after=0)
    assert agent.plan("get the mug", SKILLS, after=1).number == 2
    agent.report(Outcome(True), 2)
    before = agent.dump()
    for after in (0, 1, 3):
        with pytest.raises(StaleError, match="last decision is number 2"):
            agent.plan("get the mug", SKILLS, after=after)
    assert agent.dump() == before
    assert agent.plan("get the mug", SKILLS, after=2).number == 3


def test_memory_has_a_limit_and_old_skills_are_forgotten_first(make_agent: MakeAgent) -> None:
    agent = make_agent(limit=5)
    agent.observe([Fact(f"mug_{i}", "object", "mug") for i in range(3)])
    with pytest.raises(CapacityError, match="6 objects and receptacles, more than 5"):
        agent.observe([Fact(f"cup_{i}", "object", "cup") for i in range(3)])
    for number in range(3):
        for _ in range(2):
            agent.plan(f"task {number}", SKILLS[:1])
            agent.report(Outcome(True))
        agent.finish(True)
    for number in range(3, 8):
        agent.plan(f"task {number}", ["done"])
        agent.report(Outcome(True))
    expected = {f"mug_{i}" for i in range(3)} | {f"task_{i}" for i in range(4, 9)} | {f"did_{i}" for i in range(7, 12)}
    ids = {segment.id for segment in agent._session.store}
    assert {id for id in ids if id.startswith(("mug", "task", "did"))} == expected


def test_old_skills_are_forgotten_without_a_limit_too(make_agent: MakeAgent) -> None:
    agent = make_agent(history=3)
    agent.observe([MUG_FACT])
    for _ in range(6):
        agent.plan("get the mug", SKILLS[:1])
        agent.report(Outcome(True))
    # the last turn is no segment: it is a part of the query
    assert {segment.id for segment in agent._session.store} == {"mug_1", "did_3", "did_4", "did_5"}


def test_examples_are_never_forgotten_and_survive_a_restart(make_agent: MakeAgent) -> None:
    agent = make_agent("planner=llm_planner", "prompt.examples=4", history=2)
    agent.observe([MUG_FACT])
    for number in range(5):
        agent.plan(f"task {number}", ["done"])
        agent.report(Outcome(True))
    examples = {f"example_{number}" for number in range(1, 5)}
    assert set(agent._session.store.of("task")) == {*examples, "task_4", "task_5"}
    again = make_agent("planner=llm_planner", "prompt.examples=4", name="other")
    again.restore(agent.dump())
    assert examples <= set(again._session.store.of("task"))
    with pytest.raises(DataError, match="example_1.* is reserved"):
        agent.observe([Fact("example_1", "object", "example")])


def test_the_asynchronous_twins_leave_the_event_loop_free(agent: Agent, tmp_path: Path) -> None:
    async def main() -> int:
        await agent.aobserve([MUG_FACT])
        decision = await agent.aplan("get the mug", SKILLS)
        await agent.areport(Outcome(True), decision.number)
        await agent.afinish(True)
        await agent.asave(tmp_path / "m")
        await agent.aload(tmp_path / "m")
        return decision.number

    assert asyncio.run(main()) == 1
    assert agent.segments == 3  # the mug, the executed skill, the task


def test_several_threads_may_share_an_engine(resources: GetResources) -> None:
    shared = resources("planner=keep")
    alone = [step["skill"] for step in play(AsPlanner(Agent(shared.planner("alone"))), 8)]
    skills_of: dict[int, list[str]] = {}

    def run(number: int) -> None:
        with Agent(shared.planner(f"agent-{number}")) as agent:
            skills_of[number] = [step["skill"] for step in play(AsPlanner(agent), 8)]

    at_once(*(partial(run, number) for number in range(6)))
    assert skills_of == dict.fromkeys(range(6), alone)


def test_a_planner_without_a_model_is_no_agent() -> None:
    with pytest.raises(ConfigError, match="planner=expert uses no model"):
        Agent.from_config("expert")


@pytest.mark.parametrize("style", ["plain", "linked"])
def test_of_several_facts_about_one_thing_the_last_counts(make_agent: MakeAgent, style: str) -> None:
    """Another fact of the same call may describe the place that the last one names."""
    table, cabinet = (Fact(f"{name}_1", "receptacle", name) for name in ("table", "cabinet"))
    before, after = (Fact("mug_1", "object", "mug", place=place) for place in ("table_1", "cabinet_1"))
    segments = []
    for name, facts in (("several", [table, before, cabinet, after]), ("one", [table, cabinet, after])):
        agent = make_agent(f"prompt.style={style}", name=name)
        agent.observe(facts)
        segments.append({tuple(row[:4]) for row in agent.dump()["planner"]["memory"]["segments"]})
    assert segments[0] == segments[1]


def full(cost: dict[str, Any]) -> None:
    raise CapacityError("no room")


@pytest.mark.parametrize("name", ["h2o", "streaming"])
def test_a_refused_plan_leaves_no_blocks_behind(resources: GetResources, name: str) -> None:
    """Each refused plan begins another transcript, while the index still has the blocks of the old one."""
    with closing(Agent(resources(f"planner={name}").planner("refused"))) as agent:
        index = agent._session._builder._provider.index
        before = len(index._blocks)
        for number in range(8):
            agent.observe([Fact(f"mug_{number}", "object", "mug", f"table_{number % 3}")])
            agent.plan("get the mug", SKILLS)
            agent.report(Outcome(False, "stuck"))
            with pytest.raises(CapacityError):
                agent.plan("get the mug", SKILLS[:2], full)
        assert len(index._blocks) > before
    assert len(index._blocks) == before


def test_a_call_takes_effect_without_its_trace_entry(make_agent: MakeAgent) -> None:
    def no_space(entry: dict[str, Any]) -> None:
        raise OSError("No space left on device")

    agent = make_agent(record=no_space)
    agent.plan("get the mug", SKILLS)
    assert agent.plan("get the apple", SKILLS).number == 2
    agent.report(Outcome(True), 2)


def test_a_refused_plan_leaves_the_trace_as_it_was(make_agent: MakeAgent) -> None:
    """The next trace has the removals before the refused plan, and no text twice."""
    texts = []
    for name in ("accepted", "refused"):
        agent = make_agent(name=name)
        agent.observe([MUG_FACT, Fact("cup_1", "object", "cup")])
        agent.plan("get the mug", SKILLS)
        agent.report(Outcome(True))
        agent.observe([Fact("cup_1", "object", "cup", gone=True)])
        if name == "refused":
            with pytest.raises(CapacityError):
                agent.plan("get the mug", SKILLS, full)
        texts.append(agent.plan("get the mug", SKILLS).trace["extra"]["written"])
    assert texts[0] == texts[1] and ("cup_1", None) in texts[0]

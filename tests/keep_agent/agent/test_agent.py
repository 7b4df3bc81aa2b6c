"""The planner API against the planner in the loop, and what it does with bad input."""

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
from keep_agent.config.planner_factory import Brain
from keep_agent.errors import CapacityError, ConfigError, DataError, KeepError, StaleError
from tests.keep_agent.agent.playing import MUG_FACT, SKILLS, AsPlanner, play
from tests.threads import at_once

METHODS = "keep", "full_recompute", "cacheblend", "sparsex", "prefix_cache", "h2o"
ALWAYS = ("keep", "linked"), ("prefix_cache", "plain")
OTHERS = [case for case in product(METHODS, ("plain", "linked")) if case not in ALWAYS]


@pytest.mark.parametrize(
    ("name", "style"), [*ALWAYS, *(pytest.param(*case, marks=pytest.mark.slow) for case in OTHERS)]
)
def test_an_agent_decides_as_the_planner_in_the_loop_does(brain: Callable[..., Brain], name: str, style: str) -> None:
    """What is encoded ahead, and when, never changes a decision."""
    made = brain(f"planner={name}", f"prompt.style={style}", "memory.grouping.window=3", "prompt.budget=6")
    plain = play(made.planner("loop"))
    assert len(plain) > 16  # then executed skills are memory too
    for ahead in (True, False):
        adapter = AsPlanner(Agent(made.planner(f"ahead-{ahead}"), ahead=ahead))
        played = play(adapter)
        assert [step["skill"] for step in played] == [step["skill"] for step in plain]
        for decision, step in zip(adapter.decisions, plain, strict=True):
            assert decision.trace["token_ids"] == step["token_ids"]
            assert [unit["kind"] for unit in decision.trace["units"]] == [unit["kind"] for unit in step["units"]]
            assert dict(decision.scores) == pytest.approx(dict(map(tuple, step["scores"])), abs=2e-3)
        adapter.agent.close()


def test_what_changed_is_encoded_before_the_plan_asks_for_it(brain: Callable[..., Brain]) -> None:
    """As long as the robot's motion leaves the time; the plan then finds every block."""
    agent = Agent(brain("planner=keep").planner("robot"), "robot")
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
    agent._engine.run(lambda: agent._ahead.stop())
    agent.observe([Fact("mug_1", "object", "mug", "table_1")])
    agent.report(Outcome(True))
    assert agent.plan("get the mug", SKILLS).trace["counts"]["encoded_token_layers"] > 0
    agent.close()


def settle(agent: Agent) -> None:
    """Until nothing is left to be done in the background."""
    while agent._engine.run(lambda: agent._ahead._queued):
        agent._engine.later(lambda: None).result()


def test_the_same_plan_asked_again_is_one_decision(agent: Agent) -> None:
    agent.observe([MUG_FACT])
    first = agent.plan("Get the mug", SKILLS)
    assert agent.plan("get  the mug", [*SKILLS, SKILLS[0]]) is first
    agent.observe([Fact("mug_1", "object", "mug", "agent")])
    assert agent.plan("get the mug", SKILLS).number == first.number + 1


def test_reporting_twice_does_no_harm_if_the_decision_is_named(agent: Agent) -> None:
    with pytest.raises(ConfigError, match="there is none"):
        agent.report(Outcome(True))
    number = agent.plan("get the mug", SKILLS).number
    with pytest.raises(ConfigError, match=f"last one is number {number}"):
        agent.report(Outcome(True), number + 1)
    agent.report(Outcome(False, "the door is stuck"), number)
    agent.report(Outcome(False, "the door is stuck"), number)
    with pytest.raises(ConfigError, match="report once"):
        agent.report(Outcome(True))


def test_a_task_ends_with_done_with_another_instruction_and_by_finish(brain: Callable[..., Brain]) -> None:
    entries: list[dict[str, Any]] = []
    agent = Agent(brain("planner=keep").planner("tasks"), "tasks", record=entries.append)
    agent.plan("get the mug", ["done"])
    agent.report(Outcome(True))
    agent.plan("get the apple", SKILLS[:1])
    agent.plan("get the plate", SKILLS[:1])
    agent.finish(True)
    agent.finish(True)  # nothing is under way
    tasks = [(e["instruction"], e["success"], e["steps"]) for e in entries if e["event"] == "task"]
    assert tasks == [("get the mug", True, 1), ("get the apple", False, 1), ("get the plate", True, 1)]
    texts = [segment.text for segment in agent._session.store]
    assert "finished get the apple failed after 1 steps\n" in texts
    assert [entry["event"] for entry in entries] == ["episode", *["step", "task"] * 3]
    assert entries[3]["instruction"] == "get the apple" and entries[3]["ok"]
    agent.close()


@pytest.mark.parametrize("success", [True, False])
def test_what_nobody_reported_on_is_done_where_the_task_is(agent: Agent, success: bool) -> None:
    agent.plan("get the mug", SKILLS[:1])
    agent.finish(success)
    assert bool(agent._session.store.of("history")) == success


def test_a_failure_reaches_the_prompt(agent: Agent, brain: Callable[..., Brain]) -> None:
    skill = agent.plan("get the mug", SKILLS).skill
    agent.report(Outcome(False, "The Door is stuck."))
    prompt = brain("planner=keep").format.decode(agent.plan("get the mug", SKILLS).trace["token_ids"])
    assert skill.replace(" 1", "_1") in prompt and "failed" in prompt and "stuck" in prompt


def test_a_plan_without_a_fact_about_the_agent_warns_and_logs_it_once(
    agent: Agent, caplog: pytest.LogCaptureFixture
) -> None:
    for instruction in ("get the mug", "get the apple"):
        (warning,) = agent.plan(instruction, SKILLS).warnings
        assert "category 'agent'" in warning
    assert [record.levelname for record in caplog.records] == ["WARNING"]
    agent.observe([Fact("agent", "agent", "agent", place="cabinet_1")])
    assert agent.plan("get the mug", SKILLS).warnings == ()


def thing(id: str = "mug_1", **fields: Any) -> dict[str, Any]:
    return {"id": id, "category": "object", "type": "mug", **fields}


@pytest.mark.parametrize("message", ["", " \n"])
def test_a_failure_without_a_reason_reaches_the_prompt(agent: Agent, brain: Callable[..., Brain], message: str) -> None:
    agent.plan("get the mug", SKILLS)
    agent.report(Outcome(False, message))
    prompt = brain("planner=keep").format.decode(agent.plan("get the mug", SKILLS).trace["token_ids"])
    assert "failed" in prompt


@pytest.mark.parametrize(
    ("fact", "named"),
    [
        ({"id": "mug_1", "category": "object"}, "no type"), (thing(category="thing"), "thing"),
        (thing("mug 1"), "mug 1"), (thing("mug_1\n"), "mug_1"), (thing("mug_1/now"), "mug_1/now"),
        (thing("did_3"), "did_3"), (thing("m" * 65), "64 characters"), (thing("cabinet_1"), "was a receptacle"),
        (thing(states="hot"), "list of words"), (thing(states=[1]), "states=1"), (thing(type="\ud800"), "type"),
        (thing(type="mu\x9bg"), "type"), (thing(type="mug\u00a0cup"), "type"), (thing(color="red"), "color"),
        (thing(gone="no"), "gone"), (thing(place=0), "place=0"), (7, "no id"),
        (thing(place="mug_1"), "place='mug_1'.*than itself"), (thing(holds="mug_1"), "holds='mug_1'.*than itself"),
        (thing(sees=["a", "mug_1"]), "sees='mug_1'.*than itself"),
    ],
)  # fmt: skip
def test_a_wrong_fact_is_named_and_nothing_of_its_batch_is_remembered(agent: Agent, fact: Any, named: str) -> None:
    agent.observe([Fact("cabinet_1", "receptacle", "cabinet")])
    before = agent.dump()
    with pytest.raises(DataError, match=named):
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
        *(partial(Agent.load, path=path) for path in (b"x", "\0")),
        partial(Agent.restore, state=None),
        lambda agent: Agent.from_config(overrides="prompt.style=linked"),
        lambda agent: Agent.from_config(overrides=[7]),
        lambda agent: Agent.from_config(model=None),
    ],
)
def test_a_value_of_the_wrong_type_is_refused_and_changes_nothing(agent: Agent, call: Callable[[Agent], Any]) -> None:
    agent.plan("get the mug", SKILLS)
    before = agent.dump()
    with pytest.raises(KeepError, match="give|name|agent's memory"):
        call(agent)
    assert agent.dump() == before


def test_a_report_on_nothing_is_refused_in_one_sentence(agent: Agent) -> None:
    with pytest.raises(ConfigError, match="^no decision to report on: there is none"):
        agent.report(Outcome(True))
    with pytest.raises(ConfigError, match="^no decision 4 to report on"):
        agent.report(Outcome(True), 4)


@pytest.mark.parametrize(
    ("instruction", "skills", "named"),
    [
        *((instruction, SKILLS, "instruction") for instruction in ("", " \n", "\ud800")),
        ("x" * 2001, SKILLS, "2000"),
        *(("get it", skills, "skills") for skills in ([], "done", None, 7)),
        *(("get it", ["done", f"go{end}"], "one line") for end in ("\nhome", "\u2028home", "\x85home", " \ud800")),
        ("get it", ["done", 7], "skill 7"),
        ("get it", ["x"] * 1001, "1000"),
    ],
)
def test_a_wrong_request_is_named_and_changes_nothing(agent: Agent, instruction: str, skills: Any, named: str) -> None:
    before = agent.dump()
    with pytest.raises(ConfigError, match=named):
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
    """A fact's words have no spaces of any kind, and everything else that a skill may have."""
    skill = f"pick up {word}"
    agent.observe([Fact("mug_1", "object", "_".join(word.split()), "table_1")])
    assert agent.plan("get it", [skill]).skill == skill
    agent.report(Outcome(True))
    agent.plan("get it", SKILLS)
    agent.restore(agent.dump())


@pytest.mark.parametrize("name", ["keep", "full_recompute", "sparsex", "prefix_cache", "h2o", "memart"])
def test_a_plan_too_long_for_the_model_changes_nothing(
    brain: Callable[..., Brain], name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What was open stays open, no task has ended, and it goes on as one that was never asked for too much."""
    made = brain(f"planner={name}")
    entries: list[dict[str, Any]] = []
    asked, alone = Agent(made.planner("asked"), "asked", record=entries.append), Agent(made.planner("alone"))
    for agent in (asked, alone):
        agent.observe([MUG_FACT])
        agent.plan("get the mug", SKILLS)
        agent.report(Outcome(True))
        agent.plan("get the mug", SKILLS)
    before, recorded = asked.dump(), len(entries)
    with monkeypatch.context() as patch:
        patch.setattr(made.engine, "info", replace(made.engine.info, max_positions=600))
        for instruction in ("get the apple", "get the mug") * 2:
            with pytest.raises(CapacityError, match="longer than the model's 600"):
                asked.plan(instruction + "ü" * 800, SKILLS)
    assert asked.dump() == before and len(entries) == recorded
    for agent in (asked, alone):
        agent.report(Outcome(False, "the door is stuck"), 2)
    same, found = (agent.plan("get the mug", SKILLS) for agent in (alone, asked))
    assert (found.skill, found.number) == (same.skill, 3)
    if name in ("keep", "full_recompute", "sparsex"):  # the others' transcript begins anew
        assert found.trace["token_ids"] == same.trace["token_ids"]
        assert dict(found.scores) == pytest.approx(dict(same.scores), abs=2e-3)
    for agent in (asked, alone):
        agent.close()


def test_a_plan_that_was_made_already_is_not_made_twice(agent: Agent) -> None:
    """A robot that has not heard the answer says which decision it knows, and asks again."""
    assert agent.plan("get the mug", SKILLS, after=0).number == 1
    first = agent.plan("get the mug", SKILLS, after=0)
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


def test_memory_has_a_limit_and_old_skills_are_forgotten_first(brain: Callable[..., Brain]) -> None:
    agent = Agent(brain("planner=keep").planner("small"), limit=5)
    agent.observe([Fact(f"mug_{i}", "object", "mug") for i in range(3)])
    with pytest.raises(CapacityError, match="6 things, 5 are allowed"):
        agent.observe([Fact(f"cup_{i}", "object", "cup") for i in range(3)])
    for number in range(3):
        for _ in range(2):
            agent.plan(f"task {number}", SKILLS[:1])
            agent.report(Outcome(True))
        agent.finish(True)
    for number in range(3, 8):
        agent.plan(f"task {number}", ["done"])
        agent.report(Outcome(True))
    found = {segment.id for segment in agent._session.store}
    assert {id for id in found if id.startswith("mug")} == {f"mug_{i}" for i in range(3)}
    assert {id for id in found if id.startswith("task")} == {f"task_{i}" for i in range(4, 9)}
    assert {id for id in found if id.startswith("did")} == {f"did_{i}" for i in range(7, 12)}
    agent.close()


def test_old_skills_are_forgotten_without_a_limit_too(brain: Callable[..., Brain]) -> None:
    agent = Agent(brain("planner=keep").planner("robot"), history=3)
    agent.observe([MUG_FACT])
    for _ in range(6):
        agent.plan("get the mug", SKILLS[:1])
        agent.report(Outcome(True))
    kept = {segment.id for segment in agent._session.store}
    assert kept == {"mug_1", "did_3", "did_4", "did_5"}  # the last turn is still told by itself
    agent.close()


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
    assert agent.segments == 3  # the mug, what was done, the task


def test_several_threads_may_share_an_engine(brain: Callable[..., Brain]) -> None:
    """Each agent decides what it would decide alone."""
    made = brain("planner=keep")
    alone = [step["skill"] for step in play(AsPlanner(Agent(made.planner("alone"))), 8)]
    found: dict[int, list[str]] = {}

    def run(number: int) -> None:
        with Agent(made.planner(f"agent-{number}")) as agent:
            found[number] = [step["skill"] for step in play(AsPlanner(agent), 8)]

    at_once(*(partial(run, number) for number in range(6)))
    assert found == dict.fromkeys(range(6), alone)


def test_a_planner_without_a_model_is_no_agent() -> None:
    with pytest.raises(ConfigError, match="planner=expert has no model"):
        Agent.from_config("expert")


@pytest.mark.parametrize("style", ["plain", "linked"])
def test_of_several_facts_about_one_thing_the_last_counts(brain: Callable[..., Brain], style: str) -> None:
    """Also where another fact of the same call opens the place that it is in by then."""
    table, cabinet = (Fact(f"{name}_1", "receptacle", name) for name in ("table", "cabinet"))
    before, after = (Fact("mug_1", "object", "mug", place=place) for place in ("table_1", "cabinet_1"))
    told = []
    for facts in ([table, before, cabinet, after], [table, cabinet, after]):
        with closing(Agent(brain(f"prompt.style={style}").planner("several"))) as agent:
            agent.observe(facts)
            told.append({tuple(row[:4]) for row in agent.dump()["planner"]["memory"]["segments"]})
    assert told[0] == told[1]


def full(cost: dict[str, Any]) -> None:
    raise CapacityError("no room")


@pytest.mark.parametrize("name", ["h2o", "streaming"])
def test_a_refused_plan_leaves_no_blocks_behind(brain: Callable[..., Brain], name: str) -> None:
    """Each begins the transcript anew, and the old one's blocks are in the index."""
    with closing(Agent(brain(f"planner={name}").planner("refused"))) as agent:
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


def test_what_cannot_be_recorded_has_happened(brain: Callable[..., Brain]) -> None:
    def full(entry: dict[str, Any]) -> None:
        raise OSError("No space left on device")

    with closing(Agent(brain().planner("full"), record=full)) as agent:
        agent.plan("get the mug", SKILLS)
        assert agent.plan("get the apple", SKILLS).number == 2
        agent.report(Outcome(True), 2)


def test_a_refused_plan_leaves_the_trace_as_it_was(brain: Callable[..., Brain]) -> None:
    """What was removed before it is told as removed behind it, and what was told is not told again."""
    told = []
    for refused in (False, True):
        with closing(Agent(brain().planner("traced"))) as agent:
            agent.observe([MUG_FACT, Fact("cup_1", "object", "cup")])
            agent.plan("get the mug", SKILLS)
            agent.report(Outcome(True))
            agent.observe([Fact("cup_1", "object", "cup", gone=True)])
            if refused:
                with pytest.raises(CapacityError):
                    agent.plan("get the mug", SKILLS, full)
            told.append(agent.plan("get the mug", SKILLS).trace["extra"]["written"])
    assert told[0] == told[1] and ("cup_1", None) in told[0]

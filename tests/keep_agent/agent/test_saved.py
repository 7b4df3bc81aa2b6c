"""Memories that an agent saves and loads: all of it, or nothing."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from envs.fact import Fact
from envs.outcome import Outcome
from keep_agent.agent.agent import Agent
from keep_agent.config.planner_factory import Brain
from keep_agent.errors import CapacityError, CorruptError, DataError
from planners.planner_state import read_state
from tests.keep_agent.agent.playing import MUG_FACT, SKILLS, AsPlanner, play

SHORT = 16  # steps of a task at most


def test_saved_and_loaded_it_goes_on_as_if_nothing_had_happened(brain: Callable[..., Brain], tmp_path: Path) -> None:
    """In the middle of a task, with groups that have settled, in both styles."""
    for style in ("plain", "linked"):
        settings = f"prompt.style={style}", "memory.grouping.window=3", "prompt.budget=6"
        made = brain("planner=keep", *settings)
        one, other = (AsPlanner(Agent(made.planner(name))) for name in ("one", "other"))
        steps = play(Switching(one, other, tmp_path / style / "memory.json"), SHORT)
        alone = AsPlanner(Agent(made.planner("alone")))
        assert [step["skill"] for step in steps] == [step["skill"] for step in play(alone, SHORT)]
        assert other.decisions and one.decisions
        for decision, same in zip(one.decisions + other.decisions, alone.decisions, strict=True):
            assert decision.trace["token_ids"] == same.trace["token_ids"]
            assert dict(decision.scores) == pytest.approx(dict(same.scores), abs=1e-3)
            assert decision.number == same.number


class Switching(AsPlanner):
    """One agent for the first steps; then its saved memory in another."""

    def __init__(self, one: AsPlanner, other: AsPlanner, path: Path) -> None:
        super().__init__(one.agent)
        self.decisions, self._other, self._path = one.decisions, other, path

    def feedback(self, skill: str, ok: bool, message: str) -> None:
        if self.agent is not self._other.agent and len(self.decisions) == 20:
            self.agent.save(self._path)
            self._other.agent.load(self._path)
            self.agent, self.decisions = self._other.agent, self._other.decisions
        super().feedback(skill, ok, message)


def test_what_is_loaded_is_what_was_saved_or_refused(agent: Agent, tmp_path: Path) -> None:
    agent.observe([MUG_FACT])
    agent.plan("get the mug", SKILLS)
    file = tmp_path / "deep" / "memory.json"
    agent.save(file)
    before = agent.dump()
    content = file.read_bytes()
    for place in range(0, len(content), 97):
        file.write_bytes(content[:place] + bytes([content[place] ^ 1]) + content[place + 1 :])
        with pytest.raises((DataError, CorruptError), match=r"memory\.json"):
            agent.load(file)
    file.write_bytes(content[:-20])
    with pytest.raises(CorruptError, match="checksum"):
        agent.load(file)
    with pytest.raises(DataError, match="does not exist"):
        agent.load(tmp_path / "nothing")
    assert agent.dump() == before


@pytest.mark.parametrize("style", ["plain", "linked"])
def test_the_longest_that_can_be_told_can_be_saved_and_loaded(brain: Callable[..., Brain], style: str) -> None:
    made = brain("planner=keep", f"prompt.style={style}")
    one, other = (Agent(made.planner(name), limit=500) for name in ("one", "other"))
    word, seen = "w" * 64, [f"{'w' * 61}_{number:02}" for number in range(64)]
    one.plan("\u0130" * 1900, ["x" * 200])  # two characters each, in lower case
    one.report(Outcome(False, "y" * 2000))
    one.finish(False)
    one.observe([Fact(word, "object", word, "p" * 64, states=("unseen", *[word] * 63))])
    one.observe(
        [Fact(word, "object", word, "p" * 64, states=(word,) * 64), Fact("a", "agent", word, word, word, sees=seen)]
    )
    other.restore(one.dump())
    assert other.dump() == one.dump()
    for agent in (one, other):
        agent.close()


def test_a_memory_larger_than_an_agent_may_have_is_refused(brain: Callable[..., Brain]) -> None:
    """By the number of its segments, and by their text: each is looked at when it is put in."""
    made = brain("planner=keep")
    one, small = Agent(made.planner("one")), Agent(made.planner("small"), limit=50)
    one.observe([Fact(f"mug_{number}", "object", "mug") for number in range(201)])
    with pytest.raises(CapacityError, match="201 segments .* too many for 50 things"):
        small.restore(one.dump())
    state = one.dump()
    for row in (rows := state["planner"]["memory"]["segments"]):
        row[2] = "m" * 4400 + "\n"
    with pytest.raises(CapacityError, match="too many for 50 things"):
        small.restore(state)
    rows[0][2] = "m" * 4500 + "\n"
    with pytest.raises(DataError, match="more than 4500 characters"):
        one.restore(state)
    assert not small.segments
    for agent in (one, small):
        agent.close()


def test_a_memory_of_another_style_is_refused(brain: Callable[..., Brain], agent: Agent, tmp_path: Path) -> None:
    agent.save(tmp_path / "plain")
    other = Agent(brain("planner=keep", "prompt.style=linked").planner("linked"))
    with pytest.raises(DataError, match=r"prompt\.style=plain"):
        other.load(tmp_path / "plain")
    other.close()


@pytest.mark.parametrize("outcome", [Outcome(True), Outcome(False), Outcome(False, "stuck")])
def test_what_became_of_a_skill_is_saved_as_a_flag_and_read_from_older_memories(
    brain: Callable[..., Brain], agent: Agent, outcome: Outcome
) -> None:
    agent.plan("get the mug", SKILLS)
    agent.report(outcome)
    state = agent._planner.state.to_json()
    (turn,) = read_state(state, state["style"]).log.turns
    assert (turn.ok, turn.message) == (outcome.ok, outcome.message)
    (skill, _, _), *_ = state["turns"]
    older = {**state, "turns": [[skill, "" if outcome.ok else outcome.message or "it did not work"]]}
    assert [one.ok for one in read_state(older, state["style"]).log.turns] == [outcome.ok]


@pytest.mark.parametrize("turn", [["wave"], ["wave", 1, ""], ["wave", True], ["wave", True, None], "wave"])
def test_a_saved_turn_that_is_none_is_named(agent: Agent, turn: Any) -> None:
    state = agent._planner.state.to_json()
    with pytest.raises(DataError, match="the turn"):
        read_state({**state, "turns": [turn]}, state["style"])


@pytest.mark.parametrize("counts", [{"past": 10**400, "told": 10**400}, {"done": 10**400}, {"tasks": -1}])
def test_counts_that_no_planner_reaches_are_refused(agent: Agent, counts: dict[str, int]) -> None:
    state = agent._planner.state.to_json()
    with pytest.raises(DataError, match="no planner's memory"):
        read_state({**state, "turns": [], **counts}, state["style"])


def test_a_memory_from_before_goals_were_said_is_read(brain: Callable[..., Brain], agent: Agent) -> None:
    agent.observe([MUG_FACT])
    state = agent._planner.state.to_json()
    assert read_state({key: value for key, value in state.items() if key != "goal"}, state["style"]).goal == ""

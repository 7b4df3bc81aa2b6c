"""Files of an agent: the journal of its calls, and memories that it saves and loads, completely or not at all."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from envs.fact import Fact
from envs.outcome import Outcome
from keep_agent.agent.agent import Agent
from keep_agent.agent.durable import read_journal
from keep_agent.errors import CapacityError, CorruptError, DataError
from memory.files.end_mark import MarkedFile, end_of
from memory.files.json_lines import Chain
from planners.planner_state import read_state
from tests.keep_agent.agent.playing import MUG_FACT, SKILLS, AsPlanner, play
from tests.keep_agent.rollout.test_run_folder_damage import damaged, limited

FIRST, SECOND, THIRD = (Chain.for_owner(text) for text in (b"robot", b"robot, later", b"robot, later still"))


def append(journal: MarkedFile, *numbers: int) -> None:
    for number in numbers:
        journal.append([{"call": "observe", "facts": [number]}])


def write_journal(path: Path, *numbers: int, start: Chain = SECOND) -> Path:
    path.parent.mkdir(exist_ok=True)
    path.touch()
    journal, _ = read_journal(path, FIRST, "the memory", new=True)
    append(journal, 0)
    journal.prepare_restart(start)
    journal.restart(start)
    append(journal, *numbers)
    return path


@pytest.fixture
def journal(tmp_path: Path) -> Path:
    return write_journal(tmp_path / "journal.jsonl", 4, 5, 6)


def calls(path: Path, start: Chain = SECOND, new: bool = False) -> list[int]:
    path.touch()
    return [call["facts"][0] for call in read_journal(path, start, "the memory", new)[1]]


def file_of(path: Path, start: Chain = SECOND) -> MarkedFile:
    return read_journal(path, start, "the memory", new=False)[0]


@pytest.mark.parametrize("restarted", [False, True])
@pytest.mark.parametrize("appended", [0, 1, 2])
def test_killed_while_the_memory_is_written_it_belongs_to_either(journal: Path, restarted: bool, appended: int) -> None:
    """The old memory is read with all calls of the journal, the new one with none, also after several kills.

    After the second kill the journal may be older than both memories, because it could not be restarted.
    """
    file = file_of(journal)
    file.prepare_restart(THIRD)
    before = {path: path.read_bytes() for path in (journal, end_of(journal))}
    assert (calls_of_copy(journal, SECOND), calls_of_copy(journal, THIRD)) == ([4, 5, 6], [])
    if restarted:
        file.restart(THIRD)
        assert calls_of_copy(journal, THIRD) == []
    for path, content in before.items():
        path.write_bytes(content)
    again = file_of(journal, THIRD)
    assert again.count == 0
    again.prepare_restart(FIRST)
    assert (calls_of_copy(journal, THIRD), calls_of_copy(journal, FIRST)) == ([], [])
    append(again, *range(appended))
    assert calls_of_copy(journal, THIRD) == list(range(appended))


def calls_of_copy(path: Path, start: Chain) -> list[int]:
    """Return the numbers of the calls that would be read after a kill at this moment."""
    copy = path.parent / "copy"
    shutil.rmtree(copy, ignore_errors=True)
    copy.mkdir()
    for file in (path, end_of(path)):
        shutil.copy(file, copy)
    return calls(copy / path.name, start)


def test_changed_and_missing_lines_are_noticed(journal: Path) -> None:
    for what, content in damaged(journal):
        journal.write_bytes(content)
        with pytest.raises(DataError, match=r"journal\.jsonl"):
            calls(journal)
            pytest.fail(f"{what} is not noticed")


def test_every_changed_bit_of_the_mark_is_noticed(journal: Path) -> None:
    end = end_of(journal)
    whole = end.read_bytes()
    for place in range(len(whole)):
        end.write_bytes(whole[:place] + bytes([whole[place] ^ 1 << place % 8]) + whole[place + 1 :])
        with pytest.raises(CorruptError, match=r"journal\.end .*restore all files of the agent from one copy, or repl"):
            calls(journal)


@pytest.mark.parametrize("count", [0, 1, 2])
@pytest.mark.parametrize("tail", [b"", b'{"call":"obs'])
def test_missing_calls_at_the_end_are_noticed(journal: Path, count: int, tail: bytes) -> None:
    lines = journal.read_bytes().splitlines(keepends=True)
    journal.write_bytes(b"".join(lines[:count]) + tail)
    with pytest.raises(CorruptError, match=rf"lacks its last lines, {count + 1} to 3, as journal\.end says"):
        calls(journal)


@pytest.mark.parametrize("new", [False, True])
@pytest.mark.parametrize("spoil", [Path.unlink, lambda end: end.write_bytes(b"")])
def test_a_journal_without_its_mark_is_refused(journal: Path, spoil: Callable[[Path], object], new: bool) -> None:
    spoil(end_of(journal))
    with pytest.raises(CorruptError, match=r"journal\.end is (missing|damaged)"):
        calls(journal, new=new)


def test_calls_without_checksums_are_refused(journal: Path) -> None:
    plain = [line.partition(b',"sum"')[0] + b"}\n" for line in journal.read_bytes().splitlines()]
    journal.write_bytes(b"".join(plain))
    with pytest.raises(CorruptError, match=r"journal\.jsonl:1 is damaged"):
        calls(journal)


def test_a_call_that_was_written_and_not_marked_is_there(journal: Path) -> None:
    end = end_of(journal)
    before = end.read_bytes()
    append(file_of(journal), 7)
    end.write_bytes(before)
    assert calls(journal) == [4, 5, 6, 7]


def test_a_call_that_had_no_room_leaves_nothing(journal: Path) -> None:
    before = journal.read_bytes()
    again = file_of(journal)
    no_room = pytest.raises(CapacityError, match=r"no room for .*journal\.jsonl \(File too large\)")
    with limited(len(before) + 10), no_room:
        append(again, 7)
    assert journal.read_bytes() == before
    append(again, 7)
    assert calls(journal) == [4, 5, 6, 7]


@pytest.mark.parametrize("spoil", [lambda path: path.write_bytes(b"x\n"), lambda path: end_of(path).write_bytes(b"x")])
def test_a_restart_replaces_any_content(journal: Path, spoil: Callable[[Path], object]) -> None:
    spoil(journal)
    again = MarkedFile(journal)
    again.prepare_restart(THIRD)
    again.restart(THIRD)
    append(again, 7)
    assert calls(journal, THIRD) == [7]


def test_a_journal_of_an_older_version_is_refused_with_a_remedy(tmp_path: Path) -> None:
    path = tmp_path / "journal.jsonl"
    path.write_text('1 3f1b2c4d {"call":"finish","success":true}\n')
    with pytest.raises(DataError, match="left behind by version 0.2; open and close the agent with that version"):
        calls(path, new=True)


SHORT = 16  # most steps of a task


@pytest.mark.parametrize("style", ["plain", "linked"])
def test_a_loaded_agent_continues_as_a_saved_one(make_agent: Callable[..., Agent], tmp_path: Path, style: str) -> None:
    overrides = f"prompt.style={style}", "memory.grouping.window=3", "prompt.budget=6"
    first, second, alone = (AsPlanner(make_agent(*overrides, name=name)) for name in ("first", "second", "alone"))
    steps = play(Switching(first, second, tmp_path / "deep" / "memory.json"), SHORT)
    assert [step["skill"] for step in steps] == [step["skill"] for step in play(alone, SHORT)]
    assert second.decisions and first.decisions
    for decision, same in zip(first.decisions + second.decisions, alone.decisions, strict=True):
        assert decision.trace["token_ids"] == same.trace["token_ids"]
        assert dict(decision.scores) == pytest.approx(dict(same.scores), abs=1e-3)
        assert decision.number == same.number


class Switching(AsPlanner):
    """Planner that is one agent for the first steps, then another one with the first one's saved memory."""

    def __init__(self, first: AsPlanner, second: AsPlanner, path: Path) -> None:
        super().__init__(first.agent)
        self.decisions, self._second, self._path = first.decisions, second, path

    def feedback(self, skill: str, ok: bool, message: str) -> None:
        if self.agent is not self._second.agent and len(self.decisions) == 20:
            self.agent.save(self._path)
            self._second.agent.load(self._path)
            self.agent, self.decisions = self._second.agent, self._second.decisions
        super().feedback(skill, ok, message)


def test_a_damaged_memory_is_refused(agent: Agent, tmp_path: Path) -> None:
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
def test_the_longest_facts_and_texts_can_be_saved_and_loaded(make_agent: Callable[..., Agent], style: str) -> None:
    first, second = (make_agent(f"prompt.style={style}", name=name, limit=500) for name in ("first", "second"))
    word, view = "w" * 64, [f"{'w' * 61}_{number:02}" for number in range(64)]
    first.plan("\u0130" * 1900, ["x" * 200])  # two characters each, in lower case
    first.report(Outcome(False, "y" * 2000))
    first.finish(False)
    first.observe([Fact(word, "object", word, "p" * 64, states=("unseen", *[word] * 63))])
    robot = Fact("a", "agent", word, word, word, sees=view)
    first.observe([Fact(word, "object", word, "p" * 64, states=(word,) * 64), robot])
    second.restore(first.dump())
    assert second.dump() == first.dump()


def test_a_memory_larger_than_an_agent_may_have_is_refused(make_agent: Callable[..., Agent]) -> None:
    first, small = make_agent(name="first"), make_agent(name="small", limit=50)
    first.observe([Fact(f"mug_{number}", "object", "mug") for number in range(201)])
    with pytest.raises(CapacityError, match="201 segments .* too many for 50 objects"):
        small.restore(first.dump())
    state = first.dump()
    for row in (rows := state["planner"]["memory"]["segments"]):
        row[2] = "m" * 4400 + "\n"
    with pytest.raises(CapacityError, match="too many for 50 objects"):
        small.restore(state)
    rows[0][2] = "m" * 4500 + "\n"
    with pytest.raises(DataError, match="more than 4500 characters"):
        first.restore(state)
    assert not small.segments


def test_a_memory_of_another_style_is_refused(make_agent: Callable[..., Agent], agent: Agent, tmp_path: Path) -> None:
    agent.save(tmp_path / "plain")
    with pytest.raises(DataError, match=r"prompt\.style=plain"):
        make_agent("prompt.style=linked").load(tmp_path / "plain")


@pytest.mark.parametrize("outcome", [Outcome(True), Outcome(False), Outcome(False, "stuck")])
def test_an_outcome_is_saved_as_a_flag_and_read_from_older_memories(agent: Agent, outcome: Outcome) -> None:
    agent.plan("get the mug", SKILLS)
    agent.report(outcome)
    state = agent._planner.state.to_json()
    (turn,) = read_state(state, state["style"]).log.turns
    assert (turn.ok, turn.message) == (outcome.ok, outcome.message)
    (skill, _, _), *_ = state["turns"]
    older = {**state, "turns": [[skill, "" if outcome.ok else outcome.message or "it did not work"]]}
    assert [turn.ok for turn in read_state(older, state["style"]).log.turns] == [outcome.ok]


TURNS = ["wave"], ["wave", 1, ""], ["wave", True], ["wave", True, None], "wave"
COUNTS = {"past": 10**400, "told": 10**400}, {"done": 10**400}, {"tasks": -1}


@pytest.mark.parametrize(
    ("changes", "message"),
    [*(({"turns": [turn]}, "a turn is") for turn in TURNS), *((counts, "contradict each other") for counts in COUNTS)],
)
def test_an_invalid_turn_or_count_is_refused(agent: Agent, changes: dict[str, Any], message: str) -> None:
    state = agent._planner.state.to_json()
    with pytest.raises(DataError, match=message):
        read_state({**state, "turns": [], **changes}, state["style"])


def test_a_memory_without_goals_is_read(agent: Agent) -> None:
    agent.observe([MUG_FACT])
    state = agent._planner.state.to_json()
    assert read_state({key: value for key, value in state.items() if key != "goal"}, state["style"]).goal == ""

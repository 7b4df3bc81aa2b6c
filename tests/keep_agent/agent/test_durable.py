"""Calls of a durable agent survive the process, wherever it is killed."""

from __future__ import annotations

import fcntl
import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import combinations
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from envs.fact import Fact
from envs.outcome import Outcome
from keep_agent.agent.agent import Agent
from keep_agent.agent.durable import JOURNAL, MAX_CALLS, MEMORY, DurableAgent
from keep_agent.agent.memory_file import pack_state, read_memory, write_packed
from keep_agent.config.planner_factory import PlannerResources as Resources
from keep_agent.config.planner_factory import make_resources
from keep_agent.errors import CapacityError, ConfigError, CorruptError, DataError, StorageError
from tests.keep_agent.agent.playing import SKILLS

END = "journal.end"
FILES = (MEMORY, JOURNAL, END)
SOME = [set(names) for count in (1, 2) for names in combinations(FILES, count)]
Open = Callable[..., DurableAgent]
Folders = dict[str, Path]


def durable(resources: Resources, folder: Path, space: str = "robot", name: str = "agent", **more: Any) -> DurableAgent:
    return DurableAgent(Agent(resources.planner(space), name, ahead=False, **more), folder)


@pytest.fixture(scope="module")
def resources(resources: Callable[..., Resources]) -> Resources:
    return resources("prompt.style=linked", "memory.grouping.window=2")


def unlock(agent: DurableAgent) -> None:
    """Let another agent open the folder, as if this one had been killed."""
    if not agent._stream.closed:
        fcntl.flock(agent._stream, fcntl.LOCK_UN)


@pytest.fixture
def reopen(resources: Resources, tmp_path: Path) -> Open:
    """Return a function that opens a folder as if the agents that have it open had been killed."""
    alive: list[DurableAgent] = []

    def open_again(folder: Path = tmp_path / "agent") -> DurableAgent:
        for agent in alive:
            unlock(agent)
        alive.append(durable(resources, folder))
        return alive[-1]

    return open_again


names = st.sampled_from(["mug_1", "mug_2", "apple_1"])
places = st.sampled_from([None, "cabinet_1", "table_1"])
facts = st.builds(lambda id, place, end: Fact(id, "object", id[:-2], place, gone=end), names, places, st.booleans())
headers = st.sampled_from(["cabinet_1", "table_1"]).map(lambda id: Fact(id, "receptacle", id[:-2]))
calls = st.one_of(
    st.tuples(st.just("observe"), st.lists(st.one_of(facts, headers), max_size=3)),
    st.tuples(st.just("plan"), st.sampled_from(["get the mug", "get the apple"])),
    st.tuples(st.just("report"), st.booleans()),
    st.tuples(st.just("finish"), st.booleans()),
)


def do(agent: DurableAgent, call: tuple[str, Any]) -> None:
    name, value = call
    if name == "plan":
        agent.plan(value, SKILLS)
    elif name == "report":
        if agent.agent._open is not None:
            agent.report(Outcome(value, "" if value else "stuck"))
    else:
        getattr(agent, name)(value)


@settings(max_examples=25)
@given(st.lists(calls, min_size=1, max_size=14), st.sets(st.integers(0, 13)))
def test_opened_again_it_remembers_every_call(
    resources: Resources, tmp_path_factory: pytest.TempPathFactory, sequence: list[tuple[str, Any]], compacted: set[int]
) -> None:
    """The first agent is not closed, as after a kill; some calls are in the memory file already."""
    folder = tmp_path_factory.mktemp("agent")
    agent = durable(resources, folder)
    for number, call in enumerate(sequence):
        do(agent, call)
        if number in compacted:
            agent.compact()
        copy = shutil.copytree(folder, tmp_path_factory.mktemp("copy"), dirs_exist_ok=True)
        again = durable(resources, copy, "again")
        assert again.dump() == agent.dump()
        if number == len(sequence) - 1:
            tokens = [planner.plan("put the plate away", SKILLS).trace["token_ids"] for planner in (again, agent)]
            assert tokens[0] == tokens[1]
        again.close()
    agent.close()


def test_the_goal_of_a_task_is_remembered_with_its_first_decision(tmp_path: Path) -> None:
    """The model generates the goal once per task, and every later prompt of the task has it."""
    resources = make_resources(["model=planner-tiny", "model.dtype=float32", "prompt.encoder=hashed"])
    with resources.engine:
        agent = durable(resources, tmp_path)
        agent.observe([Fact("agent", "agent", "agent", place="cabinet_1"), Fact("cabinet_1", "receptacle", "cabinet")])
        agent.plan("put a mug in the fridge", ["find a mug", "find a fridge"])
        agent.report(Outcome(True))
        unlock(agent)
        again = durable(resources, tmp_path)
        assert again.agent._planner.goal == agent.agent._planner.goal != ""
        skills = ["pick up the mug", "done"]
        first, second = (planner.plan("put a mug in the fridge", skills).scores for planner in (agent, again))
        assert [name for name, _ in first] == [name for name, _ in second]
        assert [score for _, score in first] == pytest.approx([score for _, score in second], abs=1e-4)


def test_a_torn_last_line_is_cut_off(reopen: Open, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    agent = reopen()
    agent.observe([Fact("mug_1", "object", "mug")])
    whole, mark = ((tmp_path / "agent" / name).read_bytes() for name in (JOURNAL, END))
    agent.observe([Fact("mug_2", "object", "mug")])
    content = (tmp_path / "agent" / JOURNAL).read_bytes()
    for size in range(len(whole), len(content)):
        copy = tmp_path / str(size)
        copy.mkdir()
        (copy / JOURNAL).write_bytes(content[:size])
        (copy / END).write_bytes(mark)
        again = reopen(copy)
        assert again.agent.segments == 1
        again.observe([Fact("mug_3", "object", "mug")])
        assert reopen(copy).agent.segments == 2
    assert caplog.text.count("journal.jsonl:2 is cut off in the middle") == len(content) - len(whole) - 1
    assert reopen().agent.segments == 2


@pytest.fixture
def two(resources: Resources, tmp_path: Path) -> Folders:
    """Folders of two agents with a memory and two calls since, and an older copy of the first."""
    folders = {name: tmp_path / name for name in ("pp", "qq")}
    for name, folder in folders.items():
        agent = durable(resources, folder, name, name)
        for number in range(4):
            agent.observe([Fact(f"{name}_{number}", "object", "mug")])
            if number == 1:
                agent.compact()
        if name == "pp":
            shutil.copytree(folder, tmp_path / "older")
            agent.compact()
            agent.observe([Fact("pp_4", "object", "mug")])
        agent.agent.close()
        agent._stream.close()
    return {**folders, "older": tmp_path / "older"}


def ids_in(resources: Resources, folder: Path, name: str = "pp") -> set[str]:
    agent = durable(resources, folder, name, name)
    try:
        return {id for id, *_ in agent.dump()["planner"]["memory"]["segments"]}
    finally:
        agent.close(write=False)


@pytest.mark.parametrize("source", ["qq", "older"])
@pytest.mark.parametrize("names", [*SOME, {*FILES}], ids=sorted)
def test_foreign_or_older_files_are_refused(resources: Resources, two: Folders, source: str, names: set[str]) -> None:
    for name in names:
        shutil.copy(two[source] / name, two["pp"] / name)
    if source == "older" and len(names) == len(FILES):  # an older copy that was put back
        assert ids_in(resources, two["pp"]) == {f"pp_{number}" for number in range(4)}
        return
    with pytest.raises(CorruptError, match=r"pp/(memory|journal)\..*(restore|saved memory)"):
        ids_in(resources, two["pp"])


@pytest.mark.parametrize("names", SOME, ids=sorted)
def test_missing_files_are_noticed(resources: Resources, two: Folders, names: set[str]) -> None:
    for name in names:
        (two["pp"] / name).unlink()
    with pytest.raises(CorruptError, match=r"pp/journal\."):
        ids_in(resources, two["pp"])


def test_a_moved_folder_becomes_another_agents_by_its_memory_alone(resources: Resources, two: Folders) -> None:
    folder = two["pp"].rename(two["pp"].with_name("rr"))
    with pytest.raises(CorruptError, match="is the memory of agent 'pp', not of 'rr'"):
        ids_in(resources, folder, "rr")
    state = read_memory(folder / MEMORY)
    DurableAgent(Agent(resources.planner("rr"), "rr", ahead=False), folder, replacement=state).close()
    assert ids_in(resources, folder, "rr") == {f"pp_{number}" for number in range(4)}


def test_a_memory_of_version_0_2_is_opened_and_bound(resources: Resources, two: Folders) -> None:
    """The memory names no agent, and the journal is empty, since the agent of that version was closed."""
    folder = two["pp"]
    state = read_memory(folder / MEMORY)
    del state["agent"]
    write_packed(folder / MEMORY, pack_state({**state, "journal": 12}))
    (folder / END).unlink()
    with pytest.raises(CorruptError, match=r"journal\.end is missing"):
        ids_in(resources, folder)
    (folder / JOURNAL).write_bytes(b"")
    for _ in range(2):
        assert ids_in(resources, folder) == {f"pp_{number}" for number in range(4)}
    assert read_memory(folder / MEMORY)["agent"] == "pp"
    write_packed(folder / MEMORY, pack_state(state))
    with pytest.raises(DataError, match="is a saved memory, not a memory file of a folder; load it with load"):
        ids_in(resources, folder)


def test_killed_at_any_write_it_has_every_call(reopen: Open, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Any copy of the folder before or after a change of its files may be the result of a kill."""
    folder = tmp_path / "agent"
    copies: list[Path] = []

    def copying(change: Callable[..., Any]) -> Callable[..., Any]:
        def copy_and_change(*values: Any, **more: Any) -> Any:
            copies.append(shutil.copytree(folder, tmp_path / f"copy{len(copies)}"))
            result = change(*values, **more)
            copies.append(shutil.copytree(folder, tmp_path / f"copy{len(copies)}"))
            return result

        return copy_and_change

    agent = reopen(folder)
    agent.observe([Fact("mug_1", "object", "mug")])
    agent.compact()
    agent.observe([Fact("mug_2", "object", "mug")])
    whole = agent.dump()
    with monkeypatch.context() as patch:
        for name in ("write", "fsync", "truncate", "ftruncate", "replace"):
            patch.setattr(os, name, copying(getattr(os, name)))
        patch.setattr(Path, "replace", copying(Path.replace))
        agent.compact()
    assert len(copies) > 8
    for copy in copies:
        assert reopen(copy).dump() == whole


def test_the_journal_restarts_when_the_memory_is_written(reopen: Open, tmp_path: Path) -> None:
    agent = reopen()
    agent.plan("get the mug", SKILLS)
    for number in range(MAX_CALLS + 3):
        agent.observe([Fact("mug_1", "object", "mug", f"place_{number}")])
    assert len((tmp_path / "agent" / JOURNAL).read_bytes().splitlines()) == 4
    assert reopen().dump() == agent.dump()


@contextmanager
def full_disk(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Let syncs fail; the ``with`` block has to raise the error."""
    with monkeypatch.context() as patch, pytest.raises(CapacityError, match="No space left"):
        patch.setattr(os, "fsync", Mock(side_effect=OSError(28, "No space left on device")))
        yield


@pytest.mark.parametrize("reopens", [True, False])
def test_a_call_without_space_is_written_later(reopen: Open, monkeypatch: pytest.MonkeyPatch, reopens: bool) -> None:
    agent = reopen()
    with full_disk(monkeypatch):
        agent.plan("get the mug", SKILLS)
    assert not reopens or reopen().agent.number == 0
    assert agent.plan("get the mug", SKILLS).number == 1  # requested again
    assert reopen().dump() == agent.dump()
    agent.report(Outcome(True), 1)
    assert reopen().dump() == agent.dump()
    state = agent.dump()
    agent.finish(True)
    with full_disk(monkeypatch):
        agent.restore(state)
    agent.observe([Fact("mug_9", "object", "mug")])
    assert reopen().dump() == agent.dump()


@pytest.mark.parametrize("times", [1, 2])
def test_a_memory_that_is_not_synced_loses_no_call(reopen: Open, monkeypatch: pytest.MonkeyPatch, times: int) -> None:
    """The new memory is there, but the folder could not be synced, for example because too many files were open."""
    agent = reopen()
    agent.observe([Fact("mug_1", "object", "mug", "cabinet_1")])
    with monkeypatch.context() as patch:
        for _ in range(times):  # the first sync is of the end mark that announces the memory
            patch.setattr("memory.files.atomic.sync", Mock(side_effect=[None, StorageError("no sync"), None, None]))
            with pytest.raises(StorageError, match="no sync"):
                agent.compact()
    agent.observe([Fact("apple_1", "object", "apple", "cabinet_1")])
    agent.plan("get the mug", SKILLS)
    assert reopen().dump() == agent.dump()


def test_a_plan_that_failed_after_its_decision_is_kept(reopen: Open, monkeypatch: pytest.MonkeyPatch) -> None:
    agent = reopen()
    with monkeypatch.context() as patch, pytest.raises(ZeroDivisionError):
        patch.setattr(agent.agent, "_trim", lambda: 1 / 0)
        agent.plan("get the mug", SKILLS)
    assert agent.plan("get the mug", SKILLS, after=0).number == 1  # the same request: it was decided
    agent.report(Outcome(True), 1)
    assert reopen().dump() == agent.dump()


@pytest.mark.parametrize("killed", [False, True])
def test_an_agent_opens_its_files_under_any_limit(resources: Resources, tmp_path: Path, killed: bool) -> None:
    first = durable(resources, tmp_path, limit=3)
    first.observe([Fact(f"mug_{i}", "object", "mug") for i in range(3)])
    first.observe([Fact(f"mug_{i}", "object", "mug", "table_1") for i in range(3)])
    for task in range(0 if killed else 5):  # a lower limit replays a journal with fewer skills
        first.plan(f"task {task}", ["done"])
        first.report(Outcome(True))
    state = first.dump()
    unlock(first) if killed else first.close()
    for limit in (1, 3):
        again = durable(resources, tmp_path, limit=limit)
        assert again.dump() == state
        with pytest.raises(CapacityError, match=f"things, {limit} are allowed"):
            again.observe([Fact("mug_9", "object", "mug")])
        again.close()


def test_a_folder_has_one_agent(resources: Resources, tmp_path: Path) -> None:
    first = durable(resources, tmp_path)
    with pytest.raises(ConfigError, match=f"uses {tmp_path}; stop it"):
        durable(resources, tmp_path, "other")
    first.observe([Fact("mug_1", "object", "mug")])
    first.close()
    (tmp_path / MEMORY).write_bytes(b"damaged")
    for _ in range(2):  # an agent that cannot open the folder releases its lock
        with pytest.raises(DataError):
            durable(resources, tmp_path)


def test_a_plan_too_long_for_the_model_leaves_nothing(reopen: Open, monkeypatch: pytest.MonkeyPatch) -> None:
    agent = reopen()
    agent.plan("get the mug", SKILLS)
    agent.observe([Fact("mug_1", "object", "mug", states=("ü" * 64,) * 64)])
    before = agent.dump()
    with pytest.raises(CapacityError, match="longer than the model"):
        agent.plan("get the apple", SKILLS)
    assert agent.dump() == before
    monkeypatch.setattr(agent, "_write", lambda: pytest.fail("it was written"))
    agent.report(Outcome(False, "stuck"), 1)
    assert reopen().dump() == agent.dump()
    assert agent.dump()["planner"]["turns"] == [[before["open"][0], False, "stuck"]]


def test_only_a_changed_memory_is_written_at_the_end(reopen: Open) -> None:
    agent = reopen()
    agent.close()
    assert not (agent.folder / MEMORY).exists()
    agent = reopen()
    agent.observe([Fact("mug_1", "object", "mug")])
    agent.close()
    inode = (agent.folder / MEMORY).stat().st_ino
    again = reopen()
    assert again.agent.segments == 1
    again.close()
    assert (agent.folder / MEMORY).stat().st_ino == inode


def test_the_journal_has_a_limit_in_bytes(reopen: Open, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("keep_agent.agent.durable.MAX_BYTES", 2000)
    agent = reopen()
    for number in range(40):
        agent.observe([Fact("mug_1", "object", "mug", states=("x" * 60, f"{number}"))])
        assert agent._journal.size <= 2000
    assert reopen().dump() == agent.dump()


@pytest.mark.parametrize("write", [lambda agent: agent.finish(False), DurableAgent.compact, DurableAgent.close])
def test_a_line_that_was_refused_and_stayed_is_not_played_again(
    reopen: Open, monkeypatch: pytest.MonkeyPatch, write: Callable[[DurableAgent], None]
) -> None:
    """The line was neither synced nor removed; then the memory was written, and the journal could not be restarted."""
    agent, broken = reopen(), Mock(side_effect=OSError(5, "Input/output error"))
    agent.plan("get the mug", SKILLS)
    with monkeypatch.context() as patch:
        for name in ("truncate", "ftruncate"):
            patch.setattr(os, name, broken)
        with patch.context() as synced, pytest.raises(StorageError, match="Input/output"):
            synced.setattr(os, "fsync", broken)
            agent.report(Outcome(False, "stuck"))
        assert len((agent.folder / JOURNAL).read_bytes().splitlines()) == 2
        with pytest.raises(StorageError, match="Input/output"):
            write(agent)
    assert reopen().dump() == agent.dump()


def test_a_refused_call_leaves_nothing(reopen: Open) -> None:
    agent = reopen()
    for wrong in (lambda: agent.observe([{"id": "a b"}]), lambda: agent.plan("", SKILLS), lambda: agent.restore({})):
        with pytest.raises((DataError, ConfigError)):
            wrong()
    assert reopen().dump() == agent.dump()
    assert not (agent.folder / JOURNAL).read_bytes()


def test_a_saved_memory_replaces_the_present_one(reopen: Open) -> None:
    agent = reopen()
    agent.observe([Fact("mug_1", "object", "mug")])
    state = json.loads(json.dumps(agent.dump()))
    agent.observe([Fact("mug_2", "object", "mug")])
    agent.restore(state)
    assert agent.dump() == reopen().dump() == state


CHILD = """
import sys
from pathlib import Path
from envs.fact import Fact
from envs.outcome import Outcome
from keep_agent.agent.agent import Agent
from keep_agent.config.planner_factory import make_resources
from keep_agent.agent.durable import DurableAgent

resources = make_resources([f"model={sys.argv[1]}", "prompt.encoder=hashed"])
agent = DurableAgent(Agent(resources.planner("robot")), Path(sys.argv[2]))
number = agent.agent.segments
while True:
    agent.observe([Fact(f"mug_{number}", "object", "mug")])
    number += 1
    agent.plan(f"task {number}", ["go to cabinet 1", "done"])
    agent.report(Outcome(True))
    print(agent.agent.number, flush=True)
"""


@pytest.mark.slow
def test_killed_at_any_moment_it_loses_no_call(tiny_model: Path, tmp_path: Path) -> None:
    acknowledged = 0
    for kill in range(12):
        command = [sys.executable, "-c", CHILD, str(tiny_model), str(tmp_path / "agent")]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as child:
            for _ in range(3 + kill):
                line = child.stdout.readline()
                assert line, "the agent could not go on"
            child.send_signal(signal.SIGKILL)
            rest = child.stdout.read().split()
        last = int((rest or [line])[-1])
        assert last > acknowledged
        acknowledged = last
    resources = make_resources([f"model={tiny_model}", "prompt.encoder=hashed"])
    with resources.engine:
        again = DurableAgent(Agent(resources.planner("robot")), tmp_path / "agent")
        assert again.agent.number >= acknowledged
        again.close()


def test_a_numpy_flag_of_a_failed_task_is_kept(reopen: Open) -> None:
    agent = reopen()
    agent.plan("get the mug", SKILLS)
    agent.finish(np.bool_(False))
    assert reopen().dump() == agent.dump()

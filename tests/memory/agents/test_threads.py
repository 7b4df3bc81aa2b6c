"""Memories used by several threads, turns that extend blocks being written, and random operations on several agents."""

from __future__ import annotations

import random
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from keep_agent.errors import ConfigError
from memory.agents.manager import AgentMemories, AgentPrompt
from memory.agents.text_match import TokenizerCoder
from memory.engine.base import Engine
from memory.files import agent_files as disk
from memory.files import block_file as blockfile
from memory.kv_cache.quantization import PackFormat
from memory.kv_cache.quantized import BLOCK, PAGE, QuantizedCache
from memory.kv_cache.quantized_file import tensors_of
from tests.memory.agents.reference import Make, ReferenceMemories, ReferenceRows, answer, lines, pausing, say, size_of
from tests.waiting import PATIENCE, until


def test_open_waits_for_rows_that_are_being_evicted(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    memories, text = make(), lines(40)
    memories._disk.wait_for_writes()
    gate, real = threading.Event(), disk.save_agent
    monkeypatch.setattr(disk, "save_agent", lambda *arguments: gate.wait(PATIENCE) and real(*arguments))
    memories.host_bytes = 1
    with ThreadPoolExecutor(2) as pool:
        first = pool.submit(say, memories, "a", text)
        until(lambda: not memories._disk._writer._is_done(("a", memories.engine.model_key)) and not memories._host)
        second = pool.submit(memories.open, "a", text)
        until(lambda: memories._open_prompts or second.done())  # the call of `open` has begun
        assert not first.done() and not second.done()
        gate.set()
        assert (second.result(PATIENCE).origin, first.result(PATIENCE)[0].origin) == ("warm", "cold")


def test_a_slow_writer_writes_the_newest_rows(make: Make, engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    memories = make()
    memories._disk.wait_for_writes()
    gate, real, writes = threading.Event(), disk.save_agent, []

    def slow(*arguments: Any) -> Path:
        gate.wait(PATIENCE)
        writes.append((arguments[1], arguments[3]))
        return real(*arguments)

    monkeypatch.setattr(disk, "save_agent", slow)
    reference = ReferenceMemories(memories)
    for turn in range(5):
        for agent in "ab":
            reference.say(agent, lines(20) + lines(4 * turn, 1))
    gate.set()
    memories.flush()
    last = {agent: len(reference.known[agent, engine.model_key].token_text.ids) for agent in "ab"}
    assert len(writes) <= 4 and dict(writes) == last, "a queued write is replaced by a later one"
    fresh = ReferenceMemories(make(), reference.known)
    for known in reference.known.values():
        known.where = "warm"
    for agent in "ab":
        fresh.say(agent, reference.text(agent) + lines(1, 2))


def test_many_threads(make: Make, engine: Engine) -> None:
    probe = make(folder=None)
    say(probe, "a", lines(60))
    memories = make(host_bytes=6 * size_of(probe, "a"))
    memories.share("house", lines(40, 5))
    halfway = threading.Barrier(8)

    def live(number: int) -> int:
        chance, warm = random.Random(number), 0
        known: dict[str, str] = {}
        for turn in range(12):
            if turn == 6:
                halfway.wait(PATIENCE)  # all agents exist at once, with more rows than the budget holds
            agent = f"{number}-{chance.randrange(2)}"
            if turn == 0:
                memories.begin_with(agent, "house")
            text = known.get(agent, lines(40, 5) if chance.random() < 0.5 else lines(30, number))
            text += lines(1 + chance.randrange(9), turn)
            prompt = memories.open(agent, text)
            warm += prompt.origin == "warm"
            assert prompt.cache.tokens == prompt.token_text.ids[: prompt.reused] and prompt.token_text.text == text
            if known.get(agent):
                assert prompt.reused >= len(memories.coder.encode(known[agent]).ids)
            with pytest.raises(ConfigError, match="open prompt|is not open"):
                memories.open(agent, text)
            logits = answer(memories, prompt)
            if prompt.reused == 0:
                same = engine.extend(engine.new_cache(memories.format), prompt.token_text.ids).logits
                assert torch.equal(logits, same)
            action = chance.random()
            if action < 0.1:
                memories.abandon(prompt)
            elif action < 0.2:
                memories.forget(agent)
                known.pop(agent, None)
            else:
                memories.finish(prompt)
                known[agent] = text
            if action > 0.9:
                memories.flush()
        return warm

    with ThreadPoolExecutor(8) as pool:
        assert sum(pool.map(live, range(8))) > 0
    memories.flush()
    stats = memories.stats()
    assert stats["bytes"] <= memories.host_bytes and not memories._open_prompts
    assert stats["damaged"] == stats["failed"] == 0


@dataclass
class Gate:
    """Writer that stops after the header, the open rows and one tensor of packed rows."""

    writes: int = 0
    closed: threading.Event = field(default_factory=threading.Event)
    open: threading.Event = field(default_factory=threading.Event)

    def __call__(self) -> None:
        self.writes += 1
        if self.writes == 3:
            self.closed.set()
            self.open.wait(PATIENCE)


@pytest.fixture
def gate(monkeypatch: pytest.MonkeyPatch) -> Iterator[Gate]:
    gate = Gate()
    monkeypatch.setattr(blockfile, "replace_file", pausing(gate))
    yield gate
    gate.open.set()


def extend(memories: AgentMemories, text: str, gate: Gate) -> AgentPrompt:
    """Run a turn that extends the last block of the agent's previous turn, which is half written."""
    assert gate.closed.wait(PATIENCE)
    before = memories._host["a", memories.engine.model_key].cache
    assert before.packed % BLOCK, "the last block must have room"
    prompt = memories.open("a", text + lines(60, 1))
    answer(memories, prompt)
    assert prompt.cache.packed >= before.packed + PAGE
    shared = prompt.cache.extents[len(before.extents) - 1]
    assert shared.k.codes.data_ptr() == before.extents[-1].k.codes.data_ptr(), "rows must be added in place"
    return prompt


@pytest.mark.parametrize("end", ["killed", "abandoned and killed", "abandoned and closed", "abandoned and evicted"])
def test_written_rows_are_those_of_the_finished_turn(end: str, make: Make, gate: Gate) -> None:
    memories, text = make(), lines(100)
    say(memories, "a", text)
    expected = memories._host["a", memories.engine.model_key].cache.fork()
    prompt = extend(memories, text, gate)
    gate.open.set()
    if end != "killed":
        memories.abandon(prompt)
    if end == "abandoned and closed":
        memories.close()
    elif end == "abandoned and evicted":
        memories.host_bytes = 1
        say(memories, "b", lines(3))
        assert not memories._host
    memories._disk.wait_for_writes()
    with make(folder=memories.folder / "quiet") as quiet:
        say(quiet, "a", text)
    folders = (memories.folder, quiet.folder)
    a, b = (disk.agent_path(folder, "a", memories.engine.model_key).read_bytes() for folder in folders)
    assert a == b, "rows added during a write do not change the file"
    fresh = make()
    again = fresh.open("a", text + "look at")
    assert not fresh.damaged and (again.origin, again.kind) == ("warm", "extend")
    assert torch.equal(answer(fresh, again), memories.engine.extend(expected, again.new).logits)


def test_room_allocated_by_a_failed_pass_is_not_written(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    memories, text = make(), lines(100)
    for turn in (text, text + lines(60, 1)):
        say(memories, "a", turn)
    cache = memories._host["a", memories.engine.model_key].cache
    expected, _ = tensors_of(cache)
    extents = len(cache.extents)

    def fail(*_: object) -> None:
        raise RuntimeError("out of luck")

    with monkeypatch.context() as patch, pytest.raises(RuntimeError, match="out of luck"):
        patch.setattr(QuantizedCache, "write", fail)
        memories.engine.extend(cache, torch.full((2000,), 7))
    assert len(cache.extents) > extents and cache.extents[-2].blocks * BLOCK > cache.packed, "room after room"
    tensors, _ = tensors_of(cache)
    assert all(torch.equal(tensors[name], expected[name]) for name in expected)


agents_ = st.sampled_from("abc")
steps = st.lists(
    st.one_of(
        st.tuples(st.just("extend"), agents_, st.integers(1, 25)),
        st.tuples(st.just("edit"), agents_, st.floats(0, 1)),
        st.tuples(st.just("extend"), agents_, st.just(0)),
        st.tuples(st.just("replace"), agents_, st.integers(1, 60)),
        st.tuples(st.just("generate"), agents_, st.integers(1, 5)),
        st.tuples(st.just("abandon"), agents_, st.integers(1, 40)),
        st.tuples(st.just("cancel"), agents_, st.integers(2, 40)),
        st.tuples(st.sampled_from(["flush", "restart", "switch", "evict", "forget"]), agents_, st.just(0)),
    ),
    min_size=4,
    max_size=16,
)


class World:
    """Memories with their reference, and one method for each operation."""

    def __init__(self, engines: list[Engine], coder: TokenizerCoder, folder: Path, format: PackFormat) -> None:
        self.engines, self.coder, self.folder, self.format = engines, coder, folder, format
        self.reference = ReferenceMemories(self.fresh(engines[0]))

    def fresh(self, engine: Engine) -> AgentMemories:
        return AgentMemories(engine, self.coder, self.format, self.folder)

    def extend(self, agent: str, count: int) -> None:
        self.reference.say(agent, self.reference.text(agent) + lines(count, count) or "go\n")

    def edit(self, agent: str, place: float) -> None:
        text = self.reference.text(agent)
        at = round(place * len(text))
        self.reference.say(agent, f"{text[:at]} mug_1 {text[at + 3 :]}")

    def replace(self, agent: str, count: int) -> None:
        self.reference.say(agent, lines(count, 100 + count))

    def generate(self, agent: str, count: int) -> None:
        self.reference.say(agent, self.reference.text(agent) + "next:\n", generate=count)

    def abandon(self, agent: str, count: int) -> None:
        with self.reference.memories.turn(agent, self.reference.text(agent)[:count] + lines(count)) as prompt:
            known = self.reference.known.get(prompt.key)
            if known is not None:
                known.where = "hot"  # opening a prompt loads the rows
            answer(self.reference.memories, prompt)

    def cancel(self, agent: str, count: int) -> None:
        reference = self.reference
        prompt, new = reference.open(agent, reference.text(agent) + lines(count, 3))
        some = prompt.new[: len(prompt.new) // 2]
        if some:
            reference.memories.engine.extend(prompt.cache, some)
            new.dense.append(some)
        reference.memories.finish(prompt)
        if prompt.reused + len(some):
            reference.known[prompt.key] = ReferenceRows(new.token_text.first(prompt.reused + len(some)), new.dense)

    def flush(self, *_: object) -> None:
        self.reference.memories.flush()

    def restart(self, *_: object) -> None:
        engine = self.reference.memories.engine
        self.reference.memories.close()
        self.reference.memories = self.fresh(engine)
        self.leave_host()

    def switch(self, *_: object) -> None:
        old = self.reference.memories.engine
        self.reference.memories.use(next(engine for engine in self.engines if engine is not old))

    def evict(self, *_: object) -> None:
        self.reference.memories.host_bytes = 0
        self.reference.say("evicting", lines(2))
        self.reference.memories.host_bytes = None
        self.leave_host()

    def leave_host(self) -> None:
        for known in self.reference.known.values():
            known.where = "warm"

    def forget(self, agent: str, _: int) -> None:
        self.reference.memories.forget(agent)
        for key in [key for key in self.reference.known if key[0] == agent]:
            del self.reference.known[key]


@pytest.mark.parametrize("format", [PackFormat(), PackFormat(8, 32, "channel")], ids=["4-token", "8-channel"])
@given(steps=steps)
@settings(max_examples=40)
def test_an_agent_keeps_its_own_text_through_any_operations(
    steps: list, format: PackFormat, engines: list[Engine], coder: TokenizerCoder, tmp_path_factory: Any
) -> None:
    world = World(engines, coder, tmp_path_factory.mktemp("world"), format)
    try:
        for operation, agent, size in steps:
            getattr(world, operation)(agent, size)
        for agent in "abc":
            world.extend(agent, 2)
        assert not world.reference.memories.damaged
    finally:
        world.reference.memories.close()

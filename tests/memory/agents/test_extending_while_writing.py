"""Turns that extend blocks while these are written: the file equals the finished turn, bit for bit."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from dataclasses import dataclass, field

import pytest
import torch

from memory.agents.manager import AgentMemories, AgentPrompt
from memory.files import agent_files as disk
from memory.files import block_file as blockfile
from memory.kv_cache.quantized import BLOCK, PAGE, QuantizedCache
from memory.kv_cache.quantized_file import tensors_of
from tests.memory.agents.pausing import pausing
from tests.memory.agents.reference import Make, answer, lines, say
from tests.waiting import PATIENCE


@dataclass
class Gate:
    """A writer that has written the open rows and a tensor of packed ones, and waits."""

    writes: int = 0
    reached: threading.Event = field(default_factory=threading.Event)
    opened: threading.Event = field(default_factory=threading.Event)

    def __call__(self) -> None:
        self.writes += 1
        if self.writes == 2:
            self.reached.set()
            self.opened.wait(PATIENCE)


@pytest.fixture
def gate(monkeypatch: pytest.MonkeyPatch) -> Iterator[Gate]:
    made = Gate()
    monkeypatch.setattr(blockfile, "replacing", pausing(made))
    yield made
    made.opened.set()


def goes_on(memories: AgentMemories, text: str, gate: Gate) -> AgentPrompt:
    """A turn of an agent whose last one is half written, in that one's last block."""
    assert gate.reached.wait(PATIENCE)
    before = memories._host["a", memories.engine.model_key].cache
    assert before.packed % BLOCK, "else nobody could go on in its last block"
    prompt = memories.open("a", text + lines(60, 1))
    answer(memories, prompt)
    assert prompt.cache.packed >= before.packed + PAGE
    shared = prompt.cache.extents[len(before.extents) - 1]
    assert shared.k.codes.data_ptr() == before.extents[-1].k.codes.data_ptr(), "it went on in place"
    return prompt


@pytest.mark.parametrize("end", ["killed", "abandoned and killed", "abandoned and closed", "abandoned and put out"])
def test_written_rows_are_those_of_the_finished_turn(end: str, make: Make, gate: Gate) -> None:
    """Also where nothing is written again, for the turn that went on came to nothing."""
    memories, text = make(), lines(100)
    say(memories, "a", text)
    expected = memories._host["a", memories.engine.model_key].cache.fork()
    prompt = goes_on(memories, text, gate)
    gate.opened.set()
    if end != "killed":
        memories.abandon(prompt)
    if end == "abandoned and closed":
        memories.close()
    elif end == "abandoned and put out":
        memories.host_bytes = 1
        say(memories, "b", lines(3))
        assert not memories._host
    memories._disk.wait()
    fresh = make()
    found = fresh.open("a", text + "look at")
    assert not fresh.damaged and (found.origin, found.kind) == ("warm", "extend")
    assert torch.equal(answer(fresh, found), memories.engine.extend(expected, found.new).logits)


def test_a_file_says_nothing_of_what_came_after(make: Make, gate: Gate) -> None:
    """Rows that another turn put behind the finished ones are in no file: it is the same, whatever goes on."""
    memories, text = make(), lines(100)
    say(memories, "a", text)
    goes_on(memories, text, gate)
    gate.opened.set()
    memories._disk.wait()
    with make(folder=memories.folder / "quiet") as quiet:
        say(quiet, "a", text)
    names = [memories.folder, quiet.folder]
    one, other = (disk.agent_path(folder, "a", memories.engine.model_key).read_bytes() for folder in names)
    assert one == other


def test_room_that_a_failed_pass_left_is_in_no_file(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    """The pass had made room for its rows, in an extent of its own, and never came to fill it."""
    memories, text = make(), lines(100)
    for told in (text, text + lines(60, 1)):
        say(memories, "a", told)
    cache = memories._host["a", memories.engine.model_key].cache
    expected, _ = tensors_of(cache)
    extents = len(cache.extents)
    with monkeypatch.context() as patch, pytest.raises(RuntimeError, match="out of luck"):
        patch.setattr(QuantizedCache, "write", unlucky)
        memories.engine.extend(cache, torch.full((2000,), 7))
    assert len(cache.extents) > extents and cache.extents[-2].blocks * BLOCK > cache.packed, "room behind room"
    found, _ = tensors_of(cache)
    assert all(torch.equal(found[name], expected[name]) for name in expected)


def unlucky(*_: object) -> None:
    raise RuntimeError("out of luck")

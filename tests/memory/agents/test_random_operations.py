"""Random operations on several agents: each keeps its own text and rows."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from memory.agents.manager import AgentMemories
from memory.agents.text_match import TokenizerCoder
from memory.engine.base import Engine
from memory.kv_cache.quantization import PackFormat
from tests.memory.agents.reference import ReferenceMemories, ReferenceRows, answer, lines

agents_ = st.sampled_from("abc")
steps = st.lists(
    st.one_of(
        st.tuples(st.just("extend"), agents_, st.integers(1, 25)),
        st.tuples(st.just("edit"), agents_, st.floats(0, 1)),
        st.tuples(st.just("repeat"), agents_, st.just(0)),
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
        self.reference.say(agent, self.reference.text(agent) + lines(count, count))

    def edit(self, agent: str, place: float) -> None:
        text = self.reference.text(agent)
        at = round(place * len(text))
        self.reference.say(agent, f"{text[:at]} mug_1 {text[at + 3 :]}")

    def repeat(self, agent: str, _: int) -> None:
        self.reference.say(agent, self.reference.text(agent) or "go\n")

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

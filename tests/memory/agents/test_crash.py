"""Agents whose process is killed while their texts grow: after a restart they have an announced state, or none."""

from __future__ import annotations

import hashlib
import itertools
import multiprocessing
import random
import time
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from multiprocessing.connection import Connection
from pathlib import Path

import pytest
import torch

from keep_agent.errors import CorruptError
from memory.agents.manager import AgentMemories
from memory.engine.base import ChunkSchedule, Engine
from memory.engine.models.tiny_models import tiny_model
from memory.engine.transformers.engine import TransformersEngine
from memory.files import block_file as blockfile
from memory.files.agent_files import agent_path, open_agent
from memory.kv_cache.quantized import QuantizedCache
from tests.memory.agents.coders import coder_of, tokenizer_of
from tests.memory.agents.reference import pausing
from tests.waiting import PATIENCE

FORK = multiprocessing.get_context("fork")  # a child need not load torch again
PROBE = "\nlook at table_1\ngo to"


@dataclass(frozen=True)
class Life:
    """Sizes of the agents' turns."""

    agents: tuple[str, ...] = ("kitchen", "garden", "cellar", "roof")
    lines: int = 0  # in an agent's first turn
    more: int = 30  # lines that no later turn reaches
    whole: int = 100  # rows computed in one pass, and stored in one extent
    longest: int = 4000  # characters after which an agent starts again
    host_bytes: int | None = 120_000  # small, so that agents are also read from the disk
    pause: float = 0.0  # seconds between the writes of two tensors


def make_engine() -> Engine:
    """Make an engine with the same weights in every process."""
    size = tokenizer_of("planner").get_vocab_size()
    model = tiny_model("qwen2", layers=2, vocab_size=size, seed=4, max_position_embeddings=4096)
    return TransformersEngine(model, "inline")


def make_memories(engine: Engine, folder: Path, host_bytes: int | None = None) -> AgentMemories:
    return AgentMemories(engine, coder_of("planner"), folder=folder, host_bytes=host_bytes)


def digest(logits: torch.Tensor) -> str:
    return hashlib.sha256(logits.numpy().tobytes()).hexdigest()


def name_of(ids: Sequence[int]) -> str:
    return hashlib.sha256(repr(list(ids)).encode()).hexdigest()


def probe(engine: Engine, cache: QuantizedCache, ids: Sequence[int]) -> str:
    return digest(engine.extend(cache.fork(), ids).logits)


@dataclass(frozen=True)
class State:
    """State of an agent that is about to be stored."""

    agent: str
    rows: str  # digest of its token ids
    text: str
    logits: str


def grow(life: Life, folder: Path, seed: int, texts: dict[str, str], pipe: Connection) -> None:
    """Run turns of random agents until killed; announce each state before it can be written."""
    torch.set_num_threads(1)
    chance, engine = random.Random(seed), make_engine()
    memories = make_memories(engine, folder, life.host_bytes)
    if life.pause:
        blockfile.replacing = pausing(partial(time.sleep, life.pause))
    ids = memories.coder.encode(PROBE).ids
    pipe.send(None)
    for turn in itertools.count():
        agent = chance.choice(life.agents)
        text = texts.get(agent, "")
        text = text[: len(text) - chance.choice((0, 0, 0, 40))] if len(text) < life.longest else ""
        count = chance.randrange(1, life.more) + (0 if text else life.lines)
        text += "".join(f"open drawer_1 and pick up mug_{seed + turn + i} \n" for i in range(count))
        prompt = memories.open(agent, text)
        logits = engine.extend(prompt.cache, prompt.new, ChunkSchedule(whole=life.whole, steps=(), rest=90)).logits
        generated = engine.generate(prompt.cache, logits, 3) if chance.random() < 0.3 else []
        token_text = prompt.token_text.first(len(prompt.token_text.ids))
        token_text.extend(generated, memories.coder)
        texts[agent] = token_text.text
        pipe.send(State(agent, name_of(token_text.ids), token_text.text, probe(engine, prompt.cache, ids)))
        memories.finish(prompt, generated)


@dataclass
class Parent:
    """States that child processes announced, in order, and the newest state read back of each agent."""

    folder: Path
    engine: Engine
    life: Life = Life()
    texts: dict[str, str] = field(default_factory=dict)
    announced: dict[str, list[State]] = field(default_factory=lambda: defaultdict(list))
    newest: dict[str, int] = field(default_factory=dict)  # number of the state, by agent

    def run(self, seed: int, turns: float) -> None:
        """Run one child and kill it after ``turns`` turns and a share of one, on a slow machine as on a fast one."""
        receiver, sender = FORK.Pipe(duplex=False)
        child = FORK.Process(target=grow, args=(self.life, self.folder, seed, dict(self.texts), sender))
        child.start()
        sender.close()
        assert receiver.poll(PATIENCE) and receiver.recv() is None
        began, whole = time.monotonic(), int(turns)
        for _ in range(whole):
            assert receiver.poll(PATIENCE)
            self._note(receiver.recv())
        time.sleep((turns - whole) * ((time.monotonic() - began) / whole if whole else 0.05))
        child.kill()
        child.join()
        for state in remaining(receiver):
            self._note(state)

    def _note(self, state: State) -> None:
        self.announced[state.agent].append(state)

    def check(self) -> tuple[int, int]:
        """Read all files back; return the number of agents with rows and of damaged files."""
        warm, broken = 0, 0
        with make_memories(self.engine, self.folder) as memories:
            for agent in self.life.agents:
                path = agent_path(self.folder, agent, self.engine.model_key)
                assert path.exists() or agent not in self.newest, "an existing file has disappeared"
                if path.exists():
                    sound = self._check(memories, agent)
                    warm, broken = warm + sound, broken + (not sound)
            assert len(memories.damaged) == broken
        return warm, broken

    def _check(self, memories: AgentMemories, agent: str) -> bool:
        """Check that an agent's file holds an announced state, not older than the newest read, or is reported."""
        try:
            header = open_agent(self.folder, agent, self.engine.model_key).header
        except CorruptError:
            assert memories.open(agent, PROBE).origin == "cold"
            return False
        text, ids = header["told"]["text"], header["ids"]
        with memories.turn(agent, text + PROBE) as prompt:
            if prompt.origin != "warm":
                return False
            assert prompt.cache.tokens == ids
            logits = digest(self.engine.extend(prompt.cache, prompt.new).logits)
        states = self.announced[agent]
        numbers = [i for i, state in enumerate(states) if (state.rows, state.logits) == (name_of(ids), logits)]
        assert numbers and states[numbers[-1]].text == text, f"{agent} has a state that was never announced"
        assert numbers[-1] >= self.newest.get(agent, 0), f"{agent} has an older state than before"
        self.newest[agent], self.texts[agent] = numbers[-1], text
        return True


def remaining(connection: Connection) -> Iterator[State]:
    """Yield the complete messages; the last one may be cut off."""
    while True:
        try:
            yield connection.recv()
        except (EOFError, OSError):
            return


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_killed_two_hundred_times_while_agents_grow(tmp_path: Path) -> None:
    folder = tmp_path / "rows"
    chance, leftovers, warm = random.Random(3), 0, 0
    with make_engine() as engine:
        parent = Parent(folder, engine)
        for number in range(200):
            parent.run(1000 * number, chance.uniform(0, 8))
            leftovers += len(list(folder.glob(".*.partial")))
            restored, broken = parent.check()
            warm += restored
            assert broken == 0, "only complete files are renamed into place"
    assert sum(map(len, parent.announced.values())) > 500 and warm > 600
    assert leftovers > 20, "some kills must interrupt a write"
    assert all(number > 20 for number in parent.newest.values())


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_killed_while_large_agents_are_written_slowly(tmp_path: Path) -> None:
    """Each turn extends blocks that are being written: 1,800 rows in one extent with room for another 250."""
    rooms = ("attic", "kitchen")
    life = Life(rooms, lines=200, more=6, whole=2048, longest=7800, host_bytes=None, pause=0.02)
    chance, warm = random.Random(7), 0
    with make_engine() as engine:
        parent = Parent(tmp_path / "rows", engine, life)
        for number in range(60):
            parent.run(20 * number, chance.uniform(2, 20))
            restored, broken = parent.check()
            warm += restored
            assert broken == 0, "the file must hold the finished turn"
    assert warm > 60 and all(number > 20 for number in parent.newest.values())
    assert len(parent.newest) == len(rooms)

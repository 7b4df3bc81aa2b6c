"""Agents whose process is killed while their texts grow: after a restart each has an announced state, or none."""

from __future__ import annotations

import hashlib
import itertools
import multiprocessing
import random
import time
from collections import defaultdict
from contextlib import suppress
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
from tests.memory.agents.coders import coder_of, tokenizer_of
from tests.memory.agents.reference import pausing
from tests.waiting import PATIENCE

FORK = multiprocessing.get_context("fork")  # a child need not load torch again
PROBE = "\nlook at table_1\ngo to"


@dataclass(frozen=True)
class Life:
    agents: tuple[str, ...] = ("kitchen", "garden", "cellar", "roof")
    lines: int = 0  # additional lines of an agent's first turn
    more: int = 30  # every turn has fewer lines than this, not counting `lines`
    whole: int = 100  # up to this many rows are computed in one pass, and stored in one extent
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


@dataclass(frozen=True)
class State:
    agent: str
    ids: list[int]
    text: str
    logits: str  # digest


def grow(life: Life, folder: Path, seed: int, texts: dict[str, str], pipe: Connection) -> None:
    """Run turns of random agents until killed; announce each state before it can be written."""
    torch.set_num_threads(1)
    chance, engine = random.Random(seed), make_engine()
    memories = make_memories(engine, folder, life.host_bytes)
    if life.pause:
        blockfile.replace_file = pausing(partial(time.sleep, life.pause))
    ids = memories.coder.encode(PROBE).ids
    pipe.send(None)
    for turn in itertools.count():
        agent = chance.choice(life.agents)
        text = texts.get(agent, "")
        text = text[: len(text) - chance.choice((0, 0, 0, 40))] if len(text) < life.longest else ""
        count = chance.randrange(1, life.more) + (0 if text else life.lines)
        text += "".join(f"open drawer_1 and pick up mug_{seed + turn + i} \n" for i in range(count))
        prompt = memories.open(agent, text)
        logits = engine.extend(prompt.cache, prompt.new, ChunkSchedule(one_pass=life.whole, steps=(), rest=90)).logits
        generated = engine.generate(prompt.cache, logits, 3) if chance.random() < 0.3 else []
        token_text = prompt.token_text.first(len(prompt.token_text.ids))
        token_text.extend(generated, memories.coder)
        texts[agent] = token_text.text
        logits = engine.extend(prompt.cache.fork(), ids).logits
        pipe.send(State(agent, list(token_text.ids), token_text.text, digest(logits)))
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
        """Run one child and kill it after ``turns`` turns; a fraction of a turn is measured by the turns before."""
        receiver, sender = FORK.Pipe(duplex=False)
        child = FORK.Process(target=grow, args=(self.life, self.folder, seed, dict(self.texts), sender))
        child.start()
        sender.close()
        assert receiver.poll(PATIENCE) and receiver.recv() is None
        began, whole, states = time.monotonic(), int(turns), []
        for _ in range(whole):
            assert receiver.poll(PATIENCE)
            states.append(receiver.recv())
        time.sleep((turns - whole) * ((time.monotonic() - began) / whole if whole else 0.05))
        child.kill()
        child.join()
        with suppress(EOFError, OSError):  # the last message may be cut off
            while True:
                states.append(receiver.recv())
        for state in states:
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
        numbers = [i for i, state in enumerate(states) if (state.ids, state.logits) == (ids, logits)]
        assert numbers and states[numbers[-1]].text == text, f"{agent} has a state that was never announced"
        assert numbers[-1] >= self.newest.get(agent, 0), f"{agent} has an older state than before"
        self.newest[agent], self.texts[agent] = numbers[-1], text
        return True


LARGE = Life(("attic", "kitchen"), lines=200, more=6, whole=2048, longest=7800, host_bytes=None, pause=0.02)
RUNS = {"often": (Life(), 200, 1000, (0, 8)), "while large blocks are written": (LARGE, 60, 20, (2, 20))}


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize(("life", "times", "step", "turns"), RUNS.values(), ids=RUNS)
def test_killed_while_agents_grow(life: Life, times: int, step: int, turns: tuple[int, int], tmp_path: Path) -> None:
    """Blocks are extended while they are written: 1,800 rows in one extent with room for another 250."""
    chance, leftovers, warm = random.Random(3), 0, 0
    with make_engine() as engine:
        parent = Parent(tmp_path / "rows", engine, life)
        for number in range(times):
            parent.run(step * number, chance.uniform(*turns))
            leftovers += len(list(parent.folder.glob(".*.partial")))
            restored, broken = parent.check()
            warm += restored
            assert broken == 0, "only complete files of finished turns are renamed into place"
    assert warm > (len(life.agents) - 1) * times and parent.newest.keys() == set(life.agents)
    assert all(number > 20 for number in parent.newest.values()) and leftovers > 20, "some kills must interrupt a write"

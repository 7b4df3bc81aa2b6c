"""Agents whose process is killed while they grow: they find an announced state again, or none."""

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
from memory.agents.text_match import TokenizerCoder
from memory.engine.base import ChunkSchedule, Engine
from memory.engine.models.tiny_models import tiny_model
from memory.engine.transformers.engine import TransformersEngine
from memory.files import block_file as blockfile
from memory.files.agent_files import agent_path, open_agent
from memory.kv_cache.quantized import QuantizedCache
from planners.tiny.checkpoint import BUNDLED
from planners.tiny.tokenizer import load_tokenizer
from tests.memory.agents.pausing import pausing
from tests.waiting import PATIENCE

FORK = multiprocessing.get_context("fork")  # a child need not load torch again
PROBE = "\nlook at table_1\ngo to"


@dataclass(frozen=True)
class Life:
    """How agents grow.

    :param lines: of an agent that begins; later turns have fewer than ``more``
    :param whole: rows that are computed in one pass, and lie in one piece then
    :param longest: characters, then an agent begins anew
    :param host_bytes: of all agents' rows in memory; None: no limit
    :param pause: seconds that a writer takes between one tensor and the next
    """

    agents: tuple[str, ...] = ("kitchen", "garden", "cellar", "roof")
    lines: int = 0
    more: int = 30
    whole: int = 100
    longest: int = 4000
    host_bytes: int | None = 120_000  # so few that agents come from the disk as well
    pause: float = 0.0


def make_engine() -> Engine:
    """In every process the same weights."""
    size = load_tokenizer(BUNDLED / "tokenizer.json").get_vocab_size()
    return TransformersEngine(
        tiny_model("qwen2", layers=2, vocab_size=size, seed=4, max_position_embeddings=4096), "inline"
    )


def make_memories(engine: Engine, folder: Path, host_bytes: int | None = None) -> AgentMemories:
    coder = TokenizerCoder(load_tokenizer(BUNDLED / "tokenizer.json"))
    return AgentMemories(engine, coder, folder=folder, host_bytes=host_bytes)


def digest(logits: torch.Tensor) -> str:
    return hashlib.sha256(logits.numpy().tobytes()).hexdigest()


def name_of(ids: Sequence[int]) -> str:
    return hashlib.sha256(repr(list(ids)).encode()).hexdigest()


def probe(engine: Engine, cache: QuantizedCache, ids: Sequence[int]) -> str:
    """What the rows say, bit for bit, without a trace in them."""
    return digest(engine.extend(cache.fork(), ids).logits)


@dataclass(frozen=True)
class News:
    """A state that is about to be remembered."""

    agent: str
    rows: str  # name of its tokens
    text: str
    logits: str


def grow(life: Life, folder: Path, seed: int, texts: dict[str, str], news: Connection) -> None:
    """Turn after turn of one agent or another until killed; each state is announced before it can be written."""
    torch.set_num_threads(1)
    chance, engine = random.Random(seed), make_engine()
    memories = make_memories(engine, folder, life.host_bytes)
    if life.pause:
        blockfile.replacing = pausing(partial(time.sleep, life.pause))
    ids = memories.coder.encode(PROBE).ids
    news.send(None)
    for turn in itertools.count():
        agent = chance.choice(life.agents)
        text = texts.get(agent, "")
        text = text[: len(text) - chance.choice((0, 0, 0, 40))] if len(text) < life.longest else ""
        count = chance.randrange(1, life.more) + (0 if text else life.lines)
        text += "".join(f"open drawer_1 and pick up mug_{seed + turn + i} \n" for i in range(count))
        prompt = memories.open(agent, text)
        logits = engine.extend(prompt.cache, prompt.new, ChunkSchedule(whole=life.whole, steps=(), rest=90)).logits
        said = engine.generate(prompt.cache, logits, 3) if chance.random() < 0.3 else []
        told = prompt.token_text.first(len(prompt.token_text.ids))
        told.extend(said, memories.coder)
        texts[agent] = told.text
        news.send(News(agent, name_of(told.ids), told.text, probe(engine, prompt.cache, ids)))
        memories.finish(prompt, said)


@dataclass
class Parent:
    """What children announced, in order, and what has been found."""

    folder: Path
    engine: Engine
    life: Life = Life()
    texts: dict[str, str] = field(default_factory=dict)
    announced: dict[str, list[News]] = field(default_factory=lambda: defaultdict(list))
    found: dict[str, int] = field(default_factory=dict)  # number of the newest state seen, by agent

    def run(self, seed: int, turns: float) -> None:
        """One child, killed after so many turns: somewhere in the last, or while what it brought is written.

        Counted in turns, and a part of what one took: so a slow machine sees as many states as a fast one.
        """
        mine, theirs = FORK.Pipe(duplex=False)
        child = FORK.Process(target=grow, args=(self.life, self.folder, seed, dict(self.texts), theirs))
        child.start()
        theirs.close()
        assert mine.poll(PATIENCE) and mine.recv() is None
        begun, whole = time.monotonic(), int(turns)
        for _ in range(whole):
            assert mine.poll(PATIENCE)
            self._note(mine.recv())
        time.sleep((turns - whole) * ((time.monotonic() - begun) / whole if whole else 0.05))
        child.kill()
        child.join()
        for each in received(mine):
            self._note(each)

    def _note(self, each: News) -> None:
        self.announced[each.agent].append(each)

    def check(self) -> tuple[int, int]:
        """How many agents are remembered, and how many files are damaged."""
        warm, broken = 0, 0
        with make_memories(self.engine, self.folder) as memories:
            for agent in self.life.agents:
                path = agent_path(self.folder, agent, self.engine.model_key)
                assert path.exists() or agent not in self.found, "a file that was there is gone"
                if path.exists():
                    sound = self._check(memories, agent)
                    warm, broken = warm + sound, broken + (not sound)
            assert len(memories.damaged) == broken
        return warm, broken

    def _check(self, memories: AgentMemories, agent: str) -> bool:
        """An agent's file is a state that was announced, no older than one that was seen, or it is reported."""
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
        assert numbers and states[numbers[-1]].text == text, f"{agent} remembers what it never was"
        assert numbers[-1] >= self.found.get(agent, 0), f"{agent} is older than it was"
        self.found[agent], self.texts[agent] = numbers[-1], text
        return True


def received(connection: Connection) -> Iterator[News]:
    """All that was sent whole; the last may have been cut off."""
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
            remembered, broken = parent.check()
            warm += remembered
            assert broken == 0, "a name is given to whole files only"
    assert sum(map(len, parent.announced.values())) > 500 and warm > 600
    assert leftovers > 20, "else the kills would have missed the writing"
    assert all(number > 20 for number in parent.found.values())


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_killed_while_large_agents_are_written_slowly(tmp_path: Path) -> None:
    """Turns follow each other faster than the disk: each goes on in the blocks that the writer is at.

    Some 1,800 rows lie in one piece, with room for another 250; then, soon, the agent begins anew.
    """
    rooms = ("attic", "kitchen")
    life = Life(rooms, lines=200, more=6, whole=2048, longest=7800, host_bytes=None, pause=0.02)
    chance, warm = random.Random(7), 0
    with make_engine() as engine:
        parent = Parent(tmp_path / "rows", engine, life)
        for number in range(60):
            parent.run(20 * number, chance.uniform(2, 20))
            remembered, broken = parent.check()
            warm += remembered
            assert broken == 0, "what was finished is what is written"
    assert warm > 60 and all(number > 20 for number in parent.found.values())
    assert len(parent.found) == len(rooms)

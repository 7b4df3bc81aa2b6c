"""Expected state of agents' memories: each agent's text, and its rows in full precision.

Two computations of a text agree bit for bit only if they consist of the same passes: a row that is computed before its
page is full reads that page unpacked, but a row of one long pass reads it packed. So rows that are reused are compared
with `Dense`, which repeats the passes with transformers' own forward and unpacked values of complete pages.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch

from memory.agents.manager import AgentMemories, AgentPrompt
from memory.agents.text_match import TokenizerCoder, TokenText, match, resume
from memory.engine.base import Engine
from memory.files.atomic import replace_file
from memory.kv_cache.quantization import PackFormat
from tests.laws.prompts import relative
from tests.references.packed import Dense

EXACT = 1e-9  # float64
VERBS = ("go to", "pick up", "put down", "open", "close", "look at")
PLACES = ("fridge_1", "cabinet_1", "countertop_1", "drawer_1", "mug_1", "apple_1", "table_1")
Make = Callable[..., AgentMemories]


def lines(count: int, seed: int = 0) -> str:
    """Draw ``count`` lines of about four tokens."""
    chance = random.Random(seed)
    return "".join(f"{chance.choice(VERBS)} {chance.choice(PLACES)}\n" for _ in range(count))


def answer(memories: AgentMemories, prompt: AgentPrompt) -> torch.Tensor:
    return memories.engine.extend(prompt.cache, prompt.new).logits


def say(memories: AgentMemories, agent: str, text: str, **knobs: Any) -> tuple[AgentPrompt, torch.Tensor]:
    prompt = memories.open(agent, text)
    logits = answer(memories, prompt)
    memories.finish(prompt, **knobs)
    return prompt, logits


def cold(engine: Engine, coder: TokenizerCoder, text: str, format: PackFormat | None = None) -> torch.Tensor:
    with AgentMemories(engine, coder, format or PackFormat()) as memories:
        prompt, logits = say(memories, "stranger", text)
    assert (prompt.reused, prompt.kind, prompt.origin) == (0, "miss", "cold")
    return logits


def size_of(memories: AgentMemories, agent: str) -> int:
    return memories._host[agent, memories.engine.model_key].cache.nbytes


def pausing(pause: Callable[[], object]) -> Callable[..., AbstractContextManager[Any]]:
    """Replace ``memory.files.block_file.replace_file`` by one that pauses after each write."""

    @contextmanager
    def slowly(path: Path, private: bool = False) -> Iterator[SimpleNamespace]:
        with replace_file(path, private) as stream:
            yield SimpleNamespace(write=lambda raw: (stream.write(raw), pause()))

    return slowly


@dataclass
class ReferenceRows:
    """An agent's rows for one model: the text, the same rows dense, and where they are: in memory (hot) or on disk."""

    token_text: TokenText
    dense: Dense
    where: str = "hot"


@dataclass
class ReferenceMemories:
    """Memories beside a dictionary of the expected rows; every turn is compared with it."""

    memories: AgentMemories
    known: dict[tuple[str, str], ReferenceRows] = field(default_factory=dict)

    def open(self, agent: str, text: str) -> tuple[AgentPrompt, ReferenceRows]:
        """Open a prompt; return it with the rows that it must reuse."""
        memories = self.memories
        prompt, key = memories.open(agent, text), (agent, memories.engine.model_key)
        known = self.known.get(key)
        best = None if known is None else match(known.token_text, text, memories.threshold, memories.exact)
        if known is None or best is None or best.kind == "miss":
            new = ReferenceRows(TokenText.of(text, memories.coder), Dense(memories.engine.plain, memories.format))
            reused, kind, origin = 0, "miss", "cold"
        else:
            token_text, reused = resume(known.token_text, best, memories.coder)
            new, kind, origin = ReferenceRows(token_text, known.dense.copy()), best.kind, known.where
            new.dense.cut(reused)
        assert (prompt.reused, prompt.kind, prompt.origin) == (reused, kind, origin if reused else "cold")
        assert prompt.token_text.text == text and prompt.token_text.ids == new.token_text.ids
        assert prompt.cache.tokens == new.token_text.ids[:reused] and list(prompt.new) == new.token_text.ids[reused:]
        if known is not None and prompt.origin == "warm":
            known.where = "hot"
        return prompt, new

    def say(self, agent: str, text: str, generate: int = 0) -> AgentPrompt:
        prompt, new = self.open(agent, text)
        logits = answer(self.memories, prompt)
        assert relative(logits, new.dense.append(prompt.new)[-1:]) < EXACT
        generated = self.memories.engine.generate(prompt.cache, logits, generate) if generate else []
        for token in generated:
            assert int(new.dense.logits.argmax()) == token
            new.dense.append([token])
        if generated:
            new.token_text.extend(generated, self.memories.coder)
        self.memories.finish(prompt, generated)
        self.known[prompt.key] = new
        return prompt

    def text(self, agent: str) -> str:
        known = self.known.get((agent, self.memories.engine.model_key))
        return "" if known is None else known.token_text.text

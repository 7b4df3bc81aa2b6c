"""A dictionary beside agents' memories: what each must remember, and the same rows dense.

Cold and hot runs of a text agree bit for bit where they consist of the same passes. Otherwise they cannot: a row that
was computed when its page was not full yet saw rows of that page as they are, in one long pass it sees them packed. So
what is served hot is compared with `Dense`, which goes through the same passes in full precision: there keys and values
of whole pages are those that come back from four bits, and the rest is transformers' own forward.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch

from memory.agents.manager import AgentMemories, AgentPrompt
from memory.agents.text_match import TokenizerCoder, TokenText, match, resume
from memory.engine.base import Engine
from memory.kv_cache.quantization import PackFormat
from tests.laws.prompts import relative
from tests.references.packed import Dense

EXACT = 1e-9  # float64
VERBS = ("go to", "pick up", "put down", "open", "close", "look at")
PLACES = ("fridge_1", "cabinet_1", "countertop_1", "drawer_1", "mug_1", "apple_1", "table_1")
Make = Callable[..., AgentMemories]


def lines(count: int, seed: int = 0) -> str:
    """So many lines of about four tokens."""
    chance = random.Random(seed)
    return "".join(f"{chance.choice(VERBS)} {chance.choice(PLACES)}\n" for _ in range(count))


def answer(memories: AgentMemories, prompt: AgentPrompt) -> torch.Tensor:
    return memories.engine.extend(prompt.cache, prompt.new).logits


def say(memories: AgentMemories, agent: str, text: str, **knobs: Any) -> tuple[AgentPrompt, torch.Tensor]:
    """A whole turn: the prompt, and its logits."""
    prompt = memories.open(agent, text)
    logits = answer(memories, prompt)
    memories.finish(prompt, **knobs)
    return prompt, logits


def cold(engine: Engine, coder: TokenizerCoder, text: str, format: PackFormat | None = None) -> torch.Tensor:
    """Logits of a text that nobody has seen before."""
    with AgentMemories(engine, coder, format or PackFormat()) as memories:
        prompt, logits = say(memories, "nobody", text)
    assert (prompt.reused, prompt.kind, prompt.origin) == (0, "miss", "cold")
    return logits


@dataclass
class ReferenceRows:
    """What an agent must remember for a model: the text, and the same rows dense."""

    token_text: TokenText
    dense: Dense
    where: str = "hot"


@dataclass
class ReferenceMemories:
    """A dictionary beside the memories: every turn is checked against it."""

    memories: AgentMemories
    known: dict[tuple[str, str], ReferenceRows] = field(default_factory=dict)

    def open(self, agent: str, text: str) -> tuple[AgentPrompt, ReferenceRows]:
        """A prompt, and what it must become."""
        memories = self.memories
        prompt, key = memories.open(agent, text), (agent, memories.engine.model_key)
        known = self.known.get(key)
        found = None if known is None else match(known.token_text, text, memories.threshold, memories.exact)
        if known is None or found is None or found.kind == "miss":
            new = ReferenceRows(TokenText.of(text, memories.coder), Dense(memories.engine.plain, memories.format))
            kept, kind, origin = 0, "miss", "cold"
        else:
            told, kept = resume(known.token_text, found, memories.coder)
            new, kind, origin = ReferenceRows(told, known.dense.copy()), found.kind, known.where
            new.dense.cut(kept)
        assert (prompt.reused, prompt.kind, prompt.origin) == (kept, kind, origin if kept else "cold")
        assert prompt.token_text.text == text and prompt.token_text.ids == new.token_text.ids
        assert prompt.cache.tokens == new.token_text.ids[:kept] and list(prompt.new) == new.token_text.ids[kept:]
        if known is not None and prompt.origin == "warm":
            known.where = "hot"
        return prompt, new

    def say(self, agent: str, text: str, generate: int = 0) -> AgentPrompt:
        prompt, new = self.open(agent, text)
        logits = answer(self.memories, prompt)
        assert relative(logits, new.dense.append(prompt.new)[-1:]) < EXACT
        said = self.memories.engine.generate(prompt.cache, logits, generate) if generate else []
        for token in said:
            assert int(new.dense.logits.argmax()) == token
            new.dense.append([token])
        if said:
            new.token_text.extend(said, self.memories.coder)
        self.memories.finish(prompt, said)
        self.known[prompt.key] = new
        return prompt

    def text(self, agent: str) -> str:
        known = self.known.get((agent, self.memories.engine.model_key))
        return "" if known is None else known.token_text.text


def size_of(memories: AgentMemories, agent: str) -> int:
    return memories._host[agent, memories.engine.model_key].cache.nbytes

"""Agents after a restart, with the same model or another: the same bits, or no rows."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from tokenizers import Tokenizer

from memory.agents.manager import AgentMemories
from memory.agents.text_match import TokenizerCoder
from memory.engine.base import Engine
from memory.files import agent_files as disk
from memory.kv_cache.quantization import PackFormat
from tests.memory.agents.reference import Make, ReferenceMemories, answer, lines, say


@pytest.mark.parametrize("bits", [4, 8])
@pytest.mark.parametrize("keys", ["token", "channel"])
def test_a_warm_restart_gives_the_same_bits(bits: int, keys: Any, make: Make) -> None:
    memories = make(format=PackFormat(bits, keys=keys))
    texts = {agent: lines(count, count) for agent, count in (("a", 3), ("b", 16), ("c", 40), ("d", 130))}
    for agent, text in texts.items():
        say(memories, agent, text)
        say(memories, agent, text + lines(2))
    memories.flush()
    fresh = make(format=PackFormat(bits, keys=keys))
    for agent, text in texts.items():
        for more in (text + lines(2), text + lines(2) + lines(1, 1), text[: int(0.95 * len(text))], lines(2, 8)):
            hot, expected = say(memories, agent, more, persist=False)
            warm, logits = say(fresh, agent, more, persist=False)
            assert torch.equal(logits, expected) and (warm.reused, warm.kind) == (hot.reused, hot.kind)
            assert warm.token_text.to_json() == hot.token_text.to_json()
    assert not fresh.damaged


def test_mapped_rows_outlive_their_file(make: Make, tmp_path: Path) -> None:
    memories, text = make(), lines(150)
    say(memories, "a", text)
    memories.flush()
    fresh = make()
    prompt = fresh.open("a", text + lines(2))
    assert prompt.origin == "warm"
    say(memories, "a", lines(9))
    memories.flush()
    disk.evict(tmp_path / "rows", 0)
    first = answer(fresh, prompt)
    fresh.finish(prompt)
    again, second = say(fresh, "a", text + lines(2) + lines(3, 1))
    assert again.origin == "hot"
    alone = make(folder=None)
    for more, logits in ((text, None), (text + lines(2), first), (text + lines(2) + lines(3, 1), second)):
        _, expected = say(alone, "a", more)
        assert logits is None or torch.equal(logits, expected)


def swapped(coder: TokenizerCoder) -> TokenizerCoder:
    """Exchange the ids of two words of a tokenizer."""
    tokenizer = json.loads(coder._tokenizer.to_str())
    vocab = tokenizer["model"]["vocab"]
    a, b = (coder._tokenizer.id_to_token(coder.encode(word).ids[-1]) for word in ("mug", "knife"))
    vocab[a], vocab[b] = vocab[b], vocab[a]
    return TokenizerCoder(Tokenizer.from_str(json.dumps(tokenizer)))


def test_rows_of_another_format_or_tokenizer_are_not_served(make: Make, engine: Engine, coder: TokenizerCoder) -> None:
    memories, text = make(), lines(80)
    say(memories, "a", text)
    memories.flush()
    different = swapped(coder)
    assert different.seams == coder.seams and different.encode("mug").ids != coder.encode("mug").ids
    strangers = (make(format=PackFormat(8)), make(start=(1,)), AgentMemories(engine, different, folder=memories.folder))
    assert [fresh.open("a", text).origin for fresh in (*strangers, make())] == ["cold"] * 3 + ["warm"]


def test_rows_of_another_model_stay_and_are_not_served(
    make: Make, engines: list[Engine], coder: TokenizerCoder
) -> None:
    memories = make()
    reference, text = ReferenceMemories(memories), lines(90)
    memories.share("house", lines(70, 5))
    memories.begin_with("b", "house")
    for number in (0, 1, 0, 1, 0):
        memories.use(engines[number])
        prompt = reference.say("a", text)
        assert prompt.model == engines[number].model_key
        text += lines(1, number)
        shared, _ = say(memories, "b", lines(70, 5) + lines(3))
        assert shared.model == prompt.model and shared.reused > 0
    assert len({key[1] for key in reference.known}) == 2 and memories.stats()["agents"] == 4
    first = memories.open("a", text)
    memories.use(engines[1])
    second = memories.open("a", text)
    engines[0].extend(first.cache, first.new)
    for prompt in (first, second):
        memories.finish(prompt)
    memories.close()
    fresh = make()
    for engine in engines:
        fresh.use(engine)
        assert fresh.open("a", text).origin == "warm"

"""Kinds of matches: a prompt's logits are those of its own text, whatever was stored before."""

from __future__ import annotations

import pytest
import torch

from keep_agent.errors import ConfigError
from memory.agents.text_match import TokenizerCoder
from memory.engine.base import Engine
from memory.kv_cache.quantization import PackFormat
from memory.kv_cache.quantized import PAGE
from tests.laws.prompts import relative
from tests.memory.agents.reference import EXACT, Make, ReferenceMemories, answer, cold, lines, say


@pytest.mark.parametrize("size", [5, 16, 60, 150])
def test_reused_rows_equal_dense_rows_of_the_same_passes(size: int, reference: ReferenceMemories) -> None:
    """Exact, extended, diverging and missed prompts, with generated tokens between them."""
    text = lines(size)
    kinds = [reference.say("a", text).kind, reference.say("a", text).kind]
    for turn in range(4):
        text = reference.text("a") + lines(3 + 40 * (turn == 2), turn)
        kinds.append(reference.say("a", text, generate=turn).kind)
    text = reference.text("a")
    kinds.append(reference.say("a", text[: int(0.9 * len(text))] + " " + lines(4, 9)).kind)
    kinds.append(reference.say("a", lines(size, 77)).kind)
    assert kinds == ["miss", "exact", "extend", "extend", "extend", "extend", "diverge", "miss"]


def test_the_first_prompt_is_a_miss(make: Make) -> None:
    memories = make()
    prompt = memories.open("a", lines(4))
    assert (prompt.kind, prompt.origin, prompt.reused, len(prompt.new)) == (
        "miss",
        "cold",
        0,
        len(prompt.token_text.ids),
    )
    assert memories.stats()["agents"] == 0


def test_equal_passes_give_equal_bits(make: Make, engine: Engine, coder: TokenizerCoder) -> None:
    """A missed prompt, and one that is recomputed on purpose, are cold runs."""
    first, second = lines(40), lines(50, 1)
    memories = make(exact="recompute")
    for text, kind in ((first, "miss"), (first, "exact"), (second, "miss"), (second, "exact")):
        prompt, logits = say(memories, "a", text)
        assert (prompt.kind, prompt.reused, prompt.origin) == (kind, 0, "cold")
        assert torch.equal(logits, cold(engine, coder, text))


def test_extending_at_the_end_of_a_page_equals_one_pass(make: Make, engine: Engine, coder: TokenizerCoder) -> None:
    """There both runs see the same rows packed; only the order of sums differs."""
    memories, text = make(), ""
    while len(coder.encode(text).ids) < 2 * PAGE:
        text += "a\n"
    assert len(coder.encode(text).ids) == 2 * PAGE
    say(memories, "a", text)
    for more in (text + lines(10), text + lines(10) + lines(30)):
        prompt, logits = say(memories, "b", text)
        prompt, logits = say(memories, "b", more)
        assert prompt.reused == 2 * PAGE
        assert relative(logits, cold(engine, coder, more)) < EXACT
        memories.forget("b")


def test_four_bits_are_near_to_all_of_them(make: Make, engine: Engine, coder: TokenizerCoder) -> None:
    """What the reference calls right is near to a plain forward as well, and eight bits are nearer."""
    text = lines(150)
    errors = []
    for bits in (4, 8):
        memories = make(format=PackFormat(bits), folder=None)
        say(memories, "a", text[:2000])
        _, logits = say(memories, "a", text)
        errors.append(relative(logits, engine.forward_plain(torch.tensor(coder.encode(text).ids))[-1:]))
    assert errors[1] < 0.05 and errors[1] < errors[0] < 0.5


def test_tokens_in_front_that_are_no_text(make: Make, engine: Engine) -> None:
    memories = make(start=(1,))
    text = lines(30)
    prompt, logits = say(memories, "a", text)
    assert prompt.new[0] == 1 and prompt.reused == 0
    expected = engine.extend(engine.new_cache(memories.format), prompt.token_text.ids).logits
    assert torch.equal(logits, expected)
    prompt, _ = say(memories, "a", text + lines(2))
    assert prompt.reused == 1 + len(memories.coder.encode(text).ids)
    prompt, _ = say(memories, "a", lines(5, 8))
    assert prompt.reused == 0 and prompt.new[0] == 1
    memories.use(engine, start=())
    prompt, logits = say(memories, "a", text)
    assert (prompt.reused, prompt.kind) == (0, "miss"), "rows behind another beginning are not these"


def test_prompts_of_nothing_are_refused(make: Make) -> None:
    memories = make()
    for _ in range(2):
        with pytest.raises(ConfigError, match="'a' says nothing"):
            memories.open("a", "")
    say(memories, "a", lines(3))
    with pytest.raises(ConfigError, match="threshold=2"):
        make(threshold=2)
    with pytest.raises(ConfigError, match="exact='never'"):
        make(exact="never")


def test_generated_tokens_may_bring_their_text(make: Make) -> None:
    memories = make()
    text = lines(10) + "next: "
    prompt = memories.open("a", text)
    said = "go to  fridge_1\n"  # two spaces, which these tokens do not say
    ids = memories.coder.encode(said).ids
    answer(memories, prompt)
    memories.engine.extend(prompt.cache, ids)
    memories.finish(prompt, ids, said)
    prompt, _ = say(memories, "a", text + said + lines(1))
    assert prompt.kind == "extend" and prompt.reused == len(memories.coder.encode(text).ids) + len(ids)

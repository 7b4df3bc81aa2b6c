"""Matches of a prompt with stored and shared texts: its logits are those of its own text in every case."""

from __future__ import annotations

import random
from itertools import combinations

import pytest
import torch

from keep_agent.errors import ConfigError
from memory.agents.text_match import TokenizerCoder
from memory.engine.base import Engine
from memory.kv_cache.quantization import PackFormat
from memory.kv_cache.quantized import BLOCK, PAGE, QuantizedCache
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
    assert (prompt.kind, prompt.origin, prompt.reused) == ("miss", "cold", 0)
    assert len(prompt.new) == len(prompt.token_text.ids) and memories.stats()["agents"] == 0


def test_equal_passes_give_equal_bits(make: Make, engine: Engine, coder: TokenizerCoder) -> None:
    first, second = lines(40), lines(50, 1)
    memories = make(exact="recompute")
    for text, kind in ((first, "miss"), (first, "exact"), (second, "miss"), (second, "exact")):
        prompt, logits = say(memories, "a", text)
        assert (prompt.kind, prompt.reused, prompt.origin) == (kind, 0, "cold")
        assert torch.equal(logits, cold(engine, coder, text))


def test_extending_at_the_end_of_a_page_equals_one_pass(make: Make, engine: Engine, coder: TokenizerCoder) -> None:
    """Both runs read the same rows packed; only the order of sums differs."""
    memories, text = make(), ""
    while len(coder.encode(text).ids) < 2 * PAGE:
        text += "a\n"
    assert len(coder.encode(text).ids) == 2 * PAGE
    say(memories, "a", text)
    for more in (text + lines(10), text + lines(10) + lines(30)):
        say(memories, "b", text)
        prompt, logits = say(memories, "b", more)
        assert prompt.reused == 2 * PAGE and relative(logits, cold(engine, coder, more)) < EXACT
        memories.forget("b")


def test_logits_over_packed_rows_are_near_the_plain_forward(make: Make, engine: Engine, coder: TokenizerCoder) -> None:
    text, errors = lines(150), []
    for bits in (4, 8):
        memories = make(format=PackFormat(bits), folder=None)
        say(memories, "a", text[:2000])
        _, logits = say(memories, "a", text)
        errors.append(relative(logits, engine.forward_plain(torch.tensor(coder.encode(text).ids))[-1:]))
    assert errors[1] < 0.05 and errors[1] < errors[0] < 0.5


def test_start_tokens_precede_the_text(make: Make, engine: Engine) -> None:
    memories, text = make(start=(1,)), lines(30)
    prompt, logits = say(memories, "a", text)
    assert prompt.new[0] == 1 and prompt.reused == 0
    expected = engine.extend(engine.new_cache(memories.format), prompt.token_text.ids).logits
    assert torch.equal(logits, expected)
    prompt, _ = say(memories, "a", text + lines(2))
    assert prompt.reused == 1 + len(memories.coder.encode(text).ids)
    prompt, _ = say(memories, "a", lines(5, 8))
    assert prompt.reused == 0 and prompt.new[0] == 1
    memories.use(engine, start=())
    prompt, _ = say(memories, "a", text)
    assert (prompt.reused, prompt.kind) == (0, "miss"), "rows after other start tokens differ"


def test_empty_prompts_and_bad_settings_are_refused(make: Make) -> None:
    memories = make()
    for _ in range(2):
        with pytest.raises(ConfigError, match="'a' says nothing"):
            memories.open("a", "")
    say(memories, "a", lines(3))
    for knobs, sentence in (({"threshold": 2}, "threshold=2"), ({"exact": "never"}, "exact='never'")):
        with pytest.raises(ConfigError, match=sentence):
            make(**knobs)


def test_generated_tokens_may_come_with_their_text(make: Make) -> None:
    memories, text = make(), lines(10) + "next: "
    prompt = memories.open("a", text)
    generated = "go to  fridge_1\n"  # its tokens do not encode the second space
    ids = memories.coder.encode(generated).ids
    answer(memories, prompt)
    memories.engine.extend(prompt.cache, ids)
    memories.finish(prompt, ids, generated)
    prompt, _ = say(memories, "a", text + generated + lines(1))
    assert prompt.kind == "extend" and prompt.reused == len(memories.coder.encode(text).ids) + len(ids)


def test_a_shared_text_is_encoded_once_per_model(make: Make, engines: list[Engine]) -> None:
    computed: list[int] = []
    norms = [engine.decoder.layers[0].input_layernorm for engine in engines]
    handles = [norm.register_forward_pre_hook(lambda _, inputs: computed.append(inputs[0].shape[1])) for norm in norms]
    memories, text = make(), lines(200, 5)
    whole = len(memories.coder.encode(text).ids)
    memories.share("house", text)
    assert sum(computed) == whole
    alone = memories.stats()["bytes"]
    for number in range(10):
        memories.begin_with(f"a{number}", "house")
        prompt, _ = say(memories, f"a{number}", text + lines(3, number))
        assert (prompt.origin, prompt.reused) == ("shared", whole)
    assert sum(computed) - whole < 10 * 20, "no row of the shared text was computed again"
    block = memories.engine.info.bytes_per_token * (BLOCK + 2 * PAGE)
    assert memories.stats()["bytes"] < alone + 10 * block
    computed.clear()
    for number in (1, 0, 1, 0):
        memories.use(engines[number])
        assert sum(computed) == whole
    for handle in handles:
        handle.remove()


def test_shared_rows_never_change_and_are_visible_to_declared_agents_only(make: Make, engine: Engine) -> None:
    memories, text = make(), lines(200, 5)
    memories.share("house", text)
    rows = memories._shared["house", engine.model_key].cache
    before = [x.clone() for x in tensors(rows)]
    lonely, chance = make(folder=None), random.Random(0)
    for turn in range(6):
        for agent in ("a", "b", "c"):
            if turn == 0:
                memories.begin_with(agent, "house")
                say(lonely, agent, text)
            more = text[: len(text) - chance.randrange(40)] + lines(1 + 9 * turn, turn * ord(agent))
            assert torch.equal(say(memories, agent, more)[1], say(lonely, agent, more)[1])
    assert all(torch.equal(a, b) for a, b in zip(before, tensors(rows), strict=True))
    assert rows.next_position == len(memories.coder.encode(text).ids)
    shared = extents(rows)
    private = [extents(memories._host[agent, engine.model_key].cache) - shared for agent in "abc"]
    assert not any(a & b for a, b in combinations(private, 2))
    stranger = memories.open("d", text)
    assert (stranger.origin, stranger.reused) == ("cold", 0)
    with pytest.raises(ConfigError, match="nothing is shared as 'garden'; shared is: house"):
        memories.begin_with("d", "garden")


def tensors(cache: QuantizedCache) -> list[torch.Tensor]:
    return [x for extent in cache.extents for side in (extent.k, extent.v) for x in side.tensors]


def extents(cache: QuantizedCache) -> set[int]:
    return {extent.k.codes.data_ptr() for extent in cache.extents}


def test_an_agent_without_matching_rows_begins_with_the_shared_ones(make: Make) -> None:
    memories, house, private = make(), lines(100, 5), lines(50, 6)
    memories.share("house", house)
    memories.begin_with("a", "house")
    texts = (private, private, house + lines(3), private, house + lines(2))
    assert [say(memories, "a", text)[0].origin for text in texts] == ["cold", "hot", "shared", "cold", "shared"]
    memories.share("house", lines(20, 9))
    prompts = [say(memories, "a", text)[0] for text in (lines(20, 9) + "go to\n", house)]
    assert [prompt.origin for prompt in prompts] == ["shared", "cold"]

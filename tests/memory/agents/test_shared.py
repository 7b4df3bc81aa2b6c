"""Shared texts: encoded once, never changed, and visible only to agents declared behind them."""

from __future__ import annotations

import random

import pytest
import torch

from keep_agent.errors import ConfigError
from memory.engine.base import Engine
from memory.kv_cache.quantized import BLOCK, PAGE
from tests.memory.agents.reference import Make, lines, say


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
        memories.behind(f"a{number}", "house")
        prompt, _ = say(memories, f"a{number}", text + lines(3, number))
        assert (prompt.origin, prompt.reused) == ("shared", whole)
    new = sum(computed) - whole
    assert new < 10 * 20, "nothing of the shared text was computed again"
    block = memories.engine.info.bytes_per_token * (BLOCK + 2 * PAGE)
    assert memories.stats()["bytes"] < alone + 10 * block
    computed.clear()
    for number in (1, 0, 1):
        memories.use(engines[number])
    assert sum(computed) == whole
    memories.use(engines[0])
    assert sum(computed) == whole
    for handle in handles:
        handle.remove()


def test_shared_rows_never_change(make: Make, engine: Engine) -> None:
    """Agents behind it give the bits that they would give alone, and nobody's rows are among another's."""
    memories, text = make(), lines(200, 5)
    memories.share("house", text)
    rows = memories._shared["house", engine.model_key].cache
    before = [x.clone() for e in rows.extents for side in (e.k, e.v) for x in side.tensors]
    lonely = make(folder=None)
    chance = random.Random(0)
    for turn in range(6):
        for agent in ("a", "b", "c"):
            if turn == 0:
                memories.behind(agent, "house")
                say(lonely, agent, text)
            more = text[: len(text) - chance.randrange(40)] + lines(1 + 9 * turn, turn * ord(agent))
            found, expected = say(memories, agent, more)[1], say(lonely, agent, more)[1]
            assert torch.equal(found, expected)
    after = [x for e in rows.extents for side in (e.k, e.v) for x in side.tensors]
    assert all(torch.equal(a, b) for a, b in zip(before, after, strict=True))
    assert rows.next_position == len(memories.coder.encode(text).ids)
    private = [
        {e.k.codes.data_ptr() for e in memories._host[agent, engine.model_key].cache.extents}
        - {e.k.codes.data_ptr() for e in rows.extents}
        for agent in "abc"
    ]
    assert not private[0] & private[1] and not private[1] & private[2] and not private[0] & private[2]
    stranger = memories.open("d", text)
    assert (stranger.origin, stranger.reused) == ("cold", 0), "who is not behind it does not see it"
    with pytest.raises(ConfigError, match="nothing is shared as 'garden'; shared is: house"):
        memories.behind("d", "garden")


def test_an_agent_without_matching_rows_begins_with_the_shared_ones(make: Make) -> None:
    memories, house = make(), lines(100, 5)
    memories.share("house", house)
    memories.behind("a", "house")
    own = lines(50, 6)
    origins = [say(memories, "a", text)[0].origin for text in (own, own, house + lines(3), own, house + lines(2))]
    assert origins == ["cold", "hot", "shared", "cold", "shared"]
    memories.share("house", lines(20, 9))
    prompts = [say(memories, "a", text)[0] for text in (lines(20, 9) + "go to\n", house)]
    assert [prompt.origin for prompt in prompts] == ["shared", "cold"]

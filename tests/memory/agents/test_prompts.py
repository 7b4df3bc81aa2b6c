"""Prompts of agents: opening, finishing and abandoning them, and matches with stored and shared texts."""

from __future__ import annotations

import random
from itertools import combinations

import pytest
import torch

from keep_agent.errors import ConfigError, ModelError
from memory.agents.text_match import TokenizerCoder
from memory.engine.base import ChunkSchedule, Engine
from memory.engine.scheduler.request_stream import FinishReason, Stream
from memory.engine.scheduler.scheduler import Scheduler, SchedulerConfig
from memory.engine.transformers.append import ChunkedPrefill
from memory.kv_cache.quantized import BLOCK, PAGE
from tests.memory.agents.reference import Make, ReferenceMemories, ReferenceRows, answer, cold, lines, say
from tests.memory.kv_cache.pairs import tensors_in


def test_an_agent_has_one_open_prompt_at_a_time(make: Make) -> None:
    memories = make()
    prompt = memories.open("a", lines(4))
    assert memories.stats()["agents"] == 0
    with pytest.raises(ConfigError, match="'a' has an open prompt: finish or abandon it"):
        memories.open("a", lines(4))
    memories.open("b", lines(4))
    memories.abandon(prompt)
    again = memories.open("a", lines(4))
    memories.abandon(prompt)  # no effect: it is not open any more
    answer(memories, again)
    memories.finish(again)
    for closed in (prompt, again):
        with pytest.raises(ConfigError, match="'a' is not open"):
            memories.finish(closed)


def test_an_abandoned_prompt_leaves_the_memory_as_it_was(reference: ReferenceMemories, engine: Engine) -> None:
    memories, text = reference.memories, lines(100)
    reference.say("a", text)
    for new in (text + lines(80), text, text[:-30] + lines(9, 1), lines(40, 5)):
        for computed in (0, 3, None):
            prompt, _ = reference.open("a", new)
            if computed != 0:
                engine.extend(prompt.cache, prompt.new[:computed])
            memories.abandon(prompt)
    with pytest.raises(RuntimeError, match="on purpose"), memories.turn("a", text + lines(5)) as prompt:
        answer(memories, prompt)
        raise RuntimeError("on purpose")
    with memories.turn("a", text + lines(6)):
        pass
    reference.say("a", text + lines(7))
    with memories.turn("a", text + lines(7) + lines(1, 1)) as prompt:
        answer(memories, prompt)
        memories.finish(prompt)
    assert memories.open("a", text + lines(7) + lines(1, 1)).kind == "exact"


def test_a_failed_prefill_blocks_no_agent(reference: ReferenceMemories, engine: Engine) -> None:
    """The pass fails in its second layer; the caller may even go on using the cache of the failed prompt."""
    reference.say("a", lines(30))
    more = lines(30) + lines(60, 2)

    def stop(*_: object) -> None:
        raise RuntimeError("on purpose")

    handle = engine.decoder.layers[1].input_layernorm.register_forward_pre_hook(stop)
    with pytest.raises(RuntimeError, match="on purpose"), reference.memories.turn("a", more) as prompt:
        answer(reference.memories, prompt)
    handle.remove()
    reference.say("a", more)
    engine.extend(prompt.cache, prompt.new[:70])
    reference.say("a", more + lines(2))


def test_the_computed_rows_of_a_cancelled_prompt_are_stored(reference: ReferenceMemories, engine: Engine) -> None:
    text = lines(60)
    prompt, new = reference.open("a", text)
    ids = torch.tensor(prompt.new)
    ChunkedPrefill(engine.decoder, prompt.cache, ids)  # no step of it is run
    engine.extend(prompt.cache, ids[:100])
    reference.memories.finish(prompt)
    new.dense.append(prompt.new[:100])
    reference.known[prompt.key] = ReferenceRows(new.token_text.first(100), new.dense)
    assert reference.say("a", text).reused == 100
    prompt = reference.memories.open("b", text)
    reference.memories.finish(prompt)  # without computed rows
    assert reference.say("b", text).reused == 0


@pytest.mark.parametrize("turns", [0, 1, 2, 5])
def test_a_prompt_cannot_be_finished_while_its_stream_runs(turns: int, make: Make, engine: Engine) -> None:
    """The stream is before its first chunk, between chunks, or decoding; once cancelled, it ends with the next turn."""
    memories, text = make(), lines(60)
    scheduler = Scheduler(engine, SchedulerConfig(ChunkSchedule(1, steps=(), rest=100), 100), automatic=False)
    say(memories, "a", lines(4))
    prompt = memories.open("a", lines(4) + text)
    stream = scheduler.submit("a", prompt.cache, prompt.new, 30)
    for _ in range(turns):
        scheduler.turn()
    for _ in range(2):
        with pytest.raises(ConfigError, match="a request of agent 'a' has not ended: call collect"):
            memories.finish(prompt, stream.tokens)
        stream.cancel()
    scheduler.turn()
    assert stream.reason is FinishReason.CANCELLED
    memories.finish(prompt, stream.collect())
    entry = memories._host[prompt.key]
    assert entry.cache is prompt.cache and entry.cache.tokens == entry.token_text.ids
    assert len(entry.token_text.ids) >= prompt.reused + min(100 * turns, len(prompt.new)) - 100
    memories.abandon(memories.open("a", entry.token_text.text + lines(1)))


def test_a_running_stream_may_be_abandoned_and_its_last_token_finishes_a_prompt(make: Make, engine: Engine) -> None:
    memories, scheduler = make(), Scheduler(engine, automatic=False)
    prompt = memories.open("a", lines(20))
    scheduler.submit("a", prompt.cache, prompt.new, 4)
    scheduler.turn()
    memories.abandon(prompt)
    prompt = memories.open("a", lines(30, 1))

    def finish(stream: Stream, _: FinishReason) -> None:
        memories.finish(prompt, stream.tokens)

    stream = scheduler.submit("a", prompt.cache, prompt.new, 4, done=finish)
    scheduler.close()
    assert memories._host[prompt.key].token_text.ids == [*prompt.token_text.ids, *stream.collect()]
    late = memories.open("a", lines(9))
    with pytest.raises(ModelError, match="scheduler is closed"):
        scheduler.submit("a", late.cache, late.new, 4)
    memories.finish(late)


def test_rows_of_tokens_other_than_the_generated_ones_are_dropped(make: Make, coder: TokenizerCoder) -> None:
    """The cache may hold other tokens than the answer, or lack the answer's last ones, such as an end of turn."""
    memories, text = make(), lines(20)
    ids = coder.encode("go to fridge_1\n").ids
    for answer_ids, count in ((ids, 3), ([*ids[:2], ids[0], ids[3]], 2), ([*ids, 7], 4), ([], 0), (ids[:1], 1)):
        prompt = memories.open("a", text)
        answer(memories, prompt)
        memories.engine.extend(prompt.cache, [*ids[:3], 9] if answer_ids == ids else ids)
        memories.finish(prompt, answer_ids)
        entry = memories._host[prompt.key]
        assert entry.cache.tokens == entry.token_text.ids == [*coder.encode(text).ids, *answer_ids[:count]]
        memories.forget("a")


def test_tokens_that_cannot_be_decoded_end_the_prompt(make: Make) -> None:
    memories = make()
    prompt = memories.open("a", lines(3))
    answer(memories, prompt)
    with pytest.raises(OverflowError):
        memories.finish(prompt, [-5])
    assert say(memories, "a", lines(3))[0].kind == "miss"


def test_closed_memories_refuse_turns(make: Make) -> None:
    memories = make()
    say(memories, "a", lines(4))
    memories.close()
    memories.close()
    with pytest.raises(ConfigError, match="are closed"):
        say(memories, "a", lines(4))


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


def test_equal_passes_give_equal_bits(make: Make, engine: Engine, coder: TokenizerCoder) -> None:
    first, second = lines(40), lines(50, 1)
    memories = make(exact="recompute")
    for text, kind in ((first, "miss"), (first, "exact"), (second, "miss"), (second, "exact")):
        prompt, logits = say(memories, "a", text)
        assert (prompt.kind, prompt.reused, prompt.origin) == (kind, 0, "cold")
        assert torch.equal(logits, cold(engine, coder, text))


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
        with pytest.raises(ConfigError, match="the prompt of agent 'a' is empty"):
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
    before = [x.clone() for x in tensors_in(rows.extents)]
    lonely, chance = make(folder=None), random.Random(0)
    for turn in range(6):
        for agent in ("a", "b", "c"):
            if turn == 0:
                memories.begin_with(agent, "house")
                say(lonely, agent, text)
            more = text[: len(text) - chance.randrange(40)] + lines(1 + 9 * turn, turn * ord(agent))
            assert torch.equal(say(memories, agent, more)[1], say(lonely, agent, more)[1])
    assert all(torch.equal(a, b) for a, b in zip(before, tensors_in(rows.extents), strict=True))
    assert rows.next_position == len(memories.coder.encode(text).ids)
    caches = [memories._host[agent, engine.model_key].cache for agent in "abc"]
    shared, *private = ({extent.k.codes.data_ptr() for extent in cache.extents} for cache in (rows, *caches))
    assert not any((a & b) - shared for a, b in combinations(private, 2))
    stranger = memories.open("d", text)
    assert (stranger.origin, stranger.reused) == ("cold", 0)
    with pytest.raises(ConfigError, match="no prefix is shared as 'garden'; shared: house"):
        memories.begin_with("d", "garden")


def test_an_agent_without_matching_rows_begins_with_the_shared_ones(make: Make) -> None:
    memories, house, private = make(), lines(100, 5), lines(50, 6)
    memories.share("house", house)
    memories.begin_with("a", "house")
    texts = (private, private, house + lines(3), private, house + lines(2))
    assert [say(memories, "a", text)[0].origin for text in texts] == ["cold", "hot", "shared", "cold", "shared"]
    memories.share("house", lines(20, 9))
    prompts = [say(memories, "a", text)[0] for text in (lines(20, 9) + "go to\n", house)]
    assert [prompt.origin for prompt in prompts] == ["shared", "cold"]

"""Open prompts: one at a time per agent; computed rows are stored however the prompt ends."""

from __future__ import annotations

import pytest
import torch

from keep_agent.errors import ConfigError, ModelError
from memory.agents.text_match import TokenizerCoder
from memory.engine.base import ChunkSchedule, Engine
from memory.engine.scheduler.request_stream import Reason, Stream
from memory.engine.scheduler.scheduler import Scheduler, SchedulerConfig
from memory.engine.transformers.append import ChunkedPrefill
from tests.memory.agents.reference import Make, ReferenceMemories, ReferenceRows, answer, lines, say


def test_an_agent_has_one_open_prompt_at_a_time(make: Make) -> None:
    memories = make()
    prompt = memories.open("a", lines(4))
    with pytest.raises(ConfigError, match="'a' has a prompt under way: finish or abandon it"):
        memories.open("a", lines(4))
    memories.open("b", lines(4))
    memories.abandon(prompt)
    again = memories.open("a", lines(4))
    memories.abandon(prompt)  # no effect: it is not open any more
    answer(memories, again)
    memories.finish(again)
    for closed in (prompt, again):
        with pytest.raises(ConfigError, match="'a' is not under way"):
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
    """Before the first chunk, between chunks and during decoding; a cancelled stream ends with the next turn only."""
    memories, text = make(), lines(60)
    scheduler = Scheduler(engine, SchedulerConfig(ChunkSchedule(whole=1, steps=(), rest=100), few=100), automatic=False)
    say(memories, "a", lines(4))
    prompt = memories.open("a", lines(4) + text)
    stream = scheduler.submit("a", prompt.cache, prompt.new, 30)
    for _ in range(turns):
        scheduler.turn()
    for _ in range(2):
        with pytest.raises(ConfigError, match="a request of agent 'a' has not ended: wait for its stream"):
            memories.finish(prompt, stream.tokens)
        stream.cancel()
    scheduler.turn()
    assert stream.reason is Reason.CANCELLED
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

    def finish(stream: Stream, _: Reason) -> None:
        memories.finish(prompt, stream.tokens)

    stream = scheduler.submit("a", prompt.cache, prompt.new, 4, done=finish)
    scheduler.close()
    assert memories._host[prompt.key].token_text.ids == [*prompt.token_text.ids, *stream.collect()]
    late = memories.open("a", lines(9))
    with pytest.raises(ModelError, match="scheduler is closed"):
        scheduler.submit("a", late.cache, late.new, 4)
    memories.finish(late)


def test_rows_of_tokens_other_than_the_generated_ones_are_dropped(make: Make, coder: TokenizerCoder) -> None:
    """The cache may hold other tokens than the answer, or lack its last ones, as an end of turn."""
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

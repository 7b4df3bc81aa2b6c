"""Answers of a model that says special tokens: which end them, and what is shown and remembered of the others."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection

import pytest
from transformers import PreTrainedTokenizerFast

from keep_agent.server.chat.conversations import Conversations, Generation
from keep_agent.server.chat.turn import GenerationRequest
from keep_agent.server.limits.concurrency_limiter import ConcurrencyLimiter
from memory.engine.base import ChunkSchedule, Engine
from memory.engine.models.chat_template import SpecialTokens

PROMPT, MOST = "Robot: find a mug, 2.", 12
Talk = Callable[[SpecialTokens], "Talks"]


class Talks:
    """Conversations with special tokens of our choice. Each call is a whole answer."""

    def __init__(self, engine: Engine, tokenizer: PreTrainedTokenizerFast, special: SpecialTokens) -> None:
        self._talks = Conversations(engine, tokenizer, "tiny", ConcurrencyLimiter(1), special=special)
        self.memories = self._talks.memories

    def say(self, agent: str, text: str) -> tuple[str, Generation]:
        async def answer() -> tuple[str, Generation]:
            generation = self._talks.say(GenerationRequest(agent, lambda: text, MOST))
            await generation.begin()
            return "".join([piece async for piece in generation.pieces()]), generation

        return asyncio.run(answer())


@pytest.fixture
def talk(engine: Engine, chat: PreTrainedTokenizerFast) -> Talk:
    return lambda special: Talks(engine, chat, special)


def special(ends: Collection[int] = (), hidden: Collection[int] = ()) -> SpecialTokens:
    return SpecialTokens(frozenset(ends), frozenset(hidden))


@pytest.fixture
def plain(engine: Engine, talk: Talk) -> list[int]:
    """The tokens that the model says to the prompt, each of which can be taken for a special one."""
    with talk(special()).memories.turn("plain", PROMPT) as prompt:
        logits = engine.extend(prompt.cache, prompt.new, ChunkSchedule()).logits
        return engine.generate(prompt.cache, logits, MOST, ())


def test_an_answer_that_begins_with_a_special_token_goes_on(
    talk: Talk, plain: list[int], chat: PreTrainedTokenizerFast
) -> None:
    first = plain[0]
    text, generation = talk(special(ends=(), hidden={first})).say("hidden", PROMPT)
    assert generation.end is not None and generation.end.reason == "length"
    state = [token for token in plain if token != first]
    assert text and chat.decode(state).startswith(text)


def test_only_an_end_ends_an_answer(talk: Talk, plain: list[int]) -> None:
    end = next(token for token in plain if token != plain[0])
    _, generation = talk(special(ends={end}, hidden={plain[0]})).say("ended", PROMPT)
    assert generation.end is not None and generation.end.reason == "stop"
    assert generation.end.generated == plain.index(end)


def test_hidden_tokens_are_never_taken_for_text_that_lacks_them(talk: Talk, plain: list[int]) -> None:
    """A prompt that goes on with what was shown is answered as by an agent that remembers nothing."""
    hidden = special(hidden={plain[2]})
    talks = talk(hidden)
    text, _ = talks.say("first", PROMPT)
    on = f"{PROMPT}{text} And then?"
    (warm, generation), (cold, _) = talks.say("first", on), talks.say("second", on)
    assert warm == cold
    assert generation.prefilled is not None and generation.prefilled.kept > 0

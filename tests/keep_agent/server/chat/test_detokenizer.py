"""Text of a growing token sequence: whole characters up to a stop, and special tokens that are hidden or end it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from transformers import PreTrainedTokenizerFast

from keep_agent.server.chat.conversations import Conversations, Generation
from keep_agent.server.chat.detokenizer import Detokenizer
from keep_agent.server.chat.turn import GenerationRequest
from keep_agent.server.limits.concurrency_limiter import ConcurrencyLimiter
from memory.agents.text_match import REPLACEMENT, TokenizerCoder, TokenText
from memory.engine.base import ChunkSchedule, Engine
from memory.engine.models.chat_template import SpecialTokens
from memory.engine.models.tokenizer import load_tokenizer
from planners.bundled import BUNDLED

TEXT = "go to 🙂 fridge_1, Ünïcödé 漢字\n\n  next 👩‍👩‍👧 done."


@pytest.fixture(scope="module", params=["planner-tiny", "chat"])
def coder(request: pytest.FixtureRequest, chat: PreTrainedTokenizerFast) -> TokenizerCoder:
    return TokenizerCoder(chat if request.param == "chat" else load_tokenizer(str(BUNDLED)))


def pieces(coder: TokenizerCoder, ids: list[int], *options: Collection[Any]) -> tuple[list[str], Detokenizer]:
    words = Detokenizer(coder, *options)
    return [*(words.feed(token) for token in ids), words.flush()], words


@pytest.fixture(scope="module")
def bytewise(chat: PreTrainedTokenizerFast) -> TokenizerCoder:
    return TokenizerCoder(chat)


def test_no_piece_holds_half_a_character(bytewise: TokenizerCoder) -> None:
    ids = bytewise.encode(TEXT).ids
    texts, words = pieces(bytewise, ids)
    assert "".join(texts) == TEXT and REPLACEMENT not in "".join(texts)
    assert words.complete_tokens == (ids, TEXT)
    assert len([piece for piece in texts if piece]) > 20


def test_an_incomplete_character_is_left_out(bytewise: TokenizerCoder) -> None:
    ids = bytewise.encode("ab🙂").ids
    texts, words = pieces(bytewise, ids[:-1])
    assert "".join(texts) == "ab"
    assert words.complete_tokens == (ids[:2], "ab")


def test_invalid_bytes_do_not_delay_later_text(bytewise: TokenizerCoder) -> None:
    start = bytewise.encode("🙂").ids[:1]
    texts, _ = pieces(bytewise, [*start, *bytewise.encode("abc").ids])
    assert "".join(texts) == f"{REPLACEMENT}abc"
    texts, _ = pieces(bytewise, start * 40)
    assert len("".join(texts)) >= 30


@given(st.data())
def test_pieces_are_the_whole_and_rows_fit_the_text(bytewise: TokenizerCoder, data: st.DataObject) -> None:
    ids = data.draw(st.lists(st.integers(2, 319), max_size=30))
    stops = tuple(data.draw(st.lists(st.text("abo .2\ufffd", min_size=1, max_size=3), max_size=3)))
    texts, words = pieces(bytewise, ids, stops)
    text_so_far = "".join(texts)
    whole = bytewise.decode(ids)
    assert not any(stop in text_so_far for stop in stops)
    if words.stop is None:
        assert whole.startswith(text_so_far) and set(whole[len(text_so_far) :]) <= {REPLACEMENT}
    else:
        assert (text_so_far + words.stop) in whole
    remaining, text = words.complete_tokens
    assert ids[: len(remaining)] == remaining and text_so_far.startswith(text)
    assert bytewise.decode(remaining) == text
    row = TokenText()
    row.extend(remaining, bytewise, text)
    assert row.text == text and row.ids == remaining


def test_a_possible_stop_is_held_back(bytewise: TokenizerCoder) -> None:
    words = Detokenizer(bytewise, ["xyz", "yq"])
    texts = [words.feed(token) for text in ("a", "x", "y", "a", "x", "y", "q") for token in bytewise.encode(text).ids]
    assert texts == ["a", "", "", "xya", "", "", "x"]
    assert words.stop == "yq" and words.flush() == ""
    assert words.feed(5) == ""


def test_hidden_tokens_have_no_text_at_any_place(coder: TokenizerCoder) -> None:
    """Hidden tokens may be within a character or a stop, too; the text of the rows is then unknown."""
    ids = coder.encode(TEXT).ids
    visible, stopped = "".join(pieces(coder, ids)[0]), "".join(pieces(coder, ids, ("done",))[0])
    assert visible == coder.decode(ids)
    hidden = max(ids) + 1
    for place in range(len(ids) + 1):
        tokens_in = [*ids[:place], hidden, hidden, *ids[place:]]
        texts, words = pieces(coder, tokens_in, (), {hidden})
        assert "".join(texts) == visible and words.count == len(tokens_in)
        tokens, text_so_far = words.complete_tokens
        assert tokens == tokens_in[: len(tokens)] and (text_so_far is None) == (hidden in tokens)
        assert "".join(pieces(coder, tokens_in, ("done",), {hidden})[0]) == stopped


PROMPT, MOST = "Robot: find a mug, 2.", 12
Talk = Callable[..., "Talks"]


class Talks:
    """Conversations with certain special tokens; each call returns a whole answer."""

    def __init__(self, engine: Engine, tokenizer: PreTrainedTokenizerFast, special: SpecialTokens) -> None:
        self._talks = Conversations(engine, tokenizer, "tiny", ConcurrencyLimiter(1), special=special)
        self.memories = self._talks.memories

    def start_turn(self, agent: str, text: str) -> tuple[str, Generation]:
        async def answer() -> tuple[str, Generation]:
            generation = self._talks.start_turn(GenerationRequest(agent, lambda: text, MOST))
            await generation.begin()
            return "".join([piece or "" async for piece in generation.pieces()]), generation

        return asyncio.run(answer())


@pytest.fixture
def talk(engine: Engine, chat: PreTrainedTokenizerFast) -> Talk:
    return lambda ends=(), hidden=(): Talks(engine, chat, SpecialTokens(frozenset(ends), frozenset(hidden)))


@pytest.fixture
def plain(engine: Engine, talk: Talk) -> list[int]:
    """Return the tokens that the model generates; tests declare some of them special."""
    with talk().memories.turn("plain", PROMPT) as prompt:
        logits = engine.extend(prompt.cache, prompt.new, ChunkSchedule()).logits
        return engine.generate(prompt.cache, logits, MOST, ())


def test_an_answer_continues_after_a_hidden_token(talk: Talk, plain: list[int], bytewise: TokenizerCoder) -> None:
    first = plain[0]
    text, generation = talk(hidden={first}).start_turn("hidden", PROMPT)
    assert generation.end is not None and generation.end.reason == "length"
    state = [token for token in plain if token != first]
    assert text and bytewise.decode(state).startswith(text)


def test_only_end_tokens_end_an_answer(talk: Talk, plain: list[int]) -> None:
    end = next(token for token in plain if token != plain[0])
    _, generation = talk(ends={end}, hidden={plain[0]}).start_turn("ended", PROMPT)
    assert generation.end is not None and generation.end.reason == "stop"
    assert generation.end.generated == plain.index(end)


def test_rows_with_hidden_tokens_are_not_reused_for_text_without_them(talk: Talk, plain: list[int]) -> None:
    """A continued prompt is answered as by an agent without a memory."""
    talks = talk(hidden={plain[2]})
    text, _ = talks.start_turn("first", PROMPT)
    on = f"{PROMPT}{text} And then?"
    (warm, generation), (cold, _) = talks.start_turn("first", on), talks.start_turn("second", on)
    assert warm == cold
    assert generation.prefilled is not None and generation.prefilled.kept > 0

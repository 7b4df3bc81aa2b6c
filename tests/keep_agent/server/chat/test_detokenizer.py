"""Text that grows token by token says what it would say at once, in whole characters, up to a stop."""

from __future__ import annotations

from collections.abc import Collection

import pytest
from hypothesis import given
from hypothesis import strategies as st
from transformers import PreTrainedTokenizerFast

from keep_agent.server.chat.detokenizer import Detokenizer
from memory.agents.text_match import BROKEN, TokenizerCoder, TokenText
from memory.engine.models.tokenizer import load_tokenizer
from planners.tiny.checkpoint import BUNDLED

TEXT = "go to 🙂 fridge_1, Ünïcödé 漢字\n\n  next 👩‍👩‍👧 done."


@pytest.fixture(scope="module", params=["planner-tiny", "chat"])
def coder(request: pytest.FixtureRequest, chat: PreTrainedTokenizerFast) -> TokenizerCoder:
    return TokenizerCoder(chat if request.param == "chat" else load_tokenizer(str(BUNDLED)))


def pieces(
    coder: TokenizerCoder, ids: list[int], stops: tuple[str, ...] = (), hidden: Collection[int] = ()
) -> tuple[list[str], Detokenizer]:
    words = Detokenizer(coder, stops, hidden)
    return [*(words.feed(token) for token in ids), words.flush()], words


@pytest.fixture(scope="module")
def bytewise(chat: PreTrainedTokenizerFast) -> TokenizerCoder:
    return TokenizerCoder(chat)


def test_no_piece_holds_half_a_character(bytewise: TokenizerCoder) -> None:
    ids = bytewise.encode(TEXT).ids
    texts, words = pieces(bytewise, ids)
    assert "".join(texts) == TEXT and BROKEN not in "".join(texts)
    assert words.whole == (ids, TEXT)
    assert len([piece for piece in texts if piece]) > 20


def test_a_character_that_lacks_bytes_is_left_out(bytewise: TokenizerCoder) -> None:
    ids = bytewise.encode("ab🙂").ids
    texts, words = pieces(bytewise, ids[:-1])
    assert "".join(texts) == "ab"
    assert words.whole == (ids[:2], "ab")


def test_bytes_that_are_no_character_hold_nothing_up(bytewise: TokenizerCoder) -> None:
    start = bytewise.encode("🙂").ids[:1]
    texts, _ = pieces(bytewise, [*start, *bytewise.encode("abc").ids])
    assert "".join(texts) == f"{BROKEN}abc"
    texts, _ = pieces(bytewise, start * 40)
    assert len("".join(texts)) >= 30


@given(st.data())
def test_pieces_are_the_whole_and_rows_fit_the_text(bytewise: TokenizerCoder, data: st.DataObject) -> None:
    ids = data.draw(st.lists(st.integers(2, 319), max_size=30))
    stops = tuple(data.draw(st.lists(st.text("abo .2\ufffd", min_size=1, max_size=3), max_size=3)))
    texts, words = pieces(bytewise, ids, stops)
    text_so_far = "".join(texts)
    whole = bytewise.decode(ids)
    if words.stop is None:
        assert whole.startswith(text_so_far) and set(whole[len(text_so_far) :]) <= {BROKEN}
        assert not any(stop in text_so_far for stop in stops)
    else:
        assert (text_so_far + words.stop) in whole and not any(stop in text_so_far for stop in stops)
    remaining, text = words.whole
    assert ids[: len(remaining)] == remaining and text_so_far.startswith(text)
    assert bytewise.decode(remaining) == text
    row = TokenText()
    row.extend(remaining, bytewise, text)
    assert row.text == text and row.ids == remaining


def test_both_tokenizers_say_what_they_say_at_once(coder: TokenizerCoder) -> None:
    ids = coder.encode("go to fridge_1\nnext go to cabinet_2\n\nthere mug mug_1 closed open\n").ids
    assert "".join(pieces(coder, ids)[0]) == coder.decode(ids)


def test_what_may_be_a_stop_is_held_back_until_it_is_none(bytewise: TokenizerCoder) -> None:
    words = Detokenizer(bytewise, ["xyz", "yq"])
    texts = [words.feed(token) for text in ("a", "x", "y", "a", "x", "y", "q") for token in bytewise.encode(text).ids]
    assert texts == ["a", "", "", "xya", "", "", "x"]
    assert words.stop == "yq" and words.flush() == ""
    assert words.feed(5) == ""


def test_hidden_tokens_have_no_text_wherever_they_stand(coder: TokenizerCoder) -> None:
    """Also within a character, or a stop. What the rows say is not what is shown then."""
    ids = coder.encode(TEXT).ids
    visible, stopped = "".join(pieces(coder, ids)[0]), "".join(pieces(coder, ids, ("done",))[0])
    hidden = max(ids) + 1
    for place in range(len(ids) + 1):
        tokens_in = [*ids[:place], hidden, hidden, *ids[place:]]
        texts, words = pieces(coder, tokens_in, hidden={hidden})
        assert "".join(texts) == visible and words.count == len(tokens_in)
        tokens, text_so_far = words.whole
        assert tokens == tokens_in[: len(tokens)] and (text_so_far is None) == (hidden in tokens)
        assert "".join(pieces(coder, tokens_in, ("done",), {hidden})[0]) == stopped

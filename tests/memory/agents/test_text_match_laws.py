"""Laws of spliced token texts, over random texts, edits, generated tokens and files."""

from __future__ import annotations

import json
from itertools import pairwise, takewhile

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from keep_agent.errors import DataError
from memory.agents.text_match import TokenText, common_length, is_seam, match, resume
from tests.memory.agents.coders import ALL, LOSSLESS, SENTENCES, coder_of, decode, tokenizer_of

WORDS = [
    "mug", "mugs", "fridge", "fri", "the", "go to", "Fridge_1", "fridge_12", " ", "  ", "   ", "\t", "\n", "\n\n",
    "\r\n", ".", ":", "1", "42", "é", "e", "\u0301", "\u0323", "\u0335", "ﬁ", "\u1100", "\u1161", "🙂", "👩\u200d🚀",
    ",", "漢字", "ß", "İ", "\u00a0", "\u200b", "\u2581", "<s>", "<bos>", "\x00", "\ufffd",
]  # fmt: skip
Edits = list[tuple[str, float, str]]

texts = st.lists(st.sampled_from(WORDS), max_size=25).map("".join)
places = st.floats(0, 1)
edits = st.lists(st.tuples(st.sampled_from(["insert", "delete", "replace"]), places, texts), min_size=0, max_size=3)


def edited(text: str, changes: Edits) -> str:
    for change, place, piece in changes:
        at = round(place * len(text))
        length = 0 if change == "insert" else max(1, len(piece))
        text = text[:at] + ("" if change == "delete" else piece) + text[at + length :]
    return text


def in_pieces(text: str, cuts: list[float], name: str) -> TokenText:
    """Append a text in pieces, cut at the seams among ``cuts``."""
    coder = coder_of(name)
    inner = {at for at in (round(cut * len(text)) for cut in cuts) if is_seam(text, at, coder.seams)}
    token_text = TokenText(coder.seams)
    for a, b in pairwise([0, *sorted(inner), len(text)]):
        token_text.append(text[a:b], coder)
    return token_text


def common(a: str, b: str) -> int:
    """Count the equal characters at the beginning."""
    return len(list(takewhile(lambda pair: pair[0] == pair[1], zip(a, b, strict=False))))


def check_law(name: str, stored: TokenText, text: str, threshold: float) -> TokenText:
    """Check all laws of a match; return the new prompt's tokens."""

    def whole(text: str) -> str:  # without the spaces and composed characters that the tokenizer itself loses
        return decode(name, tokenizer_of(name).encode(text, add_special_tokens=False).ids)

    best = match(stored, text, threshold)
    new, rows = resume(stored, best, coder_of(name))
    equal = common(stored.text, text)
    characters = len(text) - len(best.rest)
    assert best.matched == equal and characters <= equal, "a row of a different character is reused"
    assert new.text == text and new.ids[: best.tokens] == stored.ids[: best.tokens]
    assert rows <= best.tokens and (rows < len(new.ids) or not new.ids), "the last row must be computed for its logits"
    assert decode(name, new.ids) == whole(text)
    assert decode(name, stored.ids[: best.tokens]) == whole(text[:characters])
    if text.startswith(stored.text) and is_seam(text, len(stored.text), stored.seams):
        assert best.tokens == len(stored.ids), "an extended text must reuse all tokens"
    assert (best.kind == "exact") == (stored.text == text)
    assert (best.kind == "miss") == (equal < threshold * len(stored.text))
    return new


@ALL
@settings(max_examples=200)
@given(text=texts, cuts=st.lists(places, max_size=4), turns=st.lists(edits, min_size=1, max_size=3), threshold=places)
def test_spliced_tokens_encode_text(
    name: str, text: str, cuts: list[float], turns: list[Edits], threshold: float
) -> None:
    stored = in_pieces(text, cuts, name)
    for changes in turns:
        text = edited(text, changes)
        stored = check_law(name, stored, text, threshold)


@ALL
@settings(max_examples=150)
@given(text=texts, more=texts, cuts=st.lists(places, max_size=4))
def test_an_extended_text_keeps_every_token(name: str, text: str, more: str, cuts: list[float]) -> None:
    stored = in_pieces(text, cuts, name)
    new = check_law(name, stored, text + more, 0.8)
    if coder_of(name).seams == "any":
        assert new.ids[: len(stored.ids)] == stored.ids


@pytest.mark.parametrize("name", LOSSLESS)
@settings(max_examples=150)
@given(text=texts, changes=edits)
def test_lossless_tokenizers_give_back_the_text_itself(name: str, text: str, changes: Edits) -> None:
    """Excluded: SentencePiece's literal low line, a space at the very beginning, and special tokens."""
    text, new = ("x" + t.replace("\u2581", "").replace("<s>", "") for t in (text, edited(text, changes)))
    stored = TokenText.of(text, coder_of(name))
    spliced, _ = resume(stored, match(stored, new, 0), coder_of(name))
    assert decode(name, spliced.ids) == new


@settings(max_examples=150)
@given(text=texts, cuts=st.lists(places, max_size=4), changes=edits)
def test_tokens_of_words_are_those_of_the_whole_text(text: str, cuts: list[float], changes: Edits) -> None:
    coder, stored, new = coder_of("planner"), in_pieces(text, cuts, "planner"), edited(text, changes)
    assert stored.ids == coder.encode(text, first=True).ids
    assert resume(stored, match(stored, new, 0), coder)[0].ids == coder.encode(new, first=True).ids


@settings(max_examples=200)
@given(a=texts, b=texts, shared=texts)
def test_the_common_length_counts_equal_characters(a: str, b: str, shared: str) -> None:
    assert common_length(a, b) == common(a, b)
    assert common_length(shared + a, shared + b) == common(shared + a, shared + b)


@pytest.mark.parametrize("name", LOSSLESS)
@settings(max_examples=100)
@given(prompt=texts, reply=texts, step=st.integers(1, 5), changes=edits)
def test_generated_tokens_give_their_text(name: str, prompt: str, reply: str, step: int, changes: Edits) -> None:
    """The tokens come in groups of ``step``, and one per byte, as no tokenizer would encode the text."""
    coder = coder_of(name)
    reply = reply.replace("\u2581", "").replace("<s>", "").rstrip("\ufffd")  # looks like an incomplete character
    ids = [token for character in reply for token in coder.encode(character).ids]
    stored = TokenText.of(f"x{prompt}", coder)
    for at in range(0, len(ids), step):
        stored.extend(ids[at : at + step], coder)
    assert stored.text == f"x{prompt}{reply}"
    assert stored.ids == [*coder.encode(f"x{prompt}", first=True).ids, *ids]
    check_law(name, stored, stored.text + "\nand so on", 0.8)
    check_law(name, stored, edited(stored.text, changes), 0)


@settings(max_examples=150)
@given(ids=st.lists(st.integers(0, 349), max_size=8), step=st.integers(1, 8), more=texts)
def test_any_tokens_can_be_generated(ids: list[int], step: int, more: str) -> None:
    coder, stored = coder_of("bytes"), TokenText.of("x", coder_of("bytes"))
    for at in range(0, len(ids), step):
        stored.extend(ids[at : at + step], coder)
    assert stored.ids == [*coder.encode("x").ids, *ids]
    new, rows = resume(stored, match(stored, stored.text + "\n" + more), coder)
    assert new.text == stored.text + "\n" + more and rows < len(new.ids)
    text = decode("bytes", stored.ids)
    assert text.startswith(stored.text) and (text == stored.text or text.endswith("\ufffd"))


@pytest.mark.parametrize("name", ["bytes", "bpe-first"])
def test_half_a_character_waits_for_the_rest(name: str) -> None:
    coder = coder_of(name)
    ids = coder.encode("🙂").ids
    stored = TokenText.of("mug", coder)
    before = len(stored.ids)
    stored.extend(ids[:-1], coder)
    assert stored.text == "mug" and len(stored.ids) == before + len(ids) - 1
    assert match(stored, "mug and").tokens == before, "tokens of an incomplete character are not reused"
    stored.extend(ids[-1:], coder)
    assert stored.text == "mug🙂" and stored.boundary(3) == (before, 3)
    assert match(stored, "mug🙃", threshold=0).tokens == before, "the two characters have equal first bytes"


def test_incomplete_characters_become_replacement_characters() -> None:
    """Followed by other text, or by more bytes with which no character begins: they do not wait for ever."""
    coder = coder_of("bytes")
    *first, last = coder.encode("🙂").ids
    stored, garbage = TokenText.of("mug", coder), TokenText.of("mug", coder)
    stored.extend(first, coder)
    stored.append("\nfridge", coder)
    assert stored.text == "mug\ufffd\nfridge" == decode("bytes", stored.ids)
    for _ in range(100):
        garbage.extend([last], coder)
    assert len(garbage.text) > 90 and set(garbage.text[3:]) == {"\ufffd"}


def test_tokens_of_a_known_text_are_located_in_it() -> None:
    """planner-tiny's tokens do not encode spaces; the caller knows the text."""
    tokenizer, coder = tokenizer_of("planner"), coder_of("planner")
    text = "next: go to  fridge_1\n"
    ids = tokenizer.encode(text, add_special_tokens=False).ids
    known, decoded = TokenText.of("", coder), TokenText.of("", coder)
    known.extend(ids, coder, text)
    decoded.extend(ids, coder)
    assert known.text == text and known.boundary(6) == (2, 6) and decoded.text == " next : go to fridge_1 \n"
    assert known.to_json() == TokenText.of(text, coder).to_json()
    wrong = TokenText.of("task\n", coder)
    wrong.extend([*ids[:-1], *ids], coder, "anything at all")  # tokens of another text match it as a whole only
    assert wrong.boundary(len(wrong.text) - 1) == (2, 5) and wrong.boundary(20) == (len(wrong.ids), 20)


@ALL
def test_a_token_text_is_restored_from_a_file(name: str) -> None:
    stored = in_pieces("".join(SENTENCES[:3]) + "🙂 é\n", [0.3, 0.7], name)
    back = TokenText.from_json(json.loads(json.dumps(stored.to_json())))
    assert back.to_json() == stored.to_json()
    assert match(back, stored.text + "more") == match(stored, stored.text + "more")
    back.append("more", coder_of(name))
    assert back.ids[: len(stored.ids)] == stored.ids and back.text == stored.text + "more"


@pytest.mark.parametrize("change", [
    {"ids": [1]}, {"ends": [3, 2]}, {"ends": [1, 9]}, {"ends": [-1, 2]}, {"start": 3}, {"start": 1}, {"text": None},
    {"ids": [1, "2"]}, {"ids": None}, {"seams": "none"}, {"start": True}, {"start": -1}, {"tokenizer": 1},
])  # fmt: skip
def test_a_damaged_file_is_refused(change: dict[str, object]) -> None:
    good = {"text": "ab", "ids": [1, 2], "ends": [1, 2], "start": 0, "seams": "any", "tokenizer": "a"}
    assert TokenText.from_json(good).to_json() == good
    with pytest.raises(DataError, match="remove"):
        TokenText.from_json(good | change)

"""Text match: tokenizers that continue a text, matches by text, and their laws over random texts and edits."""

from __future__ import annotations

import json
from itertools import pairwise, takewhile
from typing import TYPE_CHECKING

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer, models

from keep_agent.errors import DataError, ModelError
from memory.agents.text_match import TokenizerCoder, TokenText, common_length, is_seam, match, resume
from tests.memory.agents import coders
from tests.memory.agents.coders import byte_level, coder_of, decode, sentencepiece, tokenizer_of

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerFast


@coders.FIRST
def test_an_equal_or_shorter_text_computes_its_last_token_again(name: str) -> None:
    stored = TokenText.of("go to the fridge\n", coder_of(name), start=(1,))
    best = match(stored, stored.text)
    new, rows = resume(stored, best, coder_of(name))
    assert (best.kind, best.rest, new.ids, rows) == ("exact", "", stored.ids, len(stored.ids) - 1)
    paper = match(stored, stored.text, exact="recompute")
    new, rows = resume(stored, paper, coder_of(name))
    assert (paper.kind, paper.reused, paper.rest, new.ids, rows) == ("exact", 0, stored.text, stored.ids, 0)
    stored.append("go to the mug\n", coder_of(name))
    best = match(stored, "go to the fridge\n", threshold=0.5)
    new, rows = resume(stored, best, coder_of(name))
    assert (best.kind, best.rest) == ("diverge", "") and new.ids == stored.ids[: best.tokens]
    assert rows == best.reused == best.tokens - 1 > 0


def test_new_text_without_tokens_computes_the_last_token_again() -> None:
    stored = TokenText.of("go to the fridge", coder_of("planner"))
    best = match(stored, "go to the fridge  ")
    new, rows = resume(stored, best, coder_of("planner"))
    assert (best.kind, best.rest, best.reused) == ("extend", "  ", 4) and (new.ids, rows) == (stored.ids, 3)


@coders.FIRST
@pytest.mark.parametrize(("common", "kind"), [(79, "miss"), (80, "diverge"), (100, "extend")])
def test_the_threshold_is_a_share_of_the_stored_text(name: str, common: int, kind: str) -> None:
    text = "a b " * 25
    best = match(TokenText.of(text, coder_of(name), (1,)), text[:common] + "\n" * 9)
    assert best.kind == kind and best.matched == common
    if kind == "miss":
        assert best.tokens == best.reused == 0 and best.rest.startswith("a b ")


@pytest.mark.parametrize(("name", "rest"), [("planner", "frame"), ("bytes", " frame"), ("bpe-first", " the frame")])
def test_a_token_across_the_end_of_the_match_is_tokenised_again(name: str, rest: str) -> None:
    stored = TokenText.of("the mug is in the fridge", coder_of(name))
    best = match(stored, "the mug is in the frame")
    assert (best.kind, best.matched) == ("diverge", 20) and best.rest == rest
    assert decode(name, stored.ids[: best.reused]) == "the mug is in the frame".removesuffix(rest).removesuffix(" ")


def test_words_meet_at_spaces_only() -> None:
    """Reusing the tokens of half a word would make two words of one: fri, dge."""
    coder = coder_of("planner")
    stored = TokenText.of("go to fri", coder)
    best = match(stored, "go to fridge_1\n")
    assert (best.kind, best.tokens, best.rest) == ("extend", 2, "fridge_1\n")
    assert match(stored, "go to fri dge").tokens == len(stored.ids)
    assert match(TokenText.of("go to fridge_12", coder), "go to fridge_1\n").tokens == 2


def test_characters_that_compose_are_not_separated() -> None:
    stored = TokenText.of("in the cafe", coder_of("bytes-nfc"))
    best = match(stored, "in the cafe\u0301")
    assert best.kind == "extend" and best.rest.endswith("e\u0301") and best.tokens < len(stored.ids)


@coders.FIRST
def test_empty_texts(name: str) -> None:
    coder = coder_of(name)
    empty = TokenText.of("", coder, start=(1,))
    assert (empty.text, empty.ids, empty.ends) == ("", [1], [0])
    assert match(empty, "").kind == "exact" and match(empty, "").reused == 0
    new, rows = resume(empty, match(empty, "the mug"), coder)
    assert rows == 1 and new.ids == [1, *coder.encode("the mug", first=True).ids]
    assert match(TokenText.of("the mug", coder), "").kind == "miss"
    assert resume(TokenText(coder.seams), match(TokenText(coder.seams), ""), coder)[1] == 0


@coders.FIRST
def test_a_start_token_stays_in_front(name: str) -> None:
    coder = coder_of(name)
    stored = TokenText.of("the mug", coder, start=(1,))
    for text, count in (("the mug and", len(stored.ids)), ("the", 0), ("go to", 0)):
        new, rows = resume(stored, match(stored, text), coder)
        assert new.ids[0] == 1 and new.ids.count(1) == 1 and new.text == text and rows == count
    assert resume(stored, match(stored, "go to", threshold=0), coder)[1] == 1, "its row does not depend on the text"


def test_text_that_is_no_valid_unicode_is_refused() -> None:
    with pytest.raises(DataError, match="not valid Unicode"):
        TokenText.of("the mug", coder_of("bytes")).append("a\ud83d", coder_of("bytes"))


def test_seams_are_detected_by_trial() -> None:
    seams = {name: coder_of(name).seams for name in coders.TOKENIZERS}
    assert seams == dict.fromkeys(coders.LOSSLESS, "any") | {"planner": "spaces", "bytes-nfc": "composed"}


def test_tokenizers_that_cannot_be_spliced_are_refused() -> None:
    words = Tokenizer(models.WordLevel({"<unk>": 0}, unk_token="<unk>"))  # every text is one unknown word
    with pytest.raises(ModelError, match="cannot continue a text"):
        TokenizerCoder(words)

    with pytest.raises(ModelError, match="object does not tell the characters"):
        TokenizerCoder(object())  # type: ignore[arg-type]
    greedy = sentencepiece()
    greedy.add_tokens([f"{anchor}mug" for anchor in ("\n", "0", ";", "q")])
    with pytest.raises(ModelError, match="merges 'mug'"):
        TokenizerCoder(greedy).encode("mug")


def test_tokenizers_of_transformers_are_supported(chat: PreTrainedTokenizerFast) -> None:
    coder = TokenizerCoder(chat)
    stored = TokenText.of("<|im_start|>user\nfind a mug<|im_end|>\n", coder)
    assert stored.ids == chat.encode(stored.text, add_special_tokens=False) and coder.seams == "any"
    new, rows = resume(stored, match(stored, stored.text + "<|im_start|>Robot: 1."), coder)
    assert chat.decode(new.ids) == new.text and rows == len(stored.ids)


def test_truncation_and_padding_of_a_tokenizer_have_no_effect_and_stay() -> None:
    tokenizer = byte_level()
    tokenizer.enable_truncation(4)
    tokenizer.enable_padding(length=8)
    coder = TokenizerCoder(tokenizer)
    assert decode("bytes", coder.encode("the mug is in the fridge").ids) == "the mug is in the fridge"
    assert tokenizer.truncation["max_length"] == 4 and tokenizer.padding["length"] == 8


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
    coder = coder_of(name)
    inner = {at for at in (round(cut * len(text)) for cut in cuts) if is_seam(text, at, coder.seams)}
    token_text = TokenText(coder.seams)
    for a, b in pairwise([0, *sorted(inner), len(text)]):
        token_text.append(text[a:b], coder)
    return token_text


def common(a: str, b: str) -> int:
    return len(list(takewhile(lambda pair: pair[0] == pair[1], zip(a, b, strict=False))))


def check_law(name: str, stored: TokenText, text: str, threshold: float) -> TokenText:
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


@coders.ALL
@settings(max_examples=200)
@given(text=texts, more=texts, turns=st.lists(edits, min_size=1, max_size=3), threshold=places, data=st.data())
def test_spliced_tokens_encode_text(
    name: str, text: str, more: str, turns: list[Edits], threshold: float, data: st.DataObject
) -> None:
    stored = in_pieces(text, data.draw(st.lists(places, max_size=4)), name)
    extended = check_law(name, stored, text + more, threshold)
    assert coder_of(name).seams != "any" or extended.ids[: len(stored.ids)] == stored.ids
    for changes in turns:
        text = edited(text, changes)
        stored = check_law(name, stored, text, threshold)


@settings(max_examples=150)
@given(text=texts, cuts=st.lists(places, max_size=4), changes=edits)
def test_tokens_of_words_are_those_of_the_whole_text(text: str, cuts: list[float], changes: Edits) -> None:
    coder, stored, new = coder_of("planner"), in_pieces(text, cuts, "planner"), edited(text, changes)
    assert stored.ids == coder.encode(text, first=True).ids
    assert resume(stored, match(stored, new, 0), coder)[0].ids == coder.encode(new, first=True).ids


@settings(max_examples=200)
@given(a=texts, b=texts, shared=texts)
def test_the_common_length_counts_equal_characters(a: str, b: str, shared: str) -> None:
    assert common_length(a, b) == common_length(list(a), list(b)) == common(a, b)
    assert common_length(shared + a, shared + b) == common(shared + a, shared + b)


@pytest.mark.parametrize("name", coders.LOSSLESS)
@settings(max_examples=100)
@given(prompt=texts, reply=texts, step=st.integers(1, 5), changes=edits)
def test_generated_tokens_give_their_text(name: str, prompt: str, reply: str, step: int, changes: Edits) -> None:
    """Each character is encoded alone, unlike a text; the tokens come in groups of ``step``."""
    coder = coder_of(name)
    reply = reply.replace("\u2581", "").replace("<s>", "").rstrip("\ufffd")  # a final U+FFFD looks incomplete
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
    """Other text follows them, or bytes that cannot begin a character: they do not wait for ever."""
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


@coders.ALL
def test_a_token_text_is_restored_from_a_file(name: str) -> None:
    stored = in_pieces("".join(coders.SENTENCES[:3]) + "🙂 é\n", [0.3, 0.7], name)
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
    with pytest.raises(DataError, match="delete the cache's file"):
        TokenText.from_json(good | change)

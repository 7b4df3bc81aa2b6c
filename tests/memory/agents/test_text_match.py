"""Text matches: kinds, thresholds, the token where a text continues, and the tokenizers that can be spliced."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from tokenizers import Tokenizer, models

from keep_agent.errors import ConfigError, DataError, ModelError
from memory.agents.text_match import TokenizerCoder, TokenText, common_length, match, resume
from tests.memory.agents.coders import FIRST, LOSSLESS, TOKENIZERS, byte_level, coder_of, decode, sentencepiece

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerFast


@FIRST
def test_an_equal_text_computes_its_last_token_again(name: str) -> None:
    stored = TokenText.of("go to the fridge\n", coder_of(name), start=(1,))
    best = match(stored, stored.text)
    new, rows = resume(stored, best, coder_of(name))
    assert (best.kind, best.rest, new.ids, rows) == ("exact", "", stored.ids, len(stored.ids) - 1)
    paper = match(stored, stored.text, exact="recompute")
    new, rows = resume(stored, paper, coder_of(name))
    assert (paper.kind, paper.reused, paper.rest, new.ids, rows) == ("exact", 0, stored.text, stored.ids, 0)


@FIRST
def test_a_shorter_text_computes_its_last_token_again(name: str) -> None:
    stored = TokenText.of("go to the fridge\n", coder_of(name))
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


@FIRST
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


@FIRST
def test_empty_texts(name: str) -> None:
    coder = coder_of(name)
    empty = TokenText.of("", coder, start=(1,))
    assert (empty.text, empty.ids, empty.ends) == ("", [1], [0])
    assert match(empty, "").kind == "exact" and match(empty, "").reused == 0
    new, rows = resume(empty, match(empty, "the mug"), coder)
    assert rows == 1 and new.ids == [1, *coder.encode("the mug", first=True).ids]
    assert match(TokenText.of("the mug", coder), "").kind == "miss"
    assert resume(TokenText(coder.seams), match(TokenText(coder.seams), ""), coder)[1] == 0


@FIRST
def test_a_start_token_stays_in_front(name: str) -> None:
    coder = coder_of(name)
    stored = TokenText.of("the mug", coder, start=(1,))
    for text, count in (("the mug and", len(stored.ids)), ("the", 0), ("go to", 0)):
        new, rows = resume(stored, match(stored, text), coder)
        assert new.ids[0] == 1 and new.ids.count(1) == 1 and new.text == text and rows == count
    assert resume(stored, match(stored, "go to", threshold=0), coder)[1] == 1, "its row does not depend on the text"


@pytest.mark.parametrize("name", ["bytes", "bytes-trim", "bpe-first", "unigram-first"])
def test_token_level_matches_lose_rows_where_a_text_is_extended(name: str) -> None:
    """Each turn ends inside a word: the tokens of the whole text differ from there on."""
    coder = coder_of(name)
    turns = ["the mug is in the f", "ridge and", " then go t", "o the fri", "dge\n", "\nYou", ": put the m", "ug\n"]
    stored, first = TokenText.of(turns[0], coder), coder.encode(turns[0], first=True).ids
    by_text = by_tokens = 0
    for number in range(2, len(turns) + 1):
        text = "".join(turns[:number])
        best, whole = match(stored, text), coder.encode(text, first=True).ids
        assert best.kind == "extend" and best.reused == len(stored.ids)
        by_text, by_tokens = by_text + best.reused, by_tokens + common_length(stored.ids, whole)
        stored, _ = resume(stored, best, coder)
    assert decode(name, stored.ids) == decode(name, whole) and stored.ids != whole
    assert common_length(stored.ids, whole) <= len(first), "no row after the first turn would be reused"
    assert by_text > 2 * by_tokens


@pytest.mark.parametrize(("a", "b", "count"), [([1, 2, 3], [1, 2, 4, 5], 2), ([], [1], 0), ([1, 2], [1, 2], 2)])
def test_token_level_match_counts_equal_ids(a: list[int], b: list[int], count: int) -> None:
    assert common_length(a, b) == count


def test_bad_settings_and_bad_text_are_refused() -> None:
    stored = TokenText.of("the mug", coder_of("bytes"))
    with pytest.raises(ConfigError, match="threshold=1.2"):
        match(stored, "the", threshold=1.2)
    with pytest.raises(ConfigError, match="exact='keep'"):
        match(stored, "the", exact="keep")  # type: ignore[arg-type]
    with pytest.raises(DataError, match="no valid Unicode"):
        stored.append("a\ud83d", coder_of("bytes"))


def test_seams_are_detected_by_trial() -> None:
    seams = {name: coder_of(name).seams for name in TOKENIZERS}
    assert seams == dict.fromkeys(LOSSLESS, "any") | {"planner": "spaces", "bytes-nfc": "composed"}


def test_tokenizers_that_cannot_be_spliced_are_refused() -> None:
    words = Tokenizer(models.WordLevel({"<unk>": 0}, unk_token="<unk>"))  # every text is one unknown word
    with pytest.raises(ModelError, match="cannot continue a text"):
        TokenizerCoder(words)

    class Slow:
        """Tokenizer without offsets."""

    with pytest.raises(ModelError, match="Slow does not say which characters"):
        TokenizerCoder(Slow())  # type: ignore[arg-type]
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

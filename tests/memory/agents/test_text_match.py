"""Text matches: kinds, thresholds, and the place where a text continues."""

from __future__ import annotations

import pytest

from keep_agent.errors import ConfigError, DataError
from memory.agents.text_match import TokenText, match, match_tokens, resume
from tests.memory.agents.coders import FIRST, coder_of, said


@FIRST
def test_an_equal_text_computes_its_last_token_again(name: str) -> None:
    stored = TokenText.of("go to the fridge\n", coder_of(name), start=(1,))
    found = match(stored, stored.text)
    told, kept = resume(stored, found, coder_of(name))
    assert (found.kind, found.rest, told.ids, kept) == ("exact", "", stored.ids, len(stored.ids) - 1)
    paper = match(stored, stored.text, exact="recompute")
    told, kept = resume(stored, paper, coder_of(name))
    assert (paper.kind, paper.reused, paper.rest) == ("exact", 0, stored.text)
    assert (told.ids, kept) == (stored.ids, 0)


@FIRST
def test_a_shorter_text_computes_its_last_token_again(name: str) -> None:
    """The cut falls on a token's end: nothing is left to tokenise, and yet logits are needed."""
    stored = TokenText.of("go to the fridge\n", coder_of(name))
    stored.append("go to the mug\n", coder_of(name))
    found = match(stored, "go to the fridge\n", threshold=0.5)
    told, kept = resume(stored, found, coder_of(name))
    assert (found.kind, found.rest) == ("diverge", "") and told.ids == stored.ids[: found.tokens]
    assert kept == found.reused == found.tokens - 1 > 0


def test_a_rest_without_tokens_computes_the_last_one_again() -> None:
    stored = TokenText.of("go to the fridge", coder_of("planner"))
    found = match(stored, "go to the fridge  ")
    told, kept = resume(stored, found, coder_of("planner"))
    assert (found.kind, found.rest, found.reused) == ("extend", "  ", 4) and (told.ids, kept) == (stored.ids, 3)


@FIRST
@pytest.mark.parametrize(("shown", "kind"), [(79, "miss"), (80, "diverge"), (100, "extend")])
def test_the_threshold_is_a_share_of_the_stored_text(name: str, shown: int, kind: str) -> None:
    text = "a b " * 25
    found = match(TokenText.of(text, coder_of(name), (1,)), text[:shown] + "\n" * 9)
    assert found.kind == kind and found.matched == shown
    if kind == "miss":
        assert found.tokens == found.reused == 0 and found.rest.startswith("a b ")


@pytest.mark.parametrize(("name", "rest"), [("planner", "frame"), ("bytes", " frame"), ("bpe-first", " the frame")])
def test_a_token_that_straddles_is_tokenised_again(name: str, rest: str) -> None:
    stored = TokenText.of("the mug is in the fridge", coder_of(name))
    found = match(stored, "the mug is in the frame")
    assert (found.kind, found.matched) == ("diverge", 20) and found.rest == rest
    assert said(name, stored.ids[: found.reused]) == "the mug is in the frame".removesuffix(rest).removesuffix(" ")


def test_words_meet_beside_spaces_only() -> None:
    """Kept tokens of half a word would make two words of one: fri, dge."""
    coder = coder_of("planner")
    stored = TokenText.of("go to fri", coder)
    found = match(stored, "go to fridge_1\n")
    assert (found.kind, found.tokens, found.rest) == ("extend", 2, "fridge_1\n")
    assert match(stored, "go to fri dge").tokens == len(stored.ids)
    assert match(TokenText.of("go to fridge_12", coder), "go to fridge_1\n").tokens == 2


def test_characters_that_compose_are_not_parted() -> None:
    coder = coder_of("bytes-nfc")
    stored = TokenText.of("in the cafe", coder)
    found = match(stored, "in the cafe\u0301")
    assert found.kind == "extend" and found.rest.endswith("e\u0301") and found.tokens < len(stored.ids)


@FIRST
def test_empty_texts(name: str) -> None:
    coder = coder_of(name)
    empty = TokenText.of("", coder, start=(1,))
    assert (empty.text, empty.ids, empty.ends) == ("", [1], [0])
    assert match(empty, "").kind == "exact" and match(empty, "").reused == 0
    told, kept = resume(empty, match(empty, "the mug"), coder)
    assert kept == 1 and told.ids == [1, *coder.encode("the mug", first=True).ids]
    assert match(TokenText.of("the mug", coder), "").kind == "miss"
    assert resume(TokenText(coder.seams), match(TokenText(coder.seams), ""), coder)[1] == 0


@FIRST
def test_a_start_token_stays_in_front(name: str) -> None:
    coder = coder_of(name)
    stored = TokenText.of("the mug", coder, start=(1,))
    for text, kept in (("the mug and", len(stored.ids)), ("the", 0), ("go to", 0)):
        told, rows = resume(stored, match(stored, text), coder)
        assert told.ids[0] == 1 and told.ids.count(1) == 1 and told.text == text and rows == kept
    assert resume(stored, match(stored, "go to", threshold=0), coder)[1] == 1, "its row needs no text"


@pytest.mark.parametrize("name", ["bytes", "bytes-trim", "bpe-first", "unigram-first"])
def test_tokens_diverge_where_the_text_goes_on(name: str) -> None:
    """Each turn ends inside what the tokenizer would merge; a prompt tokenised anew is another one from there on."""
    coder = coder_of(name)
    turns = ["the mug is in the f", "ridge and", " then go t", "o the fri", "dge\n", "\nYou", ": put the m", "ug\n"]
    stored, anew = TokenText.of(turns[0], coder), coder.encode(turns[0], first=True).ids
    by_text = by_tokens = 0
    for number in range(2, len(turns) + 1):
        text = "".join(turns[:number])
        found, new = match(stored, text), coder.encode(text, first=True).ids
        assert found.kind == "extend" and found.reused == len(stored.ids)
        by_text, by_tokens = by_text + found.reused, by_tokens + match_tokens(stored.ids, new)
        stored, _ = resume(stored, found, coder)
    assert said(name, stored.ids) == said(name, new) and stored.ids != new
    assert match_tokens(stored.ids, new) <= len(anew), "nothing behind the first border would have been found again"
    assert by_text > 2 * by_tokens


def test_token_level_match_counts_equal_ids() -> None:
    assert match_tokens([1, 2, 3], (1, 2, 4, 5)) == 2
    assert match_tokens([], [1]) == 0
    assert match_tokens([1, 2], [1, 2]) == 2


def test_bad_settings_and_bad_text_are_named() -> None:
    stored = TokenText.of("the mug", coder_of("bytes"))
    with pytest.raises(ConfigError, match="threshold=1.2"):
        match(stored, "the", threshold=1.2)
    with pytest.raises(ConfigError, match="exact='keep'"):
        match(stored, "the", exact="keep")  # type: ignore[arg-type]
    with pytest.raises(DataError, match="no valid Unicode"):
        stored.append("a\ud83d", coder_of("bytes"))

"""Laws of splicing, over random edits and several kinds of tokenizers."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from memory.agents.text_match import TokenText, common_length, match, resume
from tests.memory.agents.coders import ALL, LOSSLESS, coder_of, said
from tests.memory.agents.splices import check_law, common, edited, edits, in_pieces, places, texts


@ALL
@settings(max_examples=200)
@given(text=texts, cuts=st.lists(places, max_size=4), turns=st.lists(edits, min_size=1, max_size=3), threshold=places)
def test_spliced_tokens_say_the_new_text(
    name: str, text: str, cuts: list[float], turns: list[list[tuple[str, float, str]]], threshold: float
) -> None:
    stored = in_pieces(text, cuts, name)
    for changes in turns:
        text = edited(text, changes)
        stored = check_law(name, stored, text, threshold)


@ALL
@settings(max_examples=150)
@given(text=texts, more=texts, cuts=st.lists(places, max_size=4))
def test_a_text_that_goes_on_keeps_every_token(name: str, text: str, more: str, cuts: list[float]) -> None:
    stored = in_pieces(text, cuts, name)
    told = check_law(name, stored, text + more, 0.8)
    if coder_of(name).seams == "any":
        assert told.ids[: len(stored.ids)] == stored.ids


@pytest.mark.parametrize("name", LOSSLESS)
@settings(max_examples=150)
@given(text=texts, changes=edits)
def test_lossless_tokenizers_give_back_the_text_itself(
    name: str, text: str, changes: list[tuple[str, float, str]]
) -> None:
    """Literal low lines of SentencePiece, and a special token after which it adds a space, are lost by themselves."""
    start = "x"  # a space at the very beginning is lost as well
    text, new = (start + each.replace("\u2581", "").replace("<s>", "") for each in (text, edited(text, changes)))
    stored = TokenText.of(text, coder_of(name))
    told, _ = resume(stored, match(stored, new, 0), coder_of(name))
    assert said(name, told.ids) == new


@settings(max_examples=150)
@given(text=texts, cuts=st.lists(places, max_size=4), changes=edits)
def test_tokens_without_spaces_are_those_of_the_whole_text(
    text: str, cuts: list[float], changes: list[tuple[str, float, str]]
) -> None:
    """Beside a space a word is the same token whatever comes next: planner-tiny loses nothing by splicing."""
    coder, stored, new = coder_of("planner"), in_pieces(text, cuts, "planner"), edited(text, changes)
    assert stored.ids == coder.encode(text, first=True).ids
    assert resume(stored, match(stored, new, 0), coder)[0].ids == coder.encode(new, first=True).ids


@settings(max_examples=200)
@given(one=texts, other=texts, both=texts)
def test_shared_is_the_common_beginning(one: str, other: str, both: str) -> None:
    assert common_length(one, other) == common(one, other)
    assert common_length(both + one, both + other) == common(both + one, both + other)

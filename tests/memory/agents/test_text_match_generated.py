"""Generated text: tokens bring it, incomplete characters wait, and no token is doubled or lost."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from memory.agents.text_match import TokenText, match, resume
from tests.memory.agents.coders import LOSSLESS, coder_of, said, tokenizer_of
from tests.memory.agents.splices import check_law, edited, edits, texts


@pytest.mark.parametrize("name", LOSSLESS)
@settings(max_examples=100)
@given(prompt=texts, reply=texts, step=st.integers(1, 5), changes=edits)
def test_generated_tokens_bring_their_own_text(
    name: str, prompt: str, reply: str, step: int, changes: list[tuple[str, float, str]]
) -> None:
    """Also where they come one by one, and where no tokenizer would have cut the text so: one byte after another."""
    coder = coder_of(name)
    reply = reply.replace("\u2581", "").replace("<s>", "").rstrip("\ufffd")  # at the end it looks like half of one
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
def test_any_tokens_can_have_been_generated(ids: list[int], step: int, more: str) -> None:
    """Bytes that are no text are what a decoder shows for them; nothing is kept twice or lost."""
    coder, stored = coder_of("bytes"), TokenText.of("x", coder_of("bytes"))
    for at in range(0, len(ids), step):
        stored.extend(ids[at : at + step], coder)
    assert stored.ids == [*coder.encode("x").ids, *ids]
    told, kept = resume(stored, match(stored, stored.text + "\n" + more), coder)
    assert told.text == stored.text + "\n" + more and kept < len(told.ids)
    assert said("bytes", stored.ids).startswith(stored.text)
    assert said("bytes", stored.ids) == stored.text or said("bytes", stored.ids).endswith("\ufffd")


@pytest.mark.parametrize("name", ["bytes", "bpe-first"])
def test_half_a_character_waits_for_the_rest(name: str) -> None:
    coder = coder_of(name)
    bits = coder.encode("🙂").ids
    stored = TokenText.of("mug", coder)
    before = len(stored.ids)
    stored.extend(bits[:-1], coder)
    assert stored.text == "mug" and len(stored.ids) == before + len(bits) - 1
    assert match(stored, "mug and").tokens == before, "tokens of no character are not kept"
    stored.extend(bits[-1:], coder)
    assert stored.text == "mug🙂" and stored.boundary(3) == (before, 3)
    assert match(stored, "mug🙃", threshold=0).tokens == before, "both begin with the same bytes"


def test_half_a_character_stays_broken_if_something_else_follows() -> None:
    coder, bits = coder_of("bytes"), coder_of("bytes").encode("🙂").ids[:-1]
    stored = TokenText.of("mug", coder)
    stored.extend(bits, coder)
    stored.append("\nfridge", coder)
    assert stored.text == "mug\ufffd\nfridge" == said("bytes", stored.ids)


def test_garbage_does_not_wait_for_ever() -> None:
    """A model with random weights writes bytes that no character begins with: they are not decoded again and again."""
    coder = coder_of("bytes")
    rest = coder.encode("🙂").ids[-1]
    stored = TokenText.of("mug", coder)
    for _ in range(100):
        stored.extend([rest], coder)
    assert len(stored.text) > 90 and set(stored.text[3:]) == {"\ufffd"}


def test_tokens_of_a_known_text_are_found_in_it() -> None:
    """planner-tiny's tokens do not say where spaces were; who spliced them knows."""
    tokenizer, coder = tokenizer_of("planner"), coder_of("planner")
    text = "next: go to  fridge_1\n"
    ids = tokenizer.encode(text, add_special_tokens=False).ids
    known, guessed = TokenText.of("", coder), TokenText.of("", coder)
    known.extend(ids, coder, text)
    guessed.extend(ids, coder)
    assert known.text == text and known.boundary(6) == (2, 6) and guessed.text == " next : go to fridge_1 \n"
    assert known.to_json() == TokenText.of(text, coder).to_json()
    other = TokenText.of("task\n", coder)
    other.extend([*ids[:-1], *ids], coder, "anything at all")  # tokens that say something else: all, or none
    assert other.boundary(len(other.text) - 1) == (2, 5) and other.boundary(20) == (len(other.ids), 20)

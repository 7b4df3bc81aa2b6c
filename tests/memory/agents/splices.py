"""Random texts, their edits, and the laws of splicing that hold for all of them."""

from __future__ import annotations

from itertools import pairwise, takewhile

from hypothesis import strategies as st

from memory.agents.text_match import TokenText, is_seam, match, resume
from tests.memory.agents.coders import coder_of, said, tokenizer_of

WORDS = [
    "mug", "mugs", "fridge", "fri", "the", "go to", "Fridge_1", "fridge_12", " ", "  ", "   ", "\t", "\n", "\n\n",
    "\r\n", ".", ":", "1", "42", "é", "e", "\u0301", "\u0323", "\u0335", "ﬁ", "\u1100", "\u1161", "🙂", "👩\u200d🚀",
    ",", "漢字", "ß", "İ", "\u00a0", "\u200b", "\u2581", "<s>", "<bos>", "\x00", "\ufffd",
]  # fmt: skip


def whole(name: str, text: str) -> str:
    """What the tokenizer itself makes of a text: the text, unless it drops spaces or composes characters."""
    return said(name, tokenizer_of(name).encode(text, add_special_tokens=False).ids)


texts = st.lists(st.sampled_from(WORDS), max_size=25).map("".join)
places = st.floats(0, 1)
edits = st.lists(st.tuples(st.sampled_from(["insert", "delete", "replace"]), places, texts), min_size=0, max_size=3)


def edited(text: str, changes: list[tuple[str, float, str]]) -> str:
    for change, place, piece in changes:
        at = round(place * len(text))
        gone = 0 if change == "insert" else max(1, len(piece))
        text = text[:at] + ("" if change == "delete" else piece) + text[at + gone :]
    return text


def pieces_of(text: str, cuts: list[float], name: str) -> list[str]:
    """The text in pieces that may meet."""
    seams = coder_of(name).seams
    inner = {at for at in (round(cut * len(text)) for cut in cuts) if is_seam(text, at, seams)}
    at = [0, *sorted(inner), len(text)]
    return [text[a:b] for a, b in pairwise(at)]


def in_pieces(text: str, cuts: list[float], name: str) -> TokenText:
    made = TokenText(coder_of(name).seams)
    for piece in pieces_of(text, cuts, name):
        made.append(piece, coder_of(name))
    return made


def common(one: str, other: str) -> int:
    """Length of the common beginning, character by character."""
    return len(list(takewhile(lambda pair: pair[0] == pair[1], zip(one, other, strict=False))))


def check_law(name: str, stored: TokenText, text: str, threshold: float) -> TokenText:
    """All that must be true of a match; returns the new prompt's tokens."""
    found = match(stored, text, threshold)
    told, kept = resume(stored, found, coder_of(name))
    both = common(stored.text, text)
    characters = len(text) - len(found.rest)
    assert found.matched == both and characters <= both, "no row is kept for a character that differs"
    assert told.text == text
    assert told.ids[: found.tokens] == stored.ids[: found.tokens]
    assert kept <= found.tokens and (kept < len(told.ids) or not told.ids), "a row is computed, for its logits"
    assert said(name, told.ids) == whole(name, text)
    assert said(name, stored.ids[: found.tokens]) == whole(name, text[:characters])
    if text.startswith(stored.text) and is_seam(text, len(stored.text), stored.seams):
        assert found.tokens == len(stored.ids), "nothing is lost where the new text goes on"
    assert (found.kind == "exact") == (stored.text == text)
    assert (found.kind == "miss") == (both < threshold * len(stored.text))
    return told

"""What a cache keeps is found in the text: the laws of splicing, over random edits and several kinds of tokenizers."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Callable
from functools import cache
from itertools import pairwise, takewhile
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers

from keep_agent.errors import ConfigError, DataError, ModelError
from memory.match import TokenizerCoder, TokenText, is_seam, match, match_tokens, resume, shared
from planners.checkpoint import BUNDLED
from planners.tokenizer import load_tokenizer

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerFast

SENTENCES = [
    "the mug is in the fridge and the fridge is open\n",
    "go to the fridge, then go to the countertop\n\n",
    "You: put the hot mug on the table.\nRobot: I put  the mug down.\n",
    "def go(place):\n    return place\n",
] * 5
WORDS = [
    "mug", "mugs", "fridge", "fri", "the", "go to", "Fridge_1", "fridge_12", " ", "  ", "   ", "\t", "\n", "\n\n",
    "\r\n", ".", ":", "1", "42", "é", "e", "\u0301", "\u0323", "\u0335", "ﬁ", "\u1100", "\u1161", "🙂", "👩\u200d🚀",
    ",", "漢字", "ß", "İ", "\u00a0", "\u200b", "\u2581", "<s>", "<bos>", "\x00", "\ufffd",
]  # fmt: skip


def byte_level(nfc: bool = False, trim: bool = False) -> Tokenizer:
    """As GPT-2's; ``nfc`` as Qwen's, ``trim`` as Llama 3's, whose offsets leave out spaces that belong to a token."""
    made = Tokenizer(models.BPE())
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    many = "".join(f" {chr(0x1F300 + 37 * i)} {chr(0x6F00 + 37 * i)}" for i in range(20))
    made.train_from_iterator(
        [*SENTENCES, many],  # where spaces merge with the first bytes of what comes next
        trainers.BpeTrainer(vocab_size=400, initial_alphabet=alphabet, special_tokens=["<s>"], show_progress=False),
    )
    if nfc:
        made.normalizer = normalizers.NFC()
    if trim:
        made.post_processor = processors.ByteLevel(trim_offsets=True)
    return made


def sentencepiece(kind: str = "bpe", scheme: str = "first") -> Tokenizer:
    """As Llama's: a space in front, taken away when decoding, and bytes for what has no token."""
    made = Tokenizer(models.BPE() if kind == "bpe" else models.Unigram())
    made.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme=scheme, split=kind != "bpe")
    special = ["<unk>", "<s>"]
    trainer = (
        trainers.BpeTrainer(vocab_size=150, special_tokens=special, show_progress=False)
        if kind == "bpe"
        else trainers.UnigramTrainer(vocab_size=90, special_tokens=special, unk_token="<unk>", show_progress=False)
    )
    made.train_from_iterator(SENTENCES, trainer)
    made.model = with_bytes(json.loads(made.to_str())["model"])
    made.add_special_tokens(["<s>"])
    plain = [decoders.Replace("\u2581", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    made.decoder = decoders.Sequence(plain)
    return made


def normalised() -> Tokenizer:
    """As Llama's of old: spaces are replaced, and one is put in front, before anything else; text is one long word."""
    made = sentencepiece()
    made.normalizer = normalizers.Sequence([normalizers.Prepend("\u2581"), normalizers.Replace(" ", "\u2581")])
    made.pre_tokenizer = pre_tokenizers.Sequence([])
    return made


def with_bytes(model: dict[str, Any]) -> models.Model:
    names = [f"<0x{byte:02X}>" for byte in range(256)]
    if model["type"] == "Unigram":
        scores = [(piece, score) for piece, score in model["vocab"]]
        return models.Unigram([*scores, *((name, -50.0) for name in names)], model["unk_id"], byte_fallback=True)
    vocab = model["vocab"] | {name: len(model["vocab"]) + place for place, name in enumerate(names)}
    merges = [tuple(pair) for pair in model["merges"]]
    return models.BPE(vocab, merges, unk_token="<unk>", byte_fallback=True, fuse_unk=True)


TOKENIZERS: dict[str, Callable[[], Tokenizer]] = {
    "planner": lambda: load_tokenizer(BUNDLED / "tokenizer.json"),
    "bytes": byte_level,
    "bytes-nfc": lambda: byte_level(nfc=True),
    "bytes-trim": lambda: byte_level(trim=True),
    "bpe-first": sentencepiece,
    "bpe-always": lambda: sentencepiece(scheme="always"),
    "normalised-always": normalised,
    "unigram-first": lambda: sentencepiece("unigram"),
    "unigram-always": lambda: sentencepiece("unigram", "always"),
}
LOSSLESS = [name for name in TOKENIZERS if name not in ("planner", "bytes-nfc")]
ALL = pytest.mark.parametrize("name", TOKENIZERS)
FIRST = pytest.mark.parametrize("name", ["planner", "bytes", "bpe-first"])


@cache
def tokenizer_of(name: str) -> Tokenizer:
    return TOKENIZERS[name]()


@cache
def coder_of(name: str) -> TokenizerCoder:
    return TokenizerCoder(tokenizer_of(name))


def said(name: str, ids: list[int]) -> str:
    """What tokens decode to, but for spaces behind special tokens: some tokenizers add one there inside a piece."""
    shown = tokenizer_of(name).decode(ids, skip_special_tokens=False)
    return re.sub("<s> +", "<s>", shown) if name.endswith("always") else shown


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


@ALL
@settings(max_examples=200, deadline=None)
@given(text=texts, cuts=st.lists(places, max_size=4), turns=st.lists(edits, min_size=1, max_size=3), threshold=places)
def test_spliced_tokens_say_the_new_text(
    name: str, text: str, cuts: list[float], turns: list[list[tuple[str, float, str]]], threshold: float
) -> None:
    stored = in_pieces(text, cuts, name)
    for changes in turns:
        text = edited(text, changes)
        stored = check_law(name, stored, text, threshold)


@ALL
@settings(max_examples=150, deadline=None)
@given(text=texts, more=texts, cuts=st.lists(places, max_size=4))
def test_a_text_that_goes_on_keeps_every_token(name: str, text: str, more: str, cuts: list[float]) -> None:
    stored = in_pieces(text, cuts, name)
    told = check_law(name, stored, text + more, 0.8)
    if coder_of(name).seams == "any":
        assert told.ids[: len(stored.ids)] == stored.ids


@pytest.mark.parametrize("name", LOSSLESS)
@settings(max_examples=150, deadline=None)
@given(text=texts, changes=edits)
def test_where_nothing_is_lost_the_law_is_about_the_text_itself(
    name: str, text: str, changes: list[tuple[str, float, str]]
) -> None:
    """Literal low lines of SentencePiece, and a special token after which it adds a space, are lost by themselves."""
    start = "x"  # a space at the very beginning is lost as well
    text, new = (start + each.replace("\u2581", "").replace("<s>", "") for each in (text, edited(text, changes)))
    stored = TokenText.of(text, coder_of(name))
    told, _ = resume(stored, match(stored, new, 0), coder_of(name))
    assert said(name, told.ids) == new


@settings(max_examples=150, deadline=None)
@given(text=texts, cuts=st.lists(places, max_size=4), changes=edits)
def test_tokens_without_spaces_are_those_of_the_whole_text(
    text: str, cuts: list[float], changes: list[tuple[str, float, str]]
) -> None:
    """Beside a space a word is the same token whatever comes next: planner-tiny loses nothing by splicing."""
    coder, stored, new = coder_of("planner"), in_pieces(text, cuts, "planner"), edited(text, changes)
    assert stored.ids == coder.encode(text, first=True).ids
    assert resume(stored, match(stored, new, 0), coder)[0].ids == coder.encode(new, first=True).ids


def test_where_tokens_may_meet_is_tried_out() -> None:
    seams = {name: coder_of(name).seams for name in TOKENIZERS}
    assert seams == dict.fromkeys(LOSSLESS, "any") | {"planner": "spaces", "bytes-nfc": "composed"}


# -- text that was generated -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", LOSSLESS)
@settings(max_examples=100, deadline=None)
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


@settings(max_examples=150, deadline=None)
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
    known, guessed = TokenText(coder.seams), TokenText(coder.seams)
    known.extend(ids, coder, text)
    guessed.extend(ids, coder)
    assert known.text == text and known.boundary(6) == (2, 6) and guessed.text == " next : go to fridge_1 \n"
    assert known.to_json() == TokenText.of(text, coder).to_json()
    other = TokenText.of("task\n", coder)
    other.extend([*ids[:-1], *ids], coder, "anything at all")  # tokens that say something else: all, or none
    assert other.boundary(len(other.text) - 1) == (2, 5) and other.boundary(20) == (len(other.ids), 20)


# -- the kinds of matches ----------------------------------------------------------------------------------------------


@FIRST
def test_an_equal_text_computes_its_last_token_again(name: str) -> None:
    stored = TokenText.of("go to the fridge\n", coder_of(name), start=(1,))
    found = match(stored, stored.text)
    told, kept = resume(stored, found, coder_of(name))
    assert (found.kind, found.rest, told.ids, kept) == ("exact", "", stored.ids, len(stored.ids) - 1)
    paper = match(stored, stored.text, exact="recompute")
    told, kept = resume(stored, paper, coder_of(name))
    assert (paper.kind, paper.kept, paper.rest) == ("exact", 0, stored.text)
    assert (told.ids, kept) == (stored.ids, 0)


@FIRST
def test_a_shorter_text_computes_its_last_token_again(name: str) -> None:
    """The cut falls on a token's end: nothing is left to tokenise, and yet logits are needed."""
    stored = TokenText.of("go to the fridge\n", coder_of(name))
    stored.append("go to the mug\n", coder_of(name))
    found = match(stored, "go to the fridge\n", threshold=0.5)
    told, kept = resume(stored, found, coder_of(name))
    assert (found.kind, found.rest) == ("diverge", "") and told.ids == stored.ids[: found.tokens]
    assert kept == found.kept == found.tokens - 1 > 0


def test_a_rest_without_tokens_computes_the_last_one_again() -> None:
    stored = TokenText.of("go to the fridge", coder_of("planner"))
    found = match(stored, "go to the fridge  ")
    told, kept = resume(stored, found, coder_of("planner"))
    assert (found.kind, found.rest, found.kept) == ("extend", "  ", 4) and (told.ids, kept) == (stored.ids, 3)


@FIRST
@pytest.mark.parametrize(("shown", "kind"), [(79, "miss"), (80, "diverge"), (100, "extend")])
def test_the_threshold_is_a_share_of_the_stored_text(name: str, shown: int, kind: str) -> None:
    text = "a b " * 25
    found = match(TokenText.of(text, coder_of(name), (1,)), text[:shown] + "\n" * 9)
    assert found.kind == kind and found.matched == shown
    if kind == "miss":
        assert found.tokens == found.kept == 0 and found.rest.startswith("a b ")


@pytest.mark.parametrize(("name", "rest"), [("planner", "frame"), ("bytes", " frame"), ("bpe-first", " the frame")])
def test_a_token_that_straddles_is_tokenised_again(name: str, rest: str) -> None:
    stored = TokenText.of("the mug is in the fridge", coder_of(name))
    found = match(stored, "the mug is in the frame")
    assert (found.kind, found.matched) == ("diverge", 20) and found.rest == rest
    assert said(name, stored.ids[: found.kept]) == "the mug is in the frame".removesuffix(rest).removesuffix(" ")


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
    assert match(empty, "").kind == "exact" and match(empty, "").kept == 0
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


# -- against tokens ----------------------------------------------------------------------------------------------------


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
        assert found.kind == "extend" and found.kept == len(stored.ids)
        by_text, by_tokens = by_text + found.kept, by_tokens + match_tokens(stored.ids, new)
        stored, _ = resume(stored, found, coder)
    assert said(name, stored.ids) == said(name, new) and stored.ids != new
    assert match_tokens(stored.ids, new) <= len(anew), "nothing behind the first border would have been found again"
    assert by_text > 2 * by_tokens


def test_token_level_match_counts_equal_ids() -> None:
    assert match_tokens([1, 2, 3], (1, 2, 4, 5)) == 2
    assert match_tokens([], [1]) == 0
    assert match_tokens([1, 2], [1, 2]) == 2


@settings(max_examples=200, deadline=None)
@given(one=texts, other=texts, both=texts)
def test_shared_is_the_common_beginning(one: str, other: str, both: str) -> None:
    assert shared(one, other) == common(one, other)
    assert shared(both + one, both + other) == common(both + one, both + other)


# -- files, errors, speed ----------------------------------------------------------------------------------------------


@ALL
def test_it_survives_a_file(name: str) -> None:
    stored = in_pieces("".join(SENTENCES[:3]) + "🙂 é\n", [0.3, 0.7], name)
    back = TokenText.from_json(json.loads(json.dumps(stored.to_json())))
    assert back.to_json() == stored.to_json()
    assert match(back, stored.text + "more") == match(stored, stored.text + "more")
    back.append("more", coder_of(name))
    assert back.ids[: len(stored.ids)] == stored.ids and back.text == stored.text + "more"


@pytest.mark.parametrize(
    "change",
    [
        {"ids": [1]}, {"ends": [3, 2]}, {"ends": [1, 9]}, {"ends": [-1, 2]}, {"start": 3}, {"start": 1}, {"text": None},
        {"ids": [1, "2"]}, {"ids": None}, {"seams": "none"}, {"start": True}, {"start": -1},
    ],
)  # fmt: skip
def test_a_damaged_file_is_refused(change: dict[str, object]) -> None:
    good = {"text": "ab", "ids": [1, 2], "ends": [1, 2], "start": 0, "seams": "any"}
    assert TokenText.from_json(good).to_json() == good
    with pytest.raises(DataError, match="remove"):
        TokenText.from_json(good | change)


def test_what_cannot_be_spliced_is_refused() -> None:
    words = Tokenizer(models.WordLevel({"<unk>": 0}, unk_token="<unk>"))  # any text is one unknown word
    with pytest.raises(ModelError, match="cannot continue a text"):
        TokenizerCoder(words)

    class Slow:
        """Has no offsets."""

    with pytest.raises(ModelError, match="Slow does not say which characters"):
        TokenizerCoder(Slow())  # type: ignore[arg-type]


def test_a_piece_that_merges_with_all_before_it_is_refused() -> None:
    greedy = sentencepiece()
    greedy.add_tokens([f"{anchor}mug" for anchor in ("\n", "0", ";", "q")])
    with pytest.raises(ModelError, match="merges 'mug'"):
        TokenizerCoder(greedy).encode("mug")


def test_bad_settings_and_bad_text_are_named() -> None:
    stored = TokenText.of("the mug", coder_of("bytes"))
    with pytest.raises(ConfigError, match="threshold=1.2"):
        match(stored, "the", threshold=1.2)
    with pytest.raises(ConfigError, match="exact='keep'"):
        match(stored, "the", exact="keep")  # type: ignore[arg-type]
    with pytest.raises(DataError, match="no valid Unicode"):
        stored.append("a\ud83d", coder_of("bytes"))


def test_tokenizers_of_transformers_will_do(chat: PreTrainedTokenizerFast) -> None:
    coder = TokenizerCoder(chat)
    stored = TokenText.of("<|im_start|>user\nfind a mug<|im_end|>\n", coder)
    assert stored.ids == chat.encode(stored.text, add_special_tokens=False) and coder.seams == "any"
    told, kept = resume(stored, match(stored, stored.text + "<|im_start|>Robot: 1."), coder)
    assert chat.decode(told.ids) == told.text and kept == len(stored.ids)


def test_a_tokenizer_that_cuts_and_pads_is_left_alone() -> None:
    tokenizer = byte_level()
    tokenizer.enable_truncation(4)
    tokenizer.enable_padding(length=8)
    coder = TokenizerCoder(tokenizer)
    assert said("bytes", coder.encode("the mug is in the fridge").ids) == "the mug is in the fridge"
    assert tokenizer.truncation["max_length"] == 4 and tokenizer.padding["length"] == 8


def seconds(work: Callable[[], object], times: int = 5) -> float:
    """The best of some runs: others use the machine, too."""
    taken = []
    for _ in range(times):
        begin = time.perf_counter()
        work()
        taken.append(time.perf_counter() - begin)
    return min(taken)


def long_text(characters: int) -> TokenText:
    text = ("the mug is in the fridge\n" * (characters // 25 + 1))[:characters]
    return TokenText.of(text, coder_of("bytes"))


@pytest.mark.parametrize("tail", ["", "and more\n"])
@pytest.mark.parametrize("shown", [1.0, 0.9])
def test_a_hundred_thousand_characters_are_compared_in_no_time(shown: float, tail: str) -> None:
    stored = long_text(100_000)
    text = stored.text[: round(shown * 100_000)] + tail + "x" * round((1 - shown) * 100_000)
    assert seconds(lambda: match(stored, text), 20) < 0.005  # it takes some 0.02 to 0.1 ms


def test_a_text_grows_at_the_same_pace() -> None:
    """Four times as many pieces take about four times as long, not sixteen."""
    coder = coder_of("bytes")
    piece, ids = "the mug\n", coder.encode("the mug\n").ids

    def grow(turns: int) -> None:
        grown = TokenText("any")
        for _ in range(turns):
            grown.append(piece, coder)
            grown.extend(ids, coder)

    assert seconds(lambda: grow(4000), 3) < 9 * seconds(lambda: grow(1000), 3)

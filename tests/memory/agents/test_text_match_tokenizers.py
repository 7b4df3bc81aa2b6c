"""Tokenizers: those that can be spliced, and the places where their tokens may meet."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from tokenizers import Tokenizer, models

from keep_agent.errors import ModelError
from memory.agents.text_match import TokenizerCoder, TokenText, match, resume
from tests.memory.agents.coders import LOSSLESS, TOKENIZERS, byte_level, coder_of, said, sentencepiece

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerFast


def test_seams_are_chosen_by_trial() -> None:
    seams = {name: coder_of(name).seams for name in TOKENIZERS}
    assert seams == dict.fromkeys(LOSSLESS, "any") | {"planner": "spaces", "bytes-nfc": "composed"}


def test_tokenizers_that_cannot_be_spliced_are_refused() -> None:
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

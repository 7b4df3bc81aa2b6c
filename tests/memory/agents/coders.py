"""Small tokenizers of several kinds, trained in the test."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from functools import cache
from typing import Any

import pytest
from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers

from memory.agents.text_match import TokenizerCoder
from planners.bundled import BUNDLED
from planners.tiny.tokenizer import load_tokenizer

SENTENCES = [
    "the mug is in the fridge and the fridge is open\n",
    "go to the fridge, then go to the countertop\n\n",
    "You: put the hot mug on the table.\nRobot: I put  the mug down.\n",
    "def go(place):\n    return place\n",
] * 5


def byte_level(nfc: bool = False, trim: bool = False) -> Tokenizer:
    """Byte-level BPE like GPT-2; ``nfc`` like Qwen, ``trim`` like Llama 3 (token offsets exclude spaces)."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    many = "".join(f" {chr(0x1F300 + 37 * i)} {chr(0x6F00 + 37 * i)}" for i in range(20))
    tokenizer.train_from_iterator(
        [*SENTENCES, many],  # spaces merge with the first bytes of the next character
        trainers.BpeTrainer(vocab_size=400, initial_alphabet=alphabet, special_tokens=["<s>"], show_progress=False),
    )
    if nfc:
        tokenizer.normalizer = normalizers.NFC()
    if trim:
        tokenizer.post_processor = processors.ByteLevel(trim_offsets=True)
    return tokenizer


def sentencepiece(kind: str = "bpe", scheme: str = "first") -> Tokenizer:
    """SentencePiece like Llama: a space is prepended, and removed by the decoder; unknown characters become bytes."""
    tokenizer = Tokenizer(models.BPE() if kind == "bpe" else models.Unigram())
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme=scheme, split=kind != "bpe")
    options = {"special_tokens": ["<unk>", "<s>"], "show_progress": False}
    if kind == "bpe":
        trainer = trainers.BpeTrainer(vocab_size=150, **options)
    else:
        trainer = trainers.UnigramTrainer(vocab_size=90, unk_token="<unk>", **options)
    tokenizer.train_from_iterator(SENTENCES, trainer)
    tokenizer.model = with_bytes(json.loads(tokenizer.to_str())["model"])
    tokenizer.add_special_tokens(["<s>"])
    plain = [decoders.Replace("\u2581", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    tokenizer.decoder = decoders.Sequence(plain)
    return tokenizer


def normalised() -> Tokenizer:
    """SentencePiece like Llama 1: a normalizer prepends a space and replaces spaces; the text is one long word."""
    tokenizer = sentencepiece()
    tokenizer.normalizer = normalizers.Sequence([normalizers.Prepend("\u2581"), normalizers.Replace(" ", "\u2581")])
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([])
    return tokenizer


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


def decode(name: str, ids: list[int]) -> str:
    """Decode tokens, without the spaces that some tokenizers add after a special token inside a piece."""
    text = tokenizer_of(name).decode(ids, skip_special_tokens=False)
    return re.sub("<s> +", "<s>", text) if name.endswith("always") else text

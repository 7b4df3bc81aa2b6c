"""Tokenizer of planner-tiny: words without spaces; entity names and the newline are single tokens.

Spaces are not encoded, so that a word has the same id at every position, which look-ups by content need.
Every line ends with a newline token, so that lines can be encoded separately and joined by ids.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Collection, Iterable
from pathlib import Path
from string import ascii_lowercase, digits

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers

from keep_agent.errors import ConfigError

BOS, PAD, UNK, NEWLINE = "<bos>", "<pad>", "<unk>", "\n"
PREFIX = "##"  # prefix of a piece that continues a word
MIN_COUNT = 30  # minimum occurrences of a word in a corpus to become a token
_WORD = re.compile(r"(?<![a-z0-9_])[a-z]+(?![a-z0-9_])")
INNER_PIECES = [PREFIX + letter for letter in sorted(f"{ascii_lowercase}{digits}_")]  # one character each


def train_tokenizer(texts: Iterable[str], entities: Iterable[str], vocab_size: int = 4096) -> Tokenizer:
    """Train BPE on ``texts`` (lower-cased words) with every name in ``entities`` as one token.

    The result is deterministic: token ids break ties between merges. ``INNER_PIECES`` get their ids before the
    training, since the trainer would number them in the random order of a hash map.
    """
    tokenizer = Tokenizer(models.BPE(unk_token=UNK, continuing_subword_prefix=PREFIX))
    tokenizer.normalizer = normalizers.Sequence([normalizers.NFKC(), normalizers.Lowercase()])
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(r"[ \t]+"), "removed"),
            pre_tokenizers.Split(Regex(r"\n|[a-z]+_[0-9]+|[a-z]+|[0-9]|[^a-z0-9\s]"), "isolated"),
        ]
    )
    tokenizer.decoder = decoders.WordPiece(prefix=PREFIX, cleanup=False)
    names = sorted(set(entities))
    minimum = len(names) + 128  # the alphabet and some words
    if vocab_size < minimum:
        raise ConfigError(f"vocab={vocab_size} has no room for {len(names)} entity names; use {minimum} or more")
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size - len(names),
        special_tokens=[PAD, BOS, UNK, NEWLINE, *INNER_PIECES],
        continuing_subword_prefix=PREFIX,
        show_progress=False,
        min_frequency=2,
        initial_alphabet=[chr(c) for c in range(33, 127) if not chr(c).isupper()],
    )
    tokenizer.train_from_iterator(texts, trainer)
    tokenizer = _without_special(tokenizer, INNER_PIECES)
    tokenizer.add_tokens([AddedToken(name, single_word=True, normalized=False) for name in names])
    return tokenizer


def extend_tokenizer(tokenizer: Tokenizer, texts: Iterable[str], entities: Iterable[str]) -> dict[str, list[int]]:
    """Add a token for each entity, and each word with `MIN_COUNT` occurrences in ``texts``, if several pieces spell it.

    Existing ids are kept, so that weights can be trained further. Returns the ids of the pieces of each new token.
    """
    words = Counter(word for text in texts for word in _WORD.findall(text.lower()))
    frequent = sorted(word for word, count in words.items() if count >= MIN_COUNT)
    pieces = {name: tokenizer.encode(name).ids for name in (*frequent, *sorted(set(entities)))}
    new = {name: ids for name, ids in pieces.items() if len(ids) > 1}
    tokenizer.add_tokens([AddedToken(name, single_word=True, normalized=False) for name in new])
    return new


def _without_special(tokenizer: Tokenizer, tokens: Collection[str]) -> Tokenizer:
    """Return the tokenizer with ``tokens`` as ordinary word pieces instead of special added tokens."""
    content = json.loads(tokenizer.to_str())
    content["added_tokens"] = [token for token in content["added_tokens"] if token["content"] not in tokens]
    return Tokenizer.from_str(json.dumps(content))


def load_tokenizer(path: Path) -> Tokenizer:
    return Tokenizer.from_file(str(path))

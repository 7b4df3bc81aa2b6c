from __future__ import annotations

import random

from tokenizers import Tokenizer

from planners.tiny.tokenizer import BOS, INNER_PIECES, NEWLINE, PAD, UNK, train_tokenizer

SPECIAL = [PAD, BOS, UNK, NEWLINE]


def make_tokenizer() -> Tokenizer:
    """Train on few words, so that many merges are equally good."""
    rng = random.Random(0)
    words = ["".join(rng.choices("abcdefghij_1", k=rng.randrange(2, 9))) for _ in range(80)]
    texts = [" ".join(rng.choices(words, k=8)) + f" mug_{number} 12 é #\n" for number in range(80)]
    return train_tokenizer(texts, ["mug_1", "cabinet_1"], 400)


def test_the_same_texts_give_the_same_tokenizer() -> None:
    assert len({make_tokenizer().to_str() for _ in range(5)}) == 1


def test_pieces_of_words_are_no_added_tokens() -> None:
    tokenizer = make_tokenizer()
    added = [token.content for _, token in sorted(tokenizer.get_added_tokens_decoder().items())]
    assert added[:4] == SPECIAL and set(added[4:]) == {"mug_1", "cabinet_1"}
    assert [tokenizer.token_to_id(part) for part in INNER_PIECES] == list(range(4, 4 + len(INNER_PIECES)))
    assert tokenizer.encode("##a").tokens == ["#", "#", "a"]
    assert tokenizer.encode("cabinet_1 mug_1\n").tokens == ["cabinet_1", "mug_1", "\n"]
    assert tokenizer.decode(tokenizer.encode("zqx open mug_1").ids) == "zqx open mug_1"

"""Answer scores, compared with values computed by hand."""

from __future__ import annotations

import math
import sys

import pytest

from eval.chat.answer_scores import abstains, bert_scores, bleu1, normalise, similarity, token_f1
from keep_agent.errors import ConfigError
from memory.segments.sentence_encoder import HashedNgrams


def test_articles_case_and_punctuation_do_not_count() -> None:
    assert normalise("The cat’s “hat”, an Apple; theatre!") == ["cats", "hat", "apple", "theatre"]


@pytest.mark.parametrize(
    ("answer", "gold", "f1"),
    [
        ("the red cup", "a red mug", 1 / 2),  # precision 1 of 2, recall 1 of 2
        ("red red red", "red cup", 2 / 5),  # precision 1 of 3, recall 1 of 2
        ("7 May 2023", "May 7, 2023", 1.0),  # order does not count
        ("in the drawer, I think", "drawer", 2 / 5),  # precision 1 of 4, recall 1 of 1
        ("sofa", "drawer", 0.0),
        ("", "drawer", 0.0),
        ("the", "", 1.0),
    ],
)
def test_f1(answer: str, gold: str, f1: float) -> None:
    assert token_f1(answer, gold) == pytest.approx(f1)
    assert token_f1(gold, answer) == pytest.approx(f1)


@pytest.mark.parametrize(
    ("answer", "gold", "bleu"),
    [
        ("red cup on table", "red cup", 2 / 4),  # longer than the gold: no penalty
        ("red cup", "small red cup", math.exp(1 - 3 / 2)),
        ("red red", "red cup", 1 / 2),  # the second red is clipped
        ("cup", "red cup on table", math.exp(1 - 4)),
        ("red cup", "red cup", 1.0),
        ("", "red cup", 0.0),
        ("red cup", "", 0.0),
    ],
)
def test_bleu1(answer: str, gold: str, bleu: float) -> None:
    assert bleu1(answer, gold) == pytest.approx(bleu)


def test_similarity_is_a_cosine() -> None:
    encoder = HashedNgrams()
    same, near, far = (similarity(text, "the spare key", encoder) for text in ("the spare key", "spare keys", "Oslo"))
    assert same == pytest.approx(1.0) and same > near > far
    assert similarity(" ", "the spare key", encoder) == 0.0


@pytest.mark.parametrize("answer", [
    "No information.", "no information available", "I don't know", "I don’t know.", "They do not say.",
    "It is not mentioned in the conversations", "This cannot be determined", "Unknown.",
])  # fmt: skip
def test_abstentions_are_detected(answer: str) -> None:
    assert abstains(answer)


@pytest.mark.parametrize("answer", ["", "drawer", "She knows it from the information desk", "not in the drawer", "No"])
def test_other_answers_are_no_abstentions(answer: str) -> None:
    assert not abstains(answer)


def test_the_error_for_missing_bertscore_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "bert_score", None)
    with pytest.raises(ConfigError, match=r"keep-agent\[bertscore\]"):
        bert_scores(["a"], ["b"], "roberta-large")


def test_bertscore_of_empty_answers_loads_no_model(monkeypatch: pytest.MonkeyPatch) -> None:
    def score(*_: object, **__: object) -> None:
        raise AssertionError("empty answers must not be scored")

    monkeypatch.setitem(sys.modules, "bert_score", type(sys)("bert_score"))
    monkeypatch.setattr(sys.modules["bert_score"], "score", score, raising=False)
    assert bert_scores(["", " "], ["a", "b"], "roberta-large") == [0.0, 0.0]

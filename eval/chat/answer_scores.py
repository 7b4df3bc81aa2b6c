"""Scores of short answers: token F1, BLEU-1, embedding similarity, BERTScore, and detection of abstention.

F1 and BLEU-1 compare words normalised as in SQuAD (arXiv 1606.05250). Embedding similarity is a cosine and may be
negative; the other scores are from 0 to 1. An answer abstains if it says that the information is missing.
"""

from __future__ import annotations

import math
import re
import string
from collections import Counter
from collections.abc import Sequence

from keep_agent.errors import ConfigError
from memory.segments.sentence_encoder import SentenceEncoder

_PUNCTUATION = str.maketrans("", "", string.punctuation + "’‘“”–—…")
_ARTICLES = re.compile(r"\b(a|an|the)\b")
_ABSTAINS = re.compile(
    r"\b(no information|not (mentioned|known|stated|specified|said|available|discussed|provided)|unknown|unanswerable"
    r"|(dont|do not|doesnt|does not|cannot|cant) (know|say|mention|tell|answer|be (answered|determined)))\b"
)


def normalise(text: str) -> list[str]:
    """Return the words of ``text`` in lower case, without punctuation and articles."""
    return _ARTICLES.sub(" ", text.lower().translate(_PUNCTUATION)).split()


def token_f1(answer: str, gold: str) -> float:
    """Return the F1 score of the words, counting repetitions; 1 if both texts are empty, 0 if only one is."""
    words, gold_words = normalise(answer), normalise(gold)
    if not words or not gold_words:
        return float(words == gold_words)
    common = sum((Counter(words) & Counter(gold_words)).values())
    return 2 * common / (len(words) + len(gold_words))


def bleu1(answer: str, gold: str) -> float:
    """Return clipped unigram precision times the brevity penalty min(1, exp(1 - gold words / answer words))."""
    words, gold_words = normalise(answer), normalise(gold)
    if not words or not gold_words:
        return float(words == gold_words)
    precision = sum((Counter(words) & Counter(gold_words)).values()) / len(words)
    return precision * min(1.0, math.exp(1 - len(gold_words) / len(words)))


def similarity(answer: str, gold: str, encoder: SentenceEncoder) -> float:
    """Return the cosine of the two texts' sentence embeddings; 0 for an empty answer."""
    if not answer.strip():
        return 0.0
    first, second = encoder.encode([answer, gold])
    return float(first @ second)


def abstains(answer: str) -> bool:
    """Return whether the answer says that the conversations do not contain the information."""
    text = " ".join(answer.lower().translate(_PUNCTUATION).split())
    return _ABSTAINS.search(text) is not None


def check_bertscore(model: str) -> None:
    """Raise ConfigError unless the package bert-score is installed."""
    try:
        import bert_score  # noqa: F401
    except ImportError as error:
        raise ConfigError(
            f"bertscore={model} needs the extra 'bertscore': pip install 'keep-agent[bertscore]', or use bertscore=null"
        ) from error


def bert_scores(answers: Sequence[str], golds: Sequence[str], model: str) -> list[float]:
    """Return BERTScore's F1 (arXiv 1904.09675, not rescaled) of each answer; 0 for an empty answer."""
    check_bertscore(model)
    from bert_score import score

    nonempty = [number for number, answer in enumerate(answers) if answer.strip()]
    scores = [0.0] * len(answers)
    if nonempty:
        try:
            _, _, f1 = score([answers[i] for i in nonempty], [golds[i] for i in nonempty], model_type=model)
        except (OSError, KeyError) as error:  # bert-score does not know the model, or its default layer
            raise ConfigError(f"bertscore={model} cannot be loaded ({error}); choose another model") from error
        for number, value in zip(nonempty, f1.tolist(), strict=True):
            scores[number] = value
    return scores

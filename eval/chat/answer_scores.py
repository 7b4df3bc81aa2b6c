"""How good a short answer is: token F1, BLEU-1, similarity of embeddings, BERTScore, and whether it abstains.

Text is compared as SQuAD does (arXiv 1606.05250): lower case, without punctuation and English articles. All figures
are from 0 to 1, but cosines, which may be negative.
"""

from __future__ import annotations

import math
import re
import string
from collections import Counter
from collections.abc import Sequence
from typing import TYPE_CHECKING

from keep_agent.errors import ConfigError

if TYPE_CHECKING:
    from memory.segments.sentence_encoder import SentenceEncoder

_PUNCTUATION = str.maketrans("", "", string.punctuation + "’‘“”–—…")
_ARTICLES = re.compile(r"\b(a|an|the)\b")
_ABSTAINS = re.compile(
    r"\b(no information|not (mentioned|known|stated|specified|said|available|discussed|provided)|unknown|unanswerable"
    r"|(dont|do not|doesnt|does not|cannot|cant) (know|say|mention|tell|answer|be (answered|determined)))\b"
)


def normalise(text: str) -> list[str]:
    """The words that count."""
    return _ARTICLES.sub(" ", text.lower().translate(_PUNCTUATION)).split()


def token_f1(answer: str, gold: str) -> float:
    """Harmonic mean of precision and recall of words, repetitions counted. Two empty texts agree."""
    found, wanted = normalise(answer), normalise(gold)
    if not found or not wanted:
        return float(found == wanted)
    common = sum((Counter(found) & Counter(wanted)).values())
    return 2 * common / (len(found) + len(wanted))


def bleu1(answer: str, gold: str) -> float:
    """Clipped unigram precision times the brevity penalty exp(1 - gold words / answer words), at most 1."""
    found, wanted = normalise(answer), normalise(gold)
    if not found or not wanted:
        return float(found == wanted)
    precision = sum((Counter(found) & Counter(wanted)).values()) / len(found)
    return precision * min(1.0, math.exp(1 - len(wanted) / len(found)))


def similarity(answer: str, gold: str, encoder: SentenceEncoder) -> float:
    """Cosine of the two texts' sentence embeddings; 0 for an empty answer."""
    if not answer.strip():
        return 0.0
    first, second = encoder.encode([answer, gold])
    return float(first @ second)


def abstains(answer: str) -> bool:
    """Does it say that the conversations do not tell?"""
    text = " ".join(answer.lower().translate(_PUNCTUATION).split())
    return _ABSTAINS.search(text) is not None


def check_bertscore(model: str) -> None:
    """Raises ConfigError unless the package bert-score is there."""
    try:
        import bert_score  # noqa: F401
    except ImportError as error:
        raise ConfigError(
            f"bertscore={model} needs the extra 'bertscore': pip install 'keep-agent[bertscore]', or leave it null"
        ) from error


def bert_scores(answers: Sequence[str], golds: Sequence[str], model: str) -> list[float]:
    """BERTScore F1 (arXiv 1904.09675) of every answer under ``model``, not rescaled; 0 for an empty answer.

    :raises ConfigError: without the package bert-score, or if it cannot load the model.
    """
    check_bertscore(model)
    from bert_score import score

    asked = [number for number, answer in enumerate(answers) if answer.strip()]
    found = [0.0] * len(answers)
    if asked:
        try:
            _, _, f1 = score([answers[i] for i in asked], [golds[i] for i in asked], model_type=model)
        except (OSError, KeyError) as error:  # no such model; a model whose layer is not known
            raise ConfigError(
                f"bertscore={model} cannot be loaded ({error}); name one that bert-score knows"
            ) from error
        for number, value in zip(asked, f1.tolist(), strict=True):
            found[number] = value
    return found

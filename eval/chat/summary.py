"""Summary of answered questions; docs/conversations.md defines its numbers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from eval.chat.conversation import ADVERSARIAL
from eval.chat.rows import AnswerRow
from eval.chat.time_split import PARTS
from eval.common.intervals import mean_interval, share_interval
from eval.common.metrics import costs, spread

TEXT_METRICS = ("f1", "bleu1", "similarity", "bertscore")
Bert = Mapping[int, float]  # BERTScore by row index; empty if disabled


def summarize(rows: Sequence[AnswerRow], bert: Bert) -> dict[str, Any]:
    """Return quality by category, for all answerable and for all adversarial questions, and cost over all questions."""
    categories = dict.fromkeys(row.category for row in rows)
    answerable = [row for row in rows if row.category != ADVERSARIAL]
    numbers = [row.numbers for row in rows]
    return {
        "questions": len(rows),
        "conversations": len({row.conversation for row in rows}),
        "per_category": {name: quality([row for row in rows if row.category == name], bert) for name in categories},
        "answerable": quality(answerable, bert),
        "adversarial": quality([row for row in rows if row.category == ADVERSARIAL], bert),
        "f1_interval": mean_interval(_by_conversation(answerable, "f1"), within=(0.0, 1.0)),
        "prefill_tokens": spread(row.prefill_tokens for row in rows),
        "encoded_tokens": spread(row.encoded_tokens for row in rows),
        "kv_length": spread(row.kv_length for row in rows),
        "answer_tokens": _mean([row.numbers.score_tokens for row in rows if not row.choice]),
        "evidence_recall": _mean([row.evidence for row in rows if row.evidence is not None]),
        "reading_tokens": _mean([row.reading.tokens for row in rows]),
        "reading_ms": _mean([row.reading.ms for row in rows]),
        "split_ms": _split(rows),
        **costs(numbers),
    }


def quality(rows: Sequence[AnswerRow], bert: Bert) -> dict[str, Any]:
    """Return means over the rows that have a value, None without any.

    ``average`` is over the text metrics; ``accuracy`` is over multiple choice and adversarial questions, and its
    interval is clustered by conversation (None for a single conversation).
    """
    texts = [row for row in rows if row.scores.f1 is not None]
    metrics = {name: _mean([value for row in texts if (value := _text_metric(row, name, bert)) is not None])
               for name in TEXT_METRICS}  # fmt: skip
    free = [row for row in rows if not row.choice]
    return {
        "questions": len(rows),
        **metrics,
        "average": _mean([value for value in metrics.values() if value is not None]),
        "accuracy": _mean([row.scores.correct for row in rows if row.scores.correct is not None]),
        "accuracy_interval": share_interval(_by_conversation(rows, "correct")),
        "abstained": _mean([row.scores.abstained for row in free]),
    }


def _text_metric(row: AnswerRow, name: str, bert: Bert) -> float | None:
    return bert.get(row.index) if name == "bertscore" else getattr(row.scores, name)


def _mean(values: Sequence[float]) -> float | None:
    return sum(values) / len(values) if values else None


def _by_conversation(rows: Sequence[AnswerRow], score: str) -> dict[str, list[float]]:
    samples: dict[str, list[float]] = {}
    for row in rows:
        if (value := getattr(row.scores, score)) is not None:
            samples.setdefault(row.conversation, []).append(value)
    return samples


def _split(rows: Sequence[AnswerRow]) -> dict[str, float] | None:
    """Return the mean milliseconds of each part; None without measurements."""
    splits = [row.split for row in rows if row.split is not None]
    if not splits:
        return None
    return {part: sum(getattr(split, name) for split in splits) / len(splits) for part, name in PARTS.items()}

"""Summary of answered questions and its tables; docs/conversations.md defines the numbers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

from rich.table import Table

from eval.chat.conversation import ADVERSARIAL
from eval.chat.reader import SPLIT_PARTS
from eval.chat.rows import AnswerRow
from eval.common.intervals import FEW_CLUSTERS, mean_interval, share_interval
from eval.common.metrics import costs, spread
from eval.common.tables import SPREAD, bounds, number, percent, share, table_of

TEXT_METRICS = ("f1", "bleu1", "similarity", "bertscore")
BertScores = Mapping[int, float]  # BERTScore by row index; empty if disabled


def summarize(rows: Sequence[AnswerRow], bert: BertScores) -> dict[str, Any]:
    """Return quality (by category, of all answerable, of all adversarial questions) and the cost of all questions."""
    categories = dict.fromkeys(row.category for row in rows)
    answerable = [row for row in rows if row.category != ADVERSARIAL]
    splits = [row.split for row in rows if row.split is not None]
    split_ms = {part: _mean([getattr(split, name) for split in splits]) for part, name in SPLIT_PARTS.items()}
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
        "split_ms": split_ms if splits else None,
        **costs([row.numbers for row in rows]),
    }


def quality(rows: Sequence[AnswerRow], bert: BertScores) -> dict[str, Any]:
    """Return the mean of each score over the rows that have it, or None; the interval's clusters are conversations."""
    texts = [{**asdict(row.scores), "bertscore": bert.get(row.index)} for row in rows if row.scores.f1 is not None]
    metrics = {name: _mean([text[name] for text in texts if text[name] is not None]) for name in TEXT_METRICS}
    free = [row for row in rows if not row.choice]
    return {
        "questions": len(rows),
        **metrics,
        "average": _mean([value for value in metrics.values() if value is not None]),
        "accuracy": _mean([row.scores.correct for row in rows if row.scores.correct is not None]),
        "accuracy_interval": share_interval(_by_conversation(rows, "correct")),
        "abstained": _mean([row.scores.abstained for row in free]),
    }


def _mean(values: Sequence[float]) -> float | None:
    return sum(values) / len(values) if values else None


def _by_conversation(rows: Sequence[AnswerRow], score: str) -> dict[str, list[float]]:
    samples: dict[str, list[float]] = {}
    for row in rows:
        if (value := getattr(row.scores, score)) is not None:
            samples.setdefault(row.conversation, []).append(value)
    return samples


HEADINGS = {"f1": "F1", "bleu1": "BLEU-1", "similarity": "similarity", "bertscore": "BERTScore"}
ROWS = ("prefill_tokens", "encoded_tokens", "reading_tokens", "kv_length", "answer_tokens")


def quality_table(summary: Mapping[str, Any], title: str) -> Table:
    """Return the table of quality by category, with a last row for all answerable questions."""
    metrics = [name for name in TEXT_METRICS if name != "bertscore" or summary["answerable"][name] is not None]
    interval = bounds(summary["f1_interval"], 100, 1)
    unclear = ", too few conversations to tell" if summary["conversations"] < FEW_CLUSTERS else ""
    caption = f"95 % interval of F1, answerable:{interval}{unclear}" if interval else None

    def row(name: str, quality: Mapping[str, Any]) -> list[str]:
        texts = (percent(quality[metric]) for metric in (*metrics, "average"))
        accuracy = share(quality["accuracy"], quality["accuracy_interval"])
        return [name, str(quality["questions"]), *texts, accuracy, percent(quality["abstained"])]

    headings = ["questions", *(HEADINGS[name] for name in metrics), "average", "accuracy %", "abstained %"]
    categories = (row(name, quality) for name, quality in summary["per_category"].items())
    rows = [*categories, None, row("answerable", summary["answerable"])]
    return table_of(title, ["category"], headings, rows, caption)


def tokens_table(summary: Mapping[str, Any]) -> Table:
    """Return the table of tokens per question: rows computed, rows in the prompt's cache, tokens of the answer."""
    spreads = {name: summary[name] if isinstance(summary[name], Mapping) else {"mean": summary[name]} for name in ROWS}
    rows = ([name, *(number(s[key], 1) if key in s else "" for key in SPREAD)] for name, s in spreads.items())
    recall = ["evidence_recall", "", "", number(summary["evidence_recall"])]
    return table_of("tokens of a question", [""], SPREAD, [*rows, None, recall])


def split_table(summary: Mapping[str, Any]) -> Table | None:
    """Return the table of an answer's time by part; None if no times were split (profile=false)."""
    if summary["split_ms"] is None:
        return None
    total = sum(summary["split_ms"].values())
    rows = ([part, number(ms, 2), percent(ms / total)] for part, ms in summary["split_ms"].items())
    return table_of("latency split of an answer", ["part"], ["mean ms", "%"], rows)

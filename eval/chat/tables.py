"""Tables of a question-answering run."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rich.table import Table

from eval.chat.summary import TEXT_METRICS
from eval.common.intervals import FEW
from eval.common.tables import bounds, number, percent, share

HEADINGS = {"f1": "F1", "bleu1": "BLEU-1", "similarity": "similarity", "bertscore": "BERTScore"}
ROWS = ("prefill_tokens", "encoded_tokens", "reading_tokens", "kv_length", "answer_tokens")


def quality_table(summary: Mapping[str, Any], title: str) -> Table:
    """Return quality by category, then over all answerable questions."""
    metrics = [name for name in TEXT_METRICS if name != "bertscore" or summary["answerable"][name] is not None]
    interval = bounds(summary["f1_interval"], 100, 1)
    unclear = ", too few conversations to tell" if summary["conversations"] < FEW else ""
    table = Table(title=title, caption=f"95 % interval of F1, answerable:{interval}{unclear}" if interval else None)
    table.add_column("category", no_wrap=True)
    for heading in ("questions", *(HEADINGS[name] for name in metrics), "average", "accuracy %", "abstained %"):
        table.add_column(heading, justify="right", no_wrap=True)
    for name, quality in [*summary["per_category"].items(), ("answerable", summary["answerable"])]:
        if name == "answerable":
            table.add_section()
        texts = (percent(quality[metric]) for metric in (*metrics, "average"))
        accuracy = share(quality["accuracy"], quality["accuracy_interval"])
        table.add_row(name, str(quality["questions"]), *texts, accuracy, percent(quality["abstained"]))
    return table


def tokens_table(summary: Mapping[str, Any]) -> Table:
    """Return the numbers of rows per question."""
    table = Table(title="tokens of a question")
    table.add_column("")
    for heading in ("p50", "p95", "mean"):
        table.add_column(heading, justify="right")
    for name in ROWS:
        value = summary[name]
        spread = value if isinstance(value, Mapping) else {"mean": value}
        table.add_row(name, *(number(spread[key], 1) if key in spread else "" for key in ("p50", "p95", "mean")))
    table.add_section()
    table.add_row("evidence_recall", "", "", number(summary["evidence_recall"]))
    return table


def split_table(summary: Mapping[str, Any]) -> Table | None:
    """Return the time of an answer by part; None without measurements."""
    if summary["split_ms"] is None:
        return None
    total = sum(summary["split_ms"].values())
    table = Table(title="latency split of an answer")
    for heading in ("part", "mean ms", "%"):
        table.add_column(heading, justify="left" if heading == "part" else "right")
    for part, spent in summary["split_ms"].items():
        table.add_row(part, number(spent, 2), percent(spent / total))
    return table

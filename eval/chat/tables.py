"""Tables of a run that answers questions."""

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
    """Quality by category, then over all questions that have an answer."""
    metrics = [name for name in TEXT_METRICS if name != "bertscore" or summary["answerable"][name] is not None]
    interval = bounds(summary["f1_interval"], 100, 1)
    unclear = ", too few conversations to tell" if summary["conversations"] < FEW else ""
    table = Table(title=title, caption=f"95 % interval of F1, answerable:{interval}{unclear}" if interval else None)
    table.add_column("category", no_wrap=True)
    for heading in ("questions", *(HEADINGS[name] for name in metrics), "average", "accuracy %", "abstained %"):
        table.add_column(heading, justify="right", no_wrap=True)
    for name, found in [*summary["per_category"].items(), ("answerable", summary["answerable"])]:
        if name == "answerable":
            table.add_section()
        texts = (percent(found[metric]) for metric in (*metrics, "average"))
        right = share(found["accuracy"], found["accuracy_interval"])
        table.add_row(name, str(found["questions"]), *texts, right, percent(found["abstained"]))
    return table


def tokens_table(summary: Mapping[str, Any]) -> Table:
    """Rows per question."""
    table = Table(title="tokens of a question")
    table.add_column("")
    for heading in ("p50", "p95", "mean"):
        table.add_column(heading, justify="right")
    for name in ROWS:
        found = summary[name]
        spread = found if isinstance(found, Mapping) else {"mean": found}
        table.add_row(name, *(number(spread[key], 1) if key in spread else "" for key in ("p50", "p95", "mean")))
    table.add_section()
    table.add_row("evidence_recall", "", "", number(summary["evidence_recall"]))
    return table


def split_table(summary: Mapping[str, Any]) -> Table | None:
    """Where the time of an answer goes; None if nobody measured."""
    if summary["split_ms"] is None:
        return None
    total = sum(summary["split_ms"].values())
    table = Table(title="latency split of an answer")
    for heading in ("part", "mean ms", "%"):
        table.add_column(heading, justify="left" if heading == "part" else "right")
    for part, spent in summary["split_ms"].items():
        table.add_row(part, number(spent, 2), percent(spent / total))
    return table

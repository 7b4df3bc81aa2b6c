"""Runs that answered the same questions, side by side: ``python -m eval.chat.compare RUN [RUN ...]``.

Only questions that every run has answered count; the first run is what the others are divided by.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from rich.table import Table

from eval.chat.rows import ANSWERS, AnswerFolder, AnswerRow
from eval.chat.summary import summarize
from eval.cli import guarded
from eval.tables import make_console, number, percent
from keep_agent.errors import DataError
from keep_agent.runfolder import read_config

HEADINGS = ("F1", "average", "accuracy %", "abstained %", "recall %", "prefill", "x fewer", "encoded", "KV", "TTFT ms")


def find_answers(paths: Sequence[Path]) -> list[Path]:
    """Run folders at or below ``paths``. Raises DataError where there is none."""
    found: list[Path] = []
    for path in paths:
        below = sorted(file.parent for file in path.rglob(ANSWERS))
        if not below:
            raise DataError(f"no answered questions under {path}: give a folder that holds {ANSWERS}")
        found += below
    return list(dict.fromkeys(found))


def name_of(path: Path) -> str:
    """A run by its planner, its memory if that is another's, the retrieval and the budget."""
    config = read_config(path)
    planner, memory = config["planner"]["name"], config["memory"]
    method = planner if memory["name"] == planner else f"{planner}, memory={memory['name']}"
    chosen = memory["retrieval"]["_target_"].rpartition(".")[2].lower()
    return f"{method}, {chosen}" + ("" if chosen == "all" else f" {config['prompt']['budget']}")


def common(runs: Sequence[Sequence[AnswerRow]]) -> list[list[AnswerRow]]:
    """The rows of questions that all runs have answered. Raises DataError if there is none."""
    shared = set.intersection(*({(row.id, row.question) for row in rows} for rows in runs))
    if not shared:
        raise DataError("these runs have no question in common; compare runs of the same data and seed")
    return [[row for row in rows if (row.id, row.question) in shared] for rows in runs]


def compare_table(paths: Sequence[Path]) -> Table:
    runs = common([AnswerFolder.read(path) for path in paths])
    summaries = [summarize(rows, {}) for rows in runs]
    first = summaries[0]["prefill_tokens"]["mean"]
    table = Table(title=f"{len(runs[0])} questions that all runs have answered")
    table.add_column("run", no_wrap=True)
    for heading in HEADINGS:
        table.add_column(heading, justify="right")
    for path, found in zip(paths, summaries, strict=True):
        text, prefill = found["answerable"], found["prefill_tokens"]["mean"]
        quality = (text["f1"], text["average"], text["accuracy"], found["adversarial"]["abstained"])
        table.add_row(
            name_of(path),
            *(percent(value) for value in (*quality, found["evidence_recall"])),
            number(prefill, 1),
            number(first / prefill, 1),
            number(found["encoded_tokens"]["mean"], 1),
            number(found["kv_length"]["mean"], 1),
            number(found["ttft_ms"]["p50"], 1),
        )
    return table


def main() -> None:
    described = argparse.ArgumentParser(prog="python -m eval.chat.compare", description=__doc__)
    described.add_argument("runs", nargs="+", type=Path, metavar="RUN", help="run folders, or folders that hold some")
    arguments = described.parse_args()
    sys.exit(guarded(lambda: make_console().print(compare_table(find_answers(arguments.runs)))))


if __name__ == "__main__":
    main()

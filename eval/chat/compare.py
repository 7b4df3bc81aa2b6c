"""Runs that answered the same questions, side by side: ``python -m eval.chat.compare RUN [RUN ...]``.

Only questions that every run has answered count; the first run is what the others are held against. Intervals are of
95 % with conversations as clusters (docs/evaluation.md#intervals); "12+ 9-": 12 answers are better, 9 worse.
"""

from __future__ import annotations

import argparse
import sys
from collections import defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rich.table import Table
from rich.text import Text

from eval.chat.rows import ANSWERS, AnswerFolder, AnswerRow
from eval.chat.summary import summarize
from eval.common.intervals import Difference, paired_difference
from eval.common.tables import difference, number, percent
from eval.compare import distinct_names, unequal_note, unequal_settings
from keep_agent.console import make_console
from keep_agent.errors import DataError, check_once
from keep_agent.guard import guarded
from keep_agent.rollout.run_folder import read_config

SETTING = (  # what a fair comparison shares; the budget and how it is filled are methods here
    "model.", "weights", "engine.", "unit", "choices", "prompt.instruction", "prompt.encoder", "prompt.start",
    "memory.grouping.", "planner.max_new_tokens", "eval.seed", "eval.threads", "profile",
)  # fmt: skip
NAMING = ("planner.name", "memory.name", "memory.retrieval._target_", "prompt.budget", "profile")  # of a run
QUALITY = ("F1", "F1 gain", "average", "accuracy %", "abstained %", "recall %")
COST = ("prefill", "x fewer", "encoded", "KV", "TTFT ms")


def find_answers(paths: Sequence[Path]) -> list[Path]:
    """Run folders at or below ``paths``. Raises DataError where there is none."""
    found: list[Path] = []
    for path in paths:
        below = sorted(file.parent for file in path.rglob(ANSWERS))
        if not below:
            raise DataError(f"no answered questions under {path}: give a folder that holds {ANSWERS}")
        found += below
    return list(dict.fromkeys(path.resolve() for path in found))


def name_of(config: Mapping[str, Any]) -> str:
    """A run by its planner, its memory if that is another's, the retrieval and the budget."""
    planner, memory = config["planner"]["name"], config["memory"]
    method = planner if memory["name"] == planner else f"{planner}, memory={memory['name']}"
    chosen = memory["retrieval"]["_target_"].rpartition(".")[2].lower()
    return f"{method}, {chosen}" + ("" if chosen == "all" else f" {config['prompt']['budget']}")


def common(runs: Sequence[Sequence[AnswerRow]]) -> list[list[AnswerRow]]:
    """The rows of questions that all runs have answered. Raises DataError if there is none."""
    shared = set.intersection(*({_key(row) for row in rows} for rows in runs))
    if not shared:
        raise DataError("these runs have no question in common; compare runs of the same data and seed")
    return [[row for row in rows if _key(row) in shared] for rows in runs]


def _answers(path: Path) -> list[AnswerRow]:
    """Raises DataError for two of one id, which nothing tells apart."""
    rows = AnswerFolder.read(path)
    check_once([row.id for row in rows], f"{path}: question", "answer them anew, from data without repetitions")
    return rows


def _key(row: AnswerRow) -> tuple[str, str, str]:
    """Conversations made up from other seeds have the same ids, and ask the same of what is answered otherwise."""
    return row.id, row.question, row.gold


def f1_difference(run: Sequence[AnswerRow], base: Sequence[AnswerRow]) -> Difference | None:
    """Over questions, of F1 here less there, paired."""
    there = {_key(row): row.scores.f1 for row in base}
    samples: dict[str, list[float]] = defaultdict(list)
    for row in run:
        here, before = row.scores.f1, there[_key(row)]
        if here is not None and before is not None:
            samples[row.conversation].append(here - before)
    return paired_difference(samples)


def compare_tables(paths: Sequence[Path]) -> list[Table | Text]:
    """Quality and cost, a row per run; a note if the runs differ in what is no method."""
    runs = common([_answers(path) for path in paths])
    quality = _table(f"{len(runs[0])} questions that all runs have answered", QUALITY)
    cost = _table("cost of an answer", COST)
    first = summarize(runs[0], {})["prefill_tokens"]["mean"]
    configs = [read_config(path, NAMING) for path in paths]
    names = distinct_names([name_of(config) for config in configs], paths)
    for name, config, rows in zip(names, configs, runs, strict=True):
        found = summarize(rows, {})
        text, prefill = found["answerable"], found["prefill_tokens"]["mean"]
        others = text["average"], text["accuracy"], found["adversarial"]["abstained"], found["evidence_recall"]
        gain = difference(None if rows is runs[0] else f1_difference(rows, runs[0]))
        quality.add_row(name, percent(text["f1"]), gain, *(percent(value) for value in others))
        lengths = found["encoded_tokens"]["mean"], found["kv_length"]["mean"]
        ttft = None if config["profile"] else found["ttft_ms"]["p50"]  # the split slows everything down
        costs = prefill, first / prefill, *lengths, ttft
        cost.add_row(name, *(number(value, 1) for value in costs))
    return [quality, cost, *unequal_note(sorted(unequal_settings(SETTING, configs)))]


def _table(title: str, headings: Sequence[str]) -> Table:
    table = Table(title=title)
    table.add_column("run", no_wrap=True)
    for heading in headings:
        table.add_column(heading, justify="right", no_wrap=True)
    return table


def main() -> None:
    described = argparse.ArgumentParser(prog="python -m eval.chat.compare", description=__doc__)
    described.add_argument("runs", nargs="+", type=Path, metavar="RUN", help="run folders, or folders that hold some")
    arguments = described.parse_args()
    sys.exit(guarded(lambda: make_console().print(*compare_tables(find_answers(arguments.runs)))))


if __name__ == "__main__":
    main()

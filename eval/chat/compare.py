"""Comparison of runs that answered the same questions: ``python -m eval.chat.compare RUN [RUN ...]``.

Only questions answered by every run count. "12+ 9-" means that 12 answers have a higher F1 than in the first run, and 9
a lower F1. Intervals cover 95 % and are clustered by conversation (docs/evaluation.md#intervals).
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
from eval.common.tables import difference, number, percent, table_of
from eval.compare import distinct_names, unequal_note, unequal_settings
from keep_agent.console import make_console
from keep_agent.errors import DataError, check_once
from keep_agent.guard import guarded
from keep_agent.rollout.run_folder import read_config

EQUAL_KEYS = (  # settings that must be equal in a fair comparison; prompt.budget and the retrieval may differ
    "model.", "weights", "engine.", "unit", "choices", "prompt.instruction", "prompt.encoder", "prompt.start",
    "memory.grouping.", "planner.max_new_tokens", "eval.seed", "eval.threads", "profile",
)  # fmt: skip
NAMING = ("planner.name", "memory.name", "memory.retrieval._target_", "prompt.budget", "profile")  # for the tables
QUALITY = ("F1", "F1 gain", "average", "accuracy %", "abstained %", "recall %")
COST = ("prefill", "x fewer", "encoded", "KV", "TTFT ms")


def find_answers(paths: Sequence[Path]) -> list[Path]:
    """Find the run folders at or below each of ``paths``. Raises DataError for a path without run folders."""
    runs = {path: sorted(file.parent for file in path.rglob(ANSWERS)) for path in paths}
    if empty := [path for path, below in runs.items() if not below]:
        raise DataError(f"no answered questions under {empty[0]}: give a folder that contains {ANSWERS}")
    return list(dict.fromkeys(path.resolve() for below in runs.values() for path in below))


def name_of(config: Mapping[str, Any]) -> str:
    """Name a run by planner, memory method (if its name differs), retrieval and, except for ``all``, segment budget."""
    planner, memory = config["planner"]["name"], config["memory"]
    method = planner if memory["name"] == planner else f"{planner}, memory={memory['name']}"
    retrieval = memory["retrieval"]["_target_"].rpartition(".")[2].lower()
    return f"{method}, {retrieval}" + ("" if retrieval == "all" else f" {config['prompt']['budget']}")


def common_rows(runs: Sequence[Sequence[AnswerRow]]) -> list[list[AnswerRow]]:
    """Return each run's rows for the questions answered by all runs. Raises DataError if there are none."""
    shared = set.intersection(*({_key(row) for row in rows} for rows in runs))
    if not shared:
        raise DataError("these runs have no question in common; compare runs of the same data and seed")
    return [[row for row in rows if _key(row) in shared] for rows in runs]


def _key(row: AnswerRow) -> tuple[str, str, str]:
    """Return a question's key: id, text and reference answer. Data generated from another seed have the same ids."""
    return row.id, row.question, row.gold


def f1_difference(run: Sequence[AnswerRow], base: Sequence[AnswerRow]) -> Difference | None:
    """Return the paired difference of F1 over questions, ``run`` minus ``base``."""
    base_f1 = {_key(row): row.scores.f1 for row in base}
    samples: dict[str, list[float]] = defaultdict(list)
    for row in run:
        f1, reference = row.scores.f1, base_f1[_key(row)]
        if f1 is not None and reference is not None:
            samples[row.conversation].append(f1 - reference)
    return paired_difference(samples)


def compare_tables(paths: Sequence[Path]) -> list[Table | Text]:
    """Return tables of quality and cost with a row per run, and a note if the runs differ in more than the method."""
    runs = [AnswerFolder.read(path) for path in paths]
    for path, rows in zip(paths, runs, strict=True):
        check_once([row.id for row in rows], f"{path}: question", "answer them again, from data without repetitions")
    runs = common_rows(runs)
    quality, cost = [], []
    first = summarize(runs[0], {})["prefill_tokens"]["mean"]
    configs = [read_config(path, NAMING) for path in paths]
    names = distinct_names([name_of(config) for config in configs], paths)
    for name, config, rows in zip(names, configs, runs, strict=True):
        summary = summarize(rows, {})
        text, prefill = summary["answerable"], summary["prefill_tokens"]["mean"]
        shares = text["average"], text["accuracy"], summary["adversarial"]["abstained"], summary["evidence_recall"]
        gain = difference(None if rows is runs[0] else f1_difference(rows, runs[0]))
        quality.append([name, percent(text["f1"]), gain, *map(percent, shares)])
        lengths = summary["encoded_tokens"]["mean"], summary["kv_length"]["mean"]
        ttft = None if config["profile"] else summary["ttft_ms"]["p50"]  # profiling slows the run, so no time is shown
        costs = prefill, first / prefill, *lengths, ttft
        cost.append([name, *(number(value, 1) for value in costs)])
    title = f"{len(runs[0])} questions that all runs have answered"
    tables = table_of(title, ["run"], QUALITY, quality), table_of("cost of an answer", ["run"], COST, cost)
    return [*tables, *unequal_note(sorted(unequal_settings(EQUAL_KEYS, configs)))]


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m eval.chat.compare", description=__doc__)
    parser.add_argument("runs", nargs="+", type=Path, metavar="RUN", help="run folders, or folders with run folders")
    arguments = parser.parse_args()
    sys.exit(guarded(lambda: make_console().print(*compare_tables(find_answers(arguments.runs)))))


if __name__ == "__main__":
    main()

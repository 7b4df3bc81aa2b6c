"""Run of probes: answers of all methods, printed as tables and written to a run folder."""

from __future__ import annotations

import argparse
import json
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict
from itertools import product
from typing import TYPE_CHECKING, Any

from omegaconf import DictConfig
from rich.console import Console
from rich.progress import Progress

from eval.recall.cells import Cell, ProbeAnswer, ProbeRow, RecallFolder
from eval.recall.layer_signals import NeedleRanks, measure_ranks, rank_figure, rank_table
from eval.recall.prober import Prober
from eval.recall.ruler import TASKS
from eval.recall.ruler_probes import Ruler, TextFormat
from eval.recall.scores import ACCURACIES, accuracy_figure, accuracy_table, mark_table, scores
from keep_agent.config.planner_factory import format_of, make_model, make_tokenizer
from memory.engine.transformers.engine import TransformersEngine
from memory.files.atomic import write_atomic
from planners.training.recall_probes import KINDS

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase


def run_probes(
    arguments: argparse.Namespace, cells: Sequence[Cell], configs: Mapping[str, DictConfig],
    settings: Mapping[str, Any], run: RecallFolder | None, console: Console,
) -> None:  # fmt: skip
    """Compute the answers that ``run`` lacks; without ``run`` compute all, and with --out save them in a new run."""
    first = next(iter(configs.values()))
    with ExitStack() as stack, TransformersEngine(make_model(first.model, arguments.seed)) as engine:
        tokenizer = make_tokenizer(first.model, engine.model)
        probers = make_probers(engine, tokenizer, configs, arguments)
        for cell in cells:
            probers[cell.kind].check(cell, 0, arguments.seed)
        if run:
            run.check_weights(engine.info.model_key)
        elif arguments.out:
            saved = {**settings, "weights": engine.info.model_key}
            run = stack.enter_context(RecallFolder.create(arguments.out, saved))
        answers = ask(probers, cells, arguments, run, console)
        ranks: list[NeedleRanks] = []
        if arguments.ranks:
            lines = format_of(first.prompt, engine.model, tokenizer)
            ranks = measure_ranks(engine, lines, cells, arguments.ranks, arguments.seed)
    table_scores = scores(answers, list(configs))
    for kind, cue in product(arguments.kinds, arguments.cues):
        console.print(accuracy_table(table_scores, kind, cue))
    console.print(mark_table(table_scores, arguments.mark))
    if ranks:
        console.print(rank_table(ranks))
    if arguments.out:
        options = {key: value for key, value in vars(arguments).items() if key != "out"}
        keys = {"question_line": "named", "answer_line": "holds"}  # keys of ranks in the file
        rows = [{keys.get(key, key): value for key, value in asdict(rank).items()} for rank in ranks]
        record = {"settings": options, "scores": list(map(asdict, table_scores)), "ranks": rows}
        write_atomic(arguments.out / "recall.json", json.dumps(record, indent=2) + "\n")
        accuracy_figure(table_scores, arguments.out / ACCURACIES)
        if ranks:
            rank_figure(ranks, arguments.out / "ranks.png")
        console.print(f"written to {arguments.out}")


def make_probers(
    engine: TransformersEngine, tokenizer: PreTrainedTokenizerBase, configs: Mapping[str, DictConfig],
    arguments: argparse.Namespace,
) -> dict[str, Prober]:  # fmt: skip
    """Return probers by kind; each of the two families of probes has its own prompt format."""
    first, quiet, probers = next(iter(configs.values())), arguments.quiet, {}
    if set(arguments.kinds) & set(KINDS):
        lines = format_of(first.prompt, engine.model, tokenizer)
        prober = Prober(engine, lines, configs, quiet, filler_lines=arguments.filler)
        probers |= dict.fromkeys(KINDS, prober)
    if set(arguments.kinds) & set(TASKS):
        ruler = Ruler(TextFormat(tokenizer, first.prompt.start), arguments.segment_tokens)
        probers |= dict.fromkeys(TASKS, Prober(engine, ruler.format, configs, quiet, ruler.make))
    return probers


def ask(
    probers: Mapping[str, Prober], cells: Sequence[Cell], arguments: argparse.Namespace, run: RecallFolder | None,
    console: Console,
) -> list[ProbeAnswer]:  # fmt: skip
    """Compute the answers that ``run`` lacks, and append them to it; return all answers in the order of probes."""
    rows: list[ProbeRow] = [] if run is None else list(run.results)
    total = len(cells) * arguments.trials * len(arguments.methods)
    with Progress(console=console, transient=True) as bar:
        line = bar.add_task("answers", total=total, completed=len(rows))
        try:
            for row in _answers(probers, cells, arguments, run.finished if run else frozenset()):
                if run:
                    run.commit(row)
                rows.append(row)
                bar.advance(line)
        except KeyboardInterrupt:
            bar.stop()
            if run:
                console.print(f"interrupted after {len(rows)} answers; the same command resumes the run")
            raise
    return [row.answer for row in sorted(rows, key=lambda row: row.index)]


def _answers(
    probers: Mapping[str, Prober], cells: Sequence[Cell], arguments: argparse.Namespace, known: Collection[int]
) -> Iterator[ProbeRow]:
    """Yield the answers to every probe of every cell, except those at the indices ``known``; ``probers`` by kind."""
    for number, (cell, trial) in enumerate(product(cells, range(arguments.trials))):
        prober = probers[cell.kind]
        indices = {name: number * len(prober.methods) + place for place, name in enumerate(prober.methods)}
        if due := {name: index for name, index in indices.items() if index not in known}:
            for answer in prober.ask(cell, trial, arguments.seed, due):
                yield ProbeRow(due[answer.method], answer)

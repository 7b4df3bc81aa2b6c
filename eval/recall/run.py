"""Probes put to a model: the answers of all methods, shown as tables and written into a folder."""

from __future__ import annotations

import argparse
import json
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict
from itertools import product
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.progress import Progress

from eval.recall.answer_log import RecallFolder, Row, ask_all
from eval.recall.cells import Answer, Cell
from eval.recall.layer_signals import Ranks, measure_ranks, rank_figure, rank_table
from eval.recall.prober import Prober
from eval.recall.ruler import TASKS
from eval.recall.ruler_probes import Ruler
from eval.recall.scores import ACCURACIES, Score, accuracy_figure, accuracy_table, mark_table, scores
from eval.recall.wording import TextFormat
from keep_agent.config.planner_factory import make_model, make_tokenizer
from memory.engine.base import Engine
from memory.engine.transformers.engine import TransformersEngine
from memory.files.atomic import write_atomic
from planners.prompts.formats import make_format
from planners.training.recall_probes import KINDS

if TYPE_CHECKING:
    from omegaconf import DictConfig
    from transformers import PreTrainedTokenizerBase

    from planners.prompts.formats import Format


def run_probes(
    arguments: argparse.Namespace,
    cells: Sequence[Cell],
    configs: Mapping[str, DictConfig],
    settings: Mapping[str, Any],
    run: RecallFolder | None,
    console: Console,
) -> None:
    """Ask what ``run`` does not hold yet, then show and write everything.

    :param settings: of the run folder that is begun where there is none yet
    """
    first = next(iter(configs.values()))
    with ExitStack() as claimed, TransformersEngine(make_model(first.model, arguments.seed)) as engine:
        tokenizer = make_tokenizer(first.model, engine.model)
        probers = make_probers(engine, tokenizer, configs, arguments)
        for cell in cells:
            probers[cell.kind].check(cell, arguments.seed)
        if run:
            run.check_weights(engine.info.model_key)
        elif arguments.out:
            saved = {**settings, "weights": engine.info.model_key}
            run = claimed.enter_context(RecallFolder.create(arguments.out, saved))
        answers = ask(probers, cells, arguments, run, console)
        ranks: list[Ranks] = []
        if arguments.ranks:
            format = line_format(tokenizer, first.prompt)
            ranks = measure_ranks(engine, format, cells, arguments.ranks, arguments.seed)
    found = scores(answers, list(configs))
    for kind, cue in product(arguments.kinds, arguments.cues):
        console.print(accuracy_table(found, kind, cue))
    console.print(mark_table(found, arguments.mark))
    if ranks:
        console.print(rank_table(ranks))
    if arguments.out:
        _write(arguments, found, ranks)
        console.print(f"written to {arguments.out}")


def line_format(tokenizer: PreTrainedTokenizerBase, prompt: DictConfig) -> Format:
    """How lines in planner-tiny's language become tokens."""
    return make_format(prompt.format, tokenizer, (), prompt.start)


def make_probers(
    engine: Engine,
    tokenizer: PreTrainedTokenizerBase,
    configs: Mapping[str, DictConfig],
    arguments: argparse.Namespace,
) -> dict[str, Prober]:
    """By kind; the two families of probes have prompt formats of their own."""
    prompt, found = next(iter(configs.values())).prompt, {}
    if set(arguments.kinds) & set(KINDS):
        format = line_format(tokenizer, prompt)
        found |= dict.fromkeys(KINDS, Prober(engine, format, configs, arguments.quiet, aside=arguments.filler))
    if set(arguments.kinds) & set(TASKS):
        ruler = Ruler(TextFormat(tokenizer, prompt.start), arguments.segment_tokens)
        found |= dict.fromkeys(TASKS, Prober(engine, ruler.format, configs, arguments.quiet, ruler.make))
    return found


def ask(
    probers: Mapping[str, Prober],
    cells: Sequence[Cell],
    arguments: argparse.Namespace,
    run: RecallFolder | None,
    console: Console,
) -> list[Answer]:
    """The answers of ``run`` and those that are still due, which it gets one by one; in the order of the probes."""
    rows: list[Row] = [] if run is None else list(run.results)
    asked = ask_all(probers, cells, arguments.trials, arguments.seed, {row.index for row in rows})
    total = len(cells) * arguments.trials * len(arguments.methods)
    with Progress(console=console, transient=True) as bar:
        line = bar.add_task("answers", total=total, completed=len(rows))
        try:
            for row in asked:
                if run:
                    run.commit(row)
                rows.append(row)
                bar.advance(line)
        except KeyboardInterrupt:
            bar.stop()
            if run:
                console.print(f"interrupted after {len(rows)} answers; the same command goes on")
            raise
    return [row.answer for row in sorted(rows, key=lambda row: row.index)]


def _write(arguments: argparse.Namespace, found: Sequence[Score], ranks: Sequence[Ranks]) -> None:
    settings = {key: value for key, value in vars(arguments).items() if key != "out"}
    record: dict[str, Any] = {"settings": settings, "scores": [asdict(one) for one in found]}
    record["ranks"] = [asdict(one) for one in ranks]
    write_atomic(arguments.out / "recall.json", json.dumps(record, indent=2) + "\n")
    accuracy_figure(found, arguments.out / ACCURACIES)
    if ranks:
        rank_figure(ranks, arguments.out / "ranks.png")

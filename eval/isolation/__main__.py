"""Study of lines that were encoded apart, which are hard to repair: ``python -m eval.isolation [KEY=VALUE ...]``.

A memory of independent lines stands behind a context line; each question names one line. The lines' keys and values
were computed apart: after nothing, after the BOS token, after the context line (also at the line's positions in the
prompt: position), after this line and a paragraph of prose, after this line and N examples of such lines (a preamble,
with which every prompt then begins), behind N neighbours, or in the prompt. The command compares them with those of
full recomputation, row by row and layer by layer, and shows where the query's attention goes. Then it answers the
questions with these rows, after several repairs: nothing, the line with the answer, the first rows of every line, and
the lines to which the query attends most, by the mean or by the maximum over heads and query rows. Differences are
paired by question; they compare with the first encoding, and with the first repair.
"""

from __future__ import annotations

import argparse
import random
import sys
from collections.abc import Mapping
from contextlib import ExitStack, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Any

from omegaconf import DictConfig, OmegaConf
from rich.console import Console
from rich.progress import Progress

from eval.common.options import command_parser
from eval.common.plots import check_figure
from eval.common.resume import use_threads
from eval.common.tables import show
from eval.common.variants import check_distinct, check_overrides, name_list
from eval.isolation.texts import EXAMPLES, MOST_LINES, TEXTS
from keep_agent.config.compose import compose_settings
from keep_agent.config.model_names import expand_model
from keep_agent.config.settings import check_settings
from keep_agent.console import make_console
from keep_agent.errors import ConfigError
from keep_agent.guard import guarded

if TYPE_CHECKING:
    from eval.isolation.rows import EncodingRow, IsolationFolder

FIGURE = "isolation.svg"
ENCODINGS = "context,nothing,bos,position,prose,examples 4,examples 8,behind 1,behind 4,behind 8,prompt"
REPAIRS = "nothing,first 1,first 4,named,random 4,mean 4,peak 2,peak 4,peak 8,full"
KEYS = ("model", "eval.threads", "eval.seed")


def parser() -> argparse.ArgumentParser:
    p = command_parser(__doc__, "keep-eval-isolation")
    add = p.add_argument
    kinds = "needles: magic numbers, for any model; house: sentences about a house, for planner-smol"
    out = "folder for the answers and the figure; the same command resumes the run"
    add("overrides", nargs="*", metavar="KEY=VALUE", help=f"overrides of {', '.join(KEYS)}")
    add("--texts", choices=TEXTS, default="needles", help=kinds)
    add("--lines", type=int, default=40, help="lines of a memory (default 40)")
    add("--memories", type=int, default=10, help="memories; intervals are clustered by memory (default 10)")
    add("--questions", type=int, default=4, help="questions about each memory, one line each (default 4)")
    add("--encodings", type=name_list, default=name_list(ENCODINGS), metavar="A,B", help=f"default {ENCODINGS}")
    add("--repairs", type=name_list, default=name_list(REPAIRS), metavar="A,B", help=f"default {REPAIRS}")
    add("--markdown", action="store_true", help="print the tables in Markdown")
    add("--out", type=Path, metavar="FOLDER", help=out)
    return p


def check_options(arguments: argparse.Namespace) -> None:
    for option, least in (("lines", 12), ("memories", 1), ("questions", 1)):
        if getattr(arguments, option) < least:
            raise ConfigError(f"--{option} {getattr(arguments, option)} is too few; use {least} or more")
    if arguments.lines > MOST_LINES:
        raise ConfigError(f"--lines {arguments.lines} is too many; use up to {MOST_LINES}")
    known = {"encodings": ("nothing", "bos", "context", "position", "prose", "examples N", "behind N", "prompt"),
             "repairs": ("nothing", "full", "named", "random N", "first K", "peak N", "mean N")}  # fmt: skip
    for option, names in known.items():
        check_distinct(option, getattr(arguments, option))
        if not getattr(arguments, option):
            raise ConfigError(f"--{option} is empty; choose from {', '.join(names)}")
        plain = {name for name in names if " " not in name}
        numbered = {name.split()[0] for name in names} - plain
        for value in getattr(arguments, option):
            kind, _, number = value.partition(" ")
            if value not in plain and not (kind in numbered and number.isdecimal() and int(number)):
                raise ConfigError(f"--{option} {value!r} is unknown; choose from {', '.join(names)}")
            most = {"examples": EXAMPLES, **dict.fromkeys(("random", "peak", "mean"), arguments.lines)}.get(kind)
            if most and int(number) > most:
                raise ConfigError(f"--{option} {value!r} names more lines than there are; use up to {most}")
    check_overrides(arguments.overrides, KEYS, {})


def report(arguments: argparse.Namespace, console: Console) -> None:
    check_options(arguments)
    overrides = ["memory=full_reuse", *expand_model(arguments.overrides)]
    config = compose_settings("alfred", overrides)
    check_settings(config)
    if arguments.out:
        check_figure(arguments.out / FIGURE)
    use_threads(config)
    study(arguments, config, console)


def study(arguments: argparse.Namespace, config: DictConfig, console: Console) -> None:
    """Measure what the run in ``--out`` lacks, print the tables, and write the figure."""
    from eval.isolation.report import Findings  # lazy: it loads torch
    from eval.isolation.rows import IsolationFolder

    settings = settings_of(arguments, config)
    run = IsolationFolder.find(arguments.out, settings) if arguments.out else None
    try:
        with run or nullcontext():
            findings = Findings(measure(arguments, config, settings, run, console), arguments.repairs)
    except KeyboardInterrupt:
        if arguments.out:
            console.print("interrupted; the same command resumes the run")
        raise
    for table in findings.tables():
        show(table, arguments.markdown, console)
    if arguments.out:
        findings.draw(arguments.out / FIGURE)
        console.print(f"written to {arguments.out}")


def settings_of(arguments: argparse.Namespace, config: DictConfig) -> dict[str, Any]:
    """Return everything that affects the answers: options, and the model's config and the seed."""
    options = {
        key: getattr(arguments, key) for key in ("texts", "lines", "memories", "questions", "encodings", "repairs")
    }
    model = OmegaConf.to_container(config.model, resolve=True)
    return {"options": options, "configs": {"model": model, "seed": config.eval.seed}}


def measure(
    arguments: argparse.Namespace, config: DictConfig, settings: Mapping[str, Any], run: IsolationFolder | None,
    console: Console,
) -> list[EncodingRow]:  # fmt: skip
    """Measure the encodings that ``run`` lacks, and append them to it; return all, memory by memory."""
    from eval.isolation.measure import PREAMBLE, Isolation
    from eval.isolation.rows import EncodingRow, IsolationFolder
    from keep_agent.config.planner_factory import make_model, make_tokenizer
    from memory.engine.transformers.engine import TransformersEngine
    from planners.prompts.formats import Splicer

    seed, rows = config.eval.seed, list(run.results) if run else []
    known = run.finished if run else frozenset()
    examples = max(int(name.split()[1]) if name.startswith(PREAMBLE) else 0 for name in arguments.encodings)
    with ExitStack() as stack:
        engine = stack.enter_context(TransformersEngine(make_model(config.model, seed)))
        if run:
            run.check_weights(engine.info.model_key)
        elif arguments.out:
            run = IsolationFolder.create(arguments.out, {**settings, "weights": engine.info.model_key})
            stack.enter_context(run)
        tokenizer = make_tokenizer(config.model, engine.model)
        bos = [] if tokenizer.bos_token_id is None else [tokenizer.bos_token_id]
        bar = stack.enter_context(Progress(console=console, transient=True))
        names = arguments.encodings
        task = bar.add_task("encodings", total=arguments.memories * len(names), completed=len(rows))
        for number in range(arguments.memories):
            todo = [(index, name) for index, name in enumerate(names, number * len(names)) if index not in known]
            if not todo:
                continue
            memory = TEXTS[arguments.texts](arguments.lines, random.Random(f"{seed}/{number}"))
            questions = memory.draw(arguments.questions, random.Random(f"{seed}/{number}/questions"))
            lines = Isolation(engine, memory, Splicer(tokenizer).lines, bos, examples)
            for index, name in todo:
                rng = random.Random(f"{seed}/{number}/lines")  # all encodings are repaired at the same random lines
                rows.append(EncodingRow.measure(index, number, name, lines, questions, arguments.repairs, rng))
                if run:
                    run.commit(rows[-1])
                bar.advance(task)
    return sorted(rows, key=lambda row: row.index)


def main() -> None:
    arguments = parser().parse_intermixed_args()
    sys.exit(guarded(lambda: report(arguments, make_console())))


if __name__ == "__main__":
    main()

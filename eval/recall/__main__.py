"""Long-memory probes of each memory method's recall: ``python -m eval.recall [KEY=VALUE ...]``.

A probe is a memory and one question about it. Probes in planner-tiny's language (kinds needle, two_hop, tracking:
`recall_probes`) have a line per segment; some answers need several lines. The question comes before the lines, after
them, or both (the cue: before, after, both), and the answer must match exactly. RULER's tasks (kinds s_niah, mk_niah,
mq_niah, vt, cwe, fwe: `eval/recall/ruler.py`) suit any model; there a segment is a document, and the score is the share
of the expected words in the answer. All methods get the same probes and decode greedily. Two kinds of methods reuse
rows of earlier prompts, so they get the segments before the question: layout `append` in one earlier turn, SparseX as
one pinned block per segment.

A method may have its own overrides and label:
    --methods full_recompute,keep,one_hop:keep+memory.recompute.max_hops=0
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping
from contextlib import nullcontext
from itertools import product
from pathlib import Path
from typing import Any

from omegaconf import DictConfig, OmegaConf
from rich.console import Console

from eval.common.options import command_parser
from eval.common.plots import check_figure
from eval.common.resume import use_threads
from eval.common.variants import (
    MEMORY_KEYS,
    check_distinct,
    check_methods,
    check_overrides,
    compose_variants,
    key_of,
    name_list,
)
from eval.recall.cells import Cell, RecallFolder
from eval.recall.ruler import TASKS
from eval.recall.ruler_probes import SEGMENT_TOKENS, check_ruler
from eval.recall.scores import ACCURACIES
from keep_agent.config.model_names import expand_model
from keep_agent.console import make_console
from keep_agent.errors import ConfigError
from keep_agent.guard import guarded
from planners.training.recall_probes import CUES, KINDS, MAX_LINES

METHODS = ("full_recompute", "full_reuse", "epic", "cacheblend", "sparsex", "memart", "keep", "keep_contextual")
# Every prompt contains every line in its original order. A bound of one line per group keeps similar lines apart; a
# similarity threshold of 1 could not, since the encoder gives `watch_1 box_2` and `watch_2 box_1` the same vector.
SETTING = ("prompt.encoder=hashed", f"prompt.budget={MAX_LINES}", "memory.grouping.bound=1")
SIZES = (10, 20, 40, 60, 80, 100, 120, 160, 200)
DOCUMENTS = (4,)
KEYS = ("memory", "model", "prompt.format", "prompt.start", "prompt.budget", "prompt.encoder", "eval.threads")
REPLACEMENTS = {"planner": "--methods", "memory": "--methods", "eval.seed": "--seed", "prompt": "prompt.format"}
FREE_OPTIONS = ("out", "mark", "ranks")  # options that do not affect answers, and may change when a run is resumed


def parser() -> argparse.ArgumentParser:
    p = command_parser(__doc__, "keep-eval-recall")
    add = p.add_argument
    kinds = f"default: {','.join(KINDS)}; RULER's: {','.join(TASKS)}"
    out = "folder for answers, recall.json and figures; the same command resumes the run"
    methods = "methods; each is compared with the first"
    overrides = f"overrides of {', '.join(KEYS)}; they are applied after {' '.join(SETTING)}"
    segments = "numbers of lines (default 10,20,...,200), or of RULER documents (default 4)"
    mark = "compare methods at the largest memory where the first method still has this accuracy (0.9)"
    ranks = "number of probes in which the needle is also ranked per layer by three signals (0)"
    add("overrides", nargs="*", metavar="KEY=VALUE", help=overrides)
    add("--methods", type=name_list, default=list(METHODS), metavar="A,B", help=methods)
    add("--kinds", type=name_list, default=list(KINDS), metavar="A,B", help=kinds)
    add("--cues", type=name_list, default=list(CUES), metavar="A,B", help=f"question's place; default {','.join(CUES)}")
    add("--segments", type=name_list, metavar="N,N", help=segments)
    add("--segment-tokens", type=int, metavar="N", help=f"tokens per document (default {SEGMENT_TOKENS})")
    add("--trials", type=int, default=100, help="probes per cell (default 100)")
    add("--quiet", type=int, default=0, help="steps without changes before the question, for static groups (0)")
    add("--filler", type=int, default=0, metavar="N", help="irrelevant lines before the question (0)")
    add("--mark", type=float, default=0.9, help=mark)
    add("--seed", type=int, default=0)
    add("--ranks", type=int, default=0, metavar="N", help=ranks)
    add("--out", type=Path, metavar="FOLDER", help=out)
    return p


def check_options(arguments: argparse.Namespace) -> None:
    """Raise `ConfigError` for options that are out of range, repeated, unknown or without effect."""
    if not all(size.isascii() and size.isdecimal() for size in arguments.segments or ()):
        raise ConfigError(f"--segments {','.join(arguments.segments)} are not whole numbers; use numbers such as 20,40")
    for option, least in (("trials", 1), ("quiet", 0), ("filler", 0), ("ranks", 0)):
        if getattr(arguments, option) < least:
            raise ConfigError(f"--{option} {getattr(arguments, option)} is too few; use --{option} {least} or more")
    if not 0 < arguments.mark <= 1:
        raise ConfigError(f"--mark {arguments.mark:g} is not a share of answers; use a number up to 1, such as 0.9")
    for option in ("methods", "kinds", "cues", "segments"):
        values = getattr(arguments, option)
        if values is not None and not values:
            raise ConfigError(f"--{option} is empty; name at least one value, or omit the option")
        check_distinct(option, values or (), int if option == "segments" else str)
    if unknown := [kind for kind in arguments.kinds if kind not in (*KINDS, *TASKS)]:
        raise ConfigError(f"probe kind {unknown[0]!r} is unknown; choose one of: {', '.join((*KINDS, *TASKS))}")
    tasks = [kind for kind in arguments.kinds if kind in TASKS]
    for option in ("ranks", "filler"):
        if getattr(arguments, option) and tasks:
            raise ConfigError(
                f"--{option} applies to lines, but {', '.join(tasks)} have none; use --{option} 0 with them"
            )
    if arguments.segment_tokens is not None and not tasks:
        raise ConfigError(
            f"--segment-tokens {arguments.segment_tokens} is the size of documents, but {', '.join(arguments.kinds)} "
            f"have lines; omit it, or use --kinds {','.join(TASKS)}"
        )
    check_overrides(arguments.overrides, KEYS, REPLACEMENTS)
    if len(tasks) == len(arguments.kinds) and "prompt.format" in map(key_of, arguments.overrides):
        raise ConfigError(f"prompt.format applies to lines, but {', '.join(tasks)} have their own format; omit it")


def cells_of(arguments: argparse.Namespace) -> list[Cell]:
    """Return a cell for every kind, cue and size. Raises `ConfigError` for an unknown cue or an impossible size."""
    cells = []
    for kind, cue in product(arguments.kinds, arguments.cues):
        sizes = sorted(map(int, arguments.segments or ())) or (DOCUMENTS if kind in TASKS else SIZES)
        cells += [Cell(kind, cue, size) for size in sizes]
    for cell in cells:
        if cell.kind in TASKS:
            check_ruler(cell.segments, cell.cue)
        else:
            cell.probe(0, arguments.seed)
    return cells


def report(arguments: argparse.Namespace, console: Console) -> None:
    """Check the input and --out before the model is loaded, then run the probes."""
    check_options(arguments)
    if arguments.segment_tokens is None:
        arguments.segment_tokens = SEGMENT_TOKENS
    cells = cells_of(arguments)
    configs = compose_variants(arguments.methods, [*SETTING, *expand_model(arguments.overrides)], MEMORY_KEYS)
    check_methods(configs)
    settings, run = settings_of(arguments, configs), None
    if arguments.out is not None:
        check_figure(arguments.out / ACCURACIES)
        run = RecallFolder.find(arguments.out, settings)
    with run or nullcontext():
        use_threads(next(iter(configs.values())))
        from eval.recall.run import run_probes  # lazy: it loads torch; wrong options are reported before

        run_probes(arguments, cells, configs, settings, run, console)


def settings_of(arguments: argparse.Namespace, configs: Mapping[str, DictConfig]) -> dict[str, Any]:
    """Return everything that affects the answers (not `eval.threads`): options, and configs composed from them."""
    relevant = {key: value for key, value in vars(arguments).items() if key not in FREE_OPTIONS}
    relevant["overrides"] = [text for text in arguments.overrides if not text.startswith("eval.")]  # not eval.threads
    plain = {name: OmegaConf.to_container(config, resolve=True) for name, config in configs.items()}
    composed = {name: {part: config[part] for part in ("memory", "model", "prompt")} for name, config in plain.items()}
    return {"options": relevant, "configs": composed}


def main() -> None:
    arguments = parser().parse_intermixed_args()
    sys.exit(guarded(lambda: report(arguments, make_console())))


if __name__ == "__main__":
    main()

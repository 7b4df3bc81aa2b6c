"""Does a memory method still know what full recomputation knows? ``python -m eval.recall [KEY=VALUE ...]``.

Long-memory probes in planner-tiny's language (needle, two_hop, tracking: `recall_probes`): lines that only make
sense together, and one question whose cue stands behind them, before them, or on both sides; exact match. And RULER's
(mq_niah, vt, cwe, fwe: see eval/recall/ruler.py), for any model: a segment is a document, an answer counts by the share
of what was asked for. All methods get the same probes; greedy decoding. Methods that harvest what they computed meet
the segments once before: told in an earlier turn (`append` layout), or stored one by one (SparseX).

A method may carry overrides and a name of its own:
    --methods full_recompute,keep,one_hop:keep+memory.recompute.max_hops=0
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING, Any

from omegaconf import OmegaConf
from rich.console import Console

from eval.common.accepted_overrides import check_overrides, key_of
from eval.common.plots import check_figure
from eval.common.resume import use_threads
from eval.common.variants import MEMORY_KEYS, check_methods, compose_variants, names
from eval.recall.answer_log import RecallFolder
from eval.recall.cells import Cell
from eval.recall.ruler import TASKS
from eval.recall.ruler_probes import SEGMENT_TOKENS, check_ruler
from eval.recall.scores import ACCURACIES
from keep_agent.config.model_override import expand_model
from keep_agent.console import make_console
from keep_agent.errors import ConfigError
from keep_agent.guard import guarded
from planners.training.recall_probes import CUES, GREATEST, KINDS

if TYPE_CHECKING:
    from omegaconf import DictConfig

METHODS = ("full_recompute", "full_reuse", "epic", "cacheblend", "sparsex", "memart", "keep")
# Every line is in every prompt, in the order in which it was told: a group is a header with its lines and takes in none
# that is similar. A threshold of 1 would not do: to the encoder `watch_1 box_2` and `watch_2 box_1` are the same.
SETTING = ("prompt.encoder=hashed", f"prompt.budget={GREATEST}", "memory.grouping.bound=1")
SIZES = (10, 20, 40, 60, 80, 100, 120, 160, 200)
DOCUMENTS = (4,)
READ = ("memory", "model", "prompt.format", "prompt.start", "prompt.budget", "prompt.encoder", "eval.threads")
INSTEAD = {"planner": "--methods", "memory": "--methods", "eval.seed": "--seed", "prompt": "prompt.format"}
FREE = ("out", "mark", "ranks")  # options that change no answer: they may differ when a recall goes on


def parser() -> argparse.ArgumentParser:
    described = argparse.ArgumentParser(
        prog="keep-eval-recall", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = described.add_argument
    add("overrides", nargs="*", metavar="KEY=VALUE", help=f"of {', '.join(READ)}; after {' '.join(SETTING)}")
    add("--methods", type=names, default=list(METHODS), metavar="A,B", help="the first is the ruler")
    add(
        "--kinds",
        type=names,
        default=list(KINDS),
        metavar="A,B",
        help=f"default: {','.join(KINDS)}; RULER's: {','.join(TASKS)}",
    )
    add("--cues", type=names, default=list(CUES), metavar="A,B", help=f"default: {','.join(CUES)}")
    add("--segments", type=names, metavar="N,N", help="lines of memory (10 to 200), or documents (4)")
    add("--segment-tokens", type=int, metavar="N", help=f"of a document (default {SEGMENT_TOKENS})")
    add("--trials", type=int, default=100, help="probes per cell (default 100)")
    add("--quiet", type=int, default=0, help="steps between the lines and the question: groups become static (0)")
    add("--filler", type=int, default=0, metavar="N", help="lines told between them, for methods like memart (0)")
    add("--mark", type=float, default=0.9, help="share of right answers of the ruler that a memory must allow (0.9)")
    add("--seed", type=int, default=0)
    add("--ranks", type=int, default=0, metavar="N", help="also rank the needle per layer by three signals, N probes")
    add(
        "--out",
        type=Path,
        metavar="FOLDER",
        help="write answers, recall.json and figures there; the same command goes on",
    )
    return described


def check_options(arguments: argparse.Namespace) -> None:
    """Says what cannot be asked, and what would be ignored. Raises `ConfigError`."""
    if not all(size.isascii() and size.isdecimal() for size in arguments.segments or ()):
        raise ConfigError(f"--segments {','.join(arguments.segments)} are no whole numbers")
    for option, least in (("trials", 1), ("quiet", 0), ("filler", 0), ("ranks", 0)):
        if getattr(arguments, option) < least:
            raise ConfigError(f"--{option} {getattr(arguments, option)} is too few; use --{option} {least} or more")
    if not 0 < arguments.mark <= 1:
        raise ConfigError(f"--mark {arguments.mark:g} is a share of right answers; use a number up to 1, such as 0.9")
    for option in ("methods", "kinds", "cues", "segments"):
        values = getattr(arguments, option)
        if values is not None and not values:
            raise ConfigError(f"--{option} names nothing to ask; name at least one, or leave it out")
        if values is not None and len(set(map(int, values) if option == "segments" else values)) < len(values):
            raise ConfigError(f"--{option} {','.join(values)} names one of them twice")
    unknown = [kind for kind in arguments.kinds if kind not in (*KINDS, *TASKS)]
    if unknown:
        raise ConfigError(f"probe kind {unknown[0]!r} is unknown; choose one of: {', '.join((*KINDS, *TASKS))}")
    _check_kinds(arguments, [kind for kind in arguments.kinds if kind in TASKS])


def _check_kinds(arguments: argparse.Namespace, tasks: Sequence[str]) -> None:
    """Options and overrides that only one of the two families of probes knows."""
    if arguments.ranks and tasks:
        raise ConfigError(f"--ranks ranks lines, but {', '.join(tasks)} have none; use --ranks 0 with them")
    if arguments.filler and tasks:
        raise ConfigError(f"--filler tells lines, but {', '.join(tasks)} have none; use --filler 0 with them")
    if arguments.segment_tokens is not None and not tasks:
        raise ConfigError(
            f"--segment-tokens {arguments.segment_tokens} is the size of documents, but {', '.join(arguments.kinds)} "
            f"have lines; leave it out, or ask {', '.join(TASKS)}"
        )
    check_overrides(arguments.overrides, READ, INSTEAD)
    if len(tasks) == len(arguments.kinds) and "prompt.format" in map(key_of, arguments.overrides):
        raise ConfigError(f"prompt.format is of lines, but {', '.join(tasks)} have a format of their own; leave it out")


def cells_of(arguments: argparse.Namespace) -> list[Cell]:
    """Every kind with every cue and size. Raises `ConfigError` for a cue or size there is not."""
    given = arguments.segments or ()
    cells = []
    for kind, cue in product(arguments.kinds, arguments.cues):
        sizes = sorted(map(int, given)) if given else DOCUMENTS if kind in TASKS else SIZES
        cells += [Cell(kind, cue, size) for size in sizes]
    for cell in cells:
        if cell.kind in TASKS:
            check_ruler(cell.segments, cell.cue)
        else:
            cell.probe(0, arguments.seed)
    return cells


def report(arguments: argparse.Namespace, console: Console) -> None:
    """Everything that can be wrong with the input or with --out is found before the model is made."""
    check_options(arguments)
    if arguments.segment_tokens is None:
        arguments.segment_tokens = SEGMENT_TOKENS
    cells = cells_of(arguments)
    configs = compose_variants(arguments.methods, [*SETTING, *expand_model(arguments.overrides)], MEMORY_KEYS)
    check_methods(configs)
    settings = settings_of(arguments, configs)
    with _earlier(arguments.out, settings) or nullcontext() as run:
        use_threads(next(iter(configs.values())))
        from eval.recall.run import run_probes  # here: it loads torch, and what is mistyped is refused before

        run_probes(arguments, cells, configs, settings, run, console)


def settings_of(arguments: argparse.Namespace, configs: Mapping[str, DictConfig]) -> dict[str, Any]:
    """What decides the answers: the options, and what was composed of them."""
    options = {key: value for key, value in vars(arguments).items() if key not in FREE}
    options["overrides"] = [one for one in arguments.overrides if not one.startswith("eval.")]  # torch threads
    plain = {name: OmegaConf.to_container(config, resolve=True) for name, config in configs.items()}
    composed = {name: {part: config[part] for part in ("memory", "model", "prompt")} for name, config in plain.items()}
    return {"options": options, "configs": composed}


def _earlier(out: Path | None, settings: Mapping[str, Any]) -> RecallFolder | None:
    """The answers to go on with, if any."""
    if out is None:
        return None
    check_figure(out / ACCURACIES)
    return RecallFolder.earlier(out, settings)


def main() -> None:
    arguments = parser().parse_intermixed_args()
    sys.exit(guarded(lambda: report(arguments, make_console())))


if __name__ == "__main__":
    main()

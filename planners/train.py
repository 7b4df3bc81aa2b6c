"""Trainer command of planners: ``python -m planners.train --data ROLLOUTS --out RUN``.

It trains a small model from scratch or, with --base, a LoRA adapter of a pretrained model. The command needs only
torch, transformers, tokenizers, safetensors and, for adapters, peft. A training example is one memory with several
queries. A new model starts with attention heads that look up words. Training memories grow from a dozen lines to whole
houses. RUN holds the last checkpoint; a repeated command resumes from it. Exit codes: 0 done, 2 bad input, 130
interrupted.
"""

from __future__ import annotations

import argparse
import sys
from importlib.util import find_spec
from pathlib import Path

from keep_agent.errors import ConfigError
from keep_agent.options import NO_LIMIT, SEEDS, THREADS
from planners.tiny.shape import HISTORY, VOCAB, Shape, is_planner, lock
from planners.training import options
from planners.training.options import OPTIMIZERS, PRECISIONS, TRANSCRIPT_TOKENS, Option
from planners.training.rollout_files import rollout_files

SHAPE = Shape()
NUMBERS = (
    Option("minutes", float, 60, (0, NO_LIMIT), "wall time of this call"),
    Option("steps", int, -1, (-1, NO_LIMIT), "maximum optimiser steps of this call, -1 for no limit"),
    Option("threads", int, 0, THREADS, "CPU threads of each process, 0 for torch's choice"),
    Option("processes", int, 1, (1, 1024), "processes that train together; on a CPU one per core is fastest"),
    Option("batch-tokens", int, 2304, (1, NO_LIMIT), "maximum rows of a batch, padding included"),
    Option("transcript", int, TRANSCRIPT_TOKENS, (0, NO_LIMIT), "maximum tokens of a transcript"),
    Option("accumulate", int, 3, (1, NO_LIMIT), "batches per optimiser step, divided among the processes"),
    Option("apart", float, 0.0, (0, 1), "share of batches whose memory lines are encoded separately, as in KV blocks"),
    Option("frozen", float, 0.0, (0, 1), "share of packs whose memory is constant in the gradient, which saves time"),
    Option("goals", float, 0.0, (0, 1), "share of windows with goals alone, besides those of the curriculum"),
    Option("deepen", int, 0, (0, 1024), "number of layers after identity layers are added to --init; 0 adds none"),
    Option("rank", int, 16, (1, 1024), "rank of a new adapter, with --base"),
    Option("lr", float, 6e-4, None, "learning rate"),
    Option("warmup", int, 100, (1, NO_LIMIT), "steps in which the learning rate rises; at most 20 after a resume"),
    Option("decay", float, 0.4, (0, 1), "share of the time, at its end, in which the learning rate decays"),
    Option("average", float, 0.998, (0, 1), "decay of the weights' running mean, which is the published model"),
    Option("seed", int, 0, SEEDS, "seed of the model and the batches"),
    Option("vocab", int, VOCAB, (128, 2**20), "maximum tokens of a new tokenizer, entity names and alphabet included"),
    Option("corpus", int, 2000, (1, NO_LIMIT), "number of rollouts per file on which the tokenizer is trained"),
    Option("report", float, 30, (0, NO_LIMIT), "seconds between two reports"),
    Option("save", float, 300, (0, NO_LIMIT), "seconds between checkpoints"),
    Option("hidden", int, SHAPE.hidden, (1, 2**16), "width of a new model"),
    Option("layers", int, SHAPE.layers, (1, 1024), "layers of a new model"),
    Option("heads", int, SHAPE.heads, (1, 1024), "attention heads of a new model"),
    Option("intermediate", int, SHAPE.intermediate, (1, 2**18), "width of the feed-forward layers of a new model"),
)
RANGES = options.ranges_of(NUMBERS)
NEW_MODEL = ("hidden", "layers", "heads", "intermediate", "vocab", "corpus")  # options without effect on an adapter


def parser() -> argparse.ArgumentParser:
    p = options.make_parser(__doc__)
    p.add_argument("--data", required=True, help="folder with *.jsonl.gz rollouts, written by eval.dataset")
    p.add_argument(
        "--init",
        default="",
        help="folder of a planner, or with --base of an adapter, to start from instead of new weights",
    )
    p.add_argument("--base", default="", help="pretrained model (folder or hub name) for which an adapter is trained")
    p.add_argument("--optimizer", choices=OPTIMIZERS, default="adamw", help="muon needs torch 2.9 or newer")
    p.add_argument("--precision", choices=PRECISIONS, default="auto", help="dtype of matrix products; auto: the faster")
    options.add_numbers(p, NUMBERS)
    return p


def check_options(args: argparse.Namespace) -> None:
    """Raises KeepError for invalid options, as far as they can be checked without torch."""
    options.check_common(args, RANGES)
    if args.init and not is_planner(Path(args.init)):
        raise ConfigError(
            f"--init {args.init} is not a planner's folder: it has no {HISTORY}; name another, or leave --init out"
        )
    if args.base and find_spec("peft") is None:
        raise ConfigError(f"--base {args.base} needs the package peft; install 'keep-agent[peft]'")
    defaults = {number.name: number.default for number in NUMBERS}
    useless = [name for name in (NEW_MODEL if args.base else ("rank",)) if getattr(args, name) != defaults[name]]
    if useless:
        what = "a new model, and --base names an existing one" if args.base else "an adapter, which needs --base"
        raise ConfigError(f"--{useless[0]} {getattr(args, useless[0])} is for {what}; leave it out")
    if args.base and args.deepen:
        raise ConfigError("--base trains an adapter of a pretrained model, which keeps its layers; leave --deepen out")
    if not args.base and not args.init and not is_planner(Path(args.out)):  # a new model
        Shape(args.hidden, args.layers, args.heads, args.intermediate).check()
    rollout_files(Path(args.data))


def main() -> None:
    args = parser().parse_args()
    with options.exit_codes():
        check_options(args)
        from planners.training.parallel import run_parallel  # lazy: it loads torch
        from planners.training.trainer import train

        with lock(Path(args.out)):
            code = run_parallel(args.processes, train, args)
    sys.exit(code)


if __name__ == "__main__":
    main()

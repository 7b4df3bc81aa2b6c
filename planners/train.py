"""Train planner-tiny from rollout files: ``python -m planners.train --data ROLLOUTS --out RUN``.

Needs torch, transformers, tokenizers and safetensors only. Packed query slots, an
induction-seeded start and a curriculum from a dozen memory lines to whole houses; resumes from RUN.
"""

from __future__ import annotations

import argparse
import sys
from dataclasses import asdict
from pathlib import Path
from types import MappingProxyType

from keep_agent.errors import ConfigError, KeepError, check_rate
from keep_agent.options import ANY, SEEDS, THREADS, check_device, check_folder, check_ranges
from planners.tiny.folders import is_planner
from planners.tiny.shape import VOCAB, Shape
from planners.training.choices import HISTORY, OPTIMIZERS, PRECISIONS, TRANSCRIPT
from planners.training.rollout_files import rollout_files

RANGES = MappingProxyType(
    {
        "minutes": (0, ANY),
        "steps": (-1, ANY),
        "threads": THREADS,
        "processes": (1, 1024),
        "batch_tokens": (1, ANY),
        "transcript": (0, ANY),
        "accumulate": (1, ANY),
        "apart": (0, 1),
        "deepen": (0, 1024),
        "decay": (0, 1),
        "average": (0, 1),
        "seed": SEEDS,
        "vocab": (128, 2**20),  # the alphabet and some words
        "corpus": (1, ANY),
        "report": (0, ANY),
        "save": (0, ANY),
        "hidden": (1, 2**16),
        "layers": (1, 1024),
        "heads": (1, 1024),
        "intermediate": (1, 2**18),
    }
)


def parser() -> argparse.ArgumentParser:
    """Command line of the trainer."""
    shape = Shape()
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--data", required=True, help="folder with *.jsonl.gz rollouts written by eval.dataset")
    p.add_argument("--out", required=True, help="run folder; continued when it already holds a checkpoint")
    p.add_argument("--init", default="", help="planner folder to start from instead of a fresh seeded model")
    p.add_argument("--minutes", type=float, default=60, help="wall time of this call (default 60)")
    p.add_argument("--steps", type=int, default=-1, help="optimiser steps of this call at most (as time allows)")
    p.add_argument("--device", default="cpu")
    p.add_argument("--threads", type=int, default=0, help="CPU threads of a process (default: torch's choice)")
    p.add_argument("--processes", type=int, default=1, help="that train together; on a CPU one a core is quickest")
    p.add_argument("--batch-tokens", type=int, default=2304, help="padded rows of a batch (default 2304)")
    p.add_argument(
        "--transcript", type=int, default=TRANSCRIPT, help=f"tokens of a transcript at most (default {TRANSCRIPT})"
    )
    p.add_argument(
        "--accumulate", type=int, default=3, help="batches of an optimiser step, over all processes: rounded down to "
        "as many for each, at least one (default 3)"
    )  # fmt: skip
    p.add_argument(
        "--apart", type=float, default=0.0, help="share of batches whose memory lines do not see each other, as reused "
        "blocks do not (default 0)"
    )  # fmt: skip
    p.add_argument("--optimizer", choices=OPTIMIZERS, default="adamw", help="muon needs torch 2.9 or newer")
    p.add_argument(
        "--precision", choices=PRECISIONS, default="auto", help="of products (default: what is faster on this machine)"
    )
    p.add_argument("--deepen", type=int, default=0, help="layers to have with --init; those added change nothing yet")
    p.add_argument("--lr", type=float, default=6e-4)
    p.add_argument("--decay", type=float, default=0.4, help="share of the time in which the rate falls (default 0.4)")
    p.add_argument(
        "--average", type=float, default=0.998, help="what the running mean of the weights keeps of itself at a step; "
        "it is what ships (default 0.998; 0: the weights themselves)"
    )  # fmt: skip
    p.add_argument("--seed", type=int, default=0)
    p.add_argument("--vocab", type=int, default=VOCAB)
    p.add_argument("--corpus", type=int, default=2000, help="rollouts of each file read for the tokenizer")
    p.add_argument("--report", type=float, default=30, help="seconds between reports")
    p.add_argument("--save", type=float, default=300, help="seconds between checkpoints")
    for name, value in asdict(shape).items():
        if name != "positions":
            p.add_argument(f"--{name}", type=int, default=value)
    return p


def check_options(args: argparse.Namespace) -> None:
    """Raises KeepError for what can be seen to be wrong without torch."""
    check_ranges(args, RANGES)
    check_rate(args.lr)
    check_device("--device", args.device)
    check_folder("--out", Path(args.out))
    if args.init and not is_planner(Path(args.init)):
        raise ConfigError(
            f"--init {args.init} is no planner's folder, which has a {HISTORY}; name one, or leave it out"
        )
    if not args.init and not is_planner(Path(args.out)):  # a model begins
        Shape(args.hidden, args.layers, args.heads, args.intermediate).check()
    rollout_files(Path(args.data))


def main() -> None:
    """Exit codes: 0 done, 2 bad input, 130 interrupted (the run folder holds the last checkpoint)."""
    args = parser().parse_args()
    try:
        check_options(args)
        from planners.tiny.checkpoint import training  # here: these load torch, and what is mistyped is refused before
        from planners.training.parallel import in_parallel
        from planners.training.trainer import train

        with training(Path(args.out)):
            code = in_parallel(args.processes, train, args)
    except KeepError as error:
        sys.stderr.write(f"error: {error}\n")
        sys.exit(2)
    sys.exit(code)


if __name__ == "__main__":
    main()

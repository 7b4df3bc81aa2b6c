"""Train planner-tiny from rollout files: ``python -m planners.train --data ROLLOUTS --out RUN``.

Needs torch, transformers, tokenizers and safetensors only. Packed query slots, an
induction-seeded start and a curriculum from a dozen memory lines to whole houses; resumes from RUN.
"""

from __future__ import annotations

import argparse
import sys
from dataclasses import asdict
from pathlib import Path

from keep_agent.errors import KeepError
from planners.choices import OPTIMIZERS, PRECISIONS, TRANSCRIPT
from planners.shape import VOCAB, Shape


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


def main() -> None:
    """Exit codes: 0 done, 2 bad input, 130 interrupted (the run folder holds the last checkpoint)."""
    args = parser().parse_args()
    if args.processes < 1:
        parser().error(f"--processes {args.processes} trains nothing; give 1 or more")
    from planners.checkpoint import training  # here: these load torch, and what is mistyped is refused before
    from planners.parallel import in_parallel
    from planners.trainer import train

    try:
        with training(Path(args.out)):
            code = in_parallel(args.processes, train, args)
    except KeepError as error:
        parser().error(str(error))
    sys.exit(code)


if __name__ == "__main__":
    main()

"""Trainer command of IntentKV's residual head: ``python -m planners.train_retention --sessions FILE... --out RUN``.

The model is frozen. Sessions are replayed turn by turn under a budget of cache rows, as at run time. A token that may
be evicted is positive if its text occurs literally in the arguments of one of the next actions (arXiv 2606.09916,
section 3.5). Sessions are JSONL files: written by `python -m eval.sessions`, or holding chat messages with tool calls.

The head's output is added to the score of IntentKV's rule. At the end, the weight of this output is chosen by the
likelihood of the next tokens in the sessions of --held-out. To use the head, set `memory.retention.head` to
``RUN/head.safetensors``. RUN holds the last checkpoint; a repeated command resumes from it. Exit codes: 0 done, 2 bad
input, 130 interrupted.
"""

from __future__ import annotations

import argparse
from contextlib import closing
from pathlib import Path

from keep_agent.errors import check_choice
from keep_agent.options import NO_LIMIT, SEEDS, THREADS, check_model_place
from memory.config.choices import DTYPES
from memory.files.atomic import lock_folder
from planners.training import options
from planners.training.options import Option
from planners.training.retention.tool_sessions import read_sessions

LONG = Path(__file__).parent / "planner_tiny_long"
NUMBERS = (
    Option("threads", int, 0, THREADS, "CPU threads, 0 for torch's choice"),
    Option("epochs", int, 2, (1, NO_LIMIT), "passes over the sessions"),
    Option("lr", float, 1e-3, None, "learning rate"),
    Option("accumulate", int, 8, (1, NO_LIMIT), "turns per optimiser step"),
    Option("decay", float, 0.5, (0, 1), "decay per turn of the query memory, a weighted sum of past turns' queries"),
    Option("budgets", int, [128, 256, 512, 1024], (1, NO_LIMIT), "rows kept after a turn; each session draws one"),
    Option("shortest", int, 3, (1, NO_LIMIT), "minimum letters of a positive token, since short ones occur everywhere"),
    Option("held-out", int, 8, (0, NO_LIMIT), "last sessions, used only to choose the weight of the head's output"),
    Option("save", int, 20, (1, NO_LIMIT), "sessions between checkpoints"),
    Option("seed", int, 42, SEEDS, "seed of the head and of the order of sessions"),
)
RANGES = options.ranges_of(NUMBERS)


def parser() -> argparse.ArgumentParser:
    p = options.make_parser(__doc__)
    p.add_argument("--sessions", nargs="+", required=True, help="JSONL files of sessions, plain or .gz")
    p.add_argument("--model", default=str(LONG), help="folder or hub name (default: the packaged planner-tiny-long)")
    p.add_argument("--tokenizer", default="", help="folder or hub name (default: the model's own)")
    p.add_argument("--dtype", default="bfloat16", help="dtype of the model (default: %(default)s)")
    options.add_numbers(p, NUMBERS)
    return p


def check_options(args: argparse.Namespace) -> None:
    """Raises KeepError for invalid options, as far as they can be checked without torch."""
    options.check_common(args, RANGES)
    check_choice("--dtype", args.dtype, DTYPES)
    check_model_place("--model", args.model)
    if args.tokenizer:
        check_model_place("--tokenizer", args.tokenizer)
    for file in args.sessions:
        with closing(read_sessions(Path(file), str.encode)) as sessions:  # checks only the first session
            next(sessions, None)


def main() -> None:
    args = parser().parse_args()
    with options.exit_codes():
        check_options(args)
        import torch  # lazy: the check needs no torch

        from planners.training.retention.trainer import Trainer

        if args.threads:
            torch.set_num_threads(args.threads)
        with lock_folder(Path(args.out)), closing(Trainer(args)) as trainer:
            trainer.run()


if __name__ == "__main__":
    main()

"""Train IntentKV's residual head for a model: ``python -m planners.train_retention --sessions FILE... --out RUN``.

The model is frozen. Sessions are replayed turn by turn under a budget, as they will be; a history token is wanted if
its text occurs literally in the arguments of one of the next actions (arXiv 2606.09916, section 3.5). Resumes from RUN,
where ``head.safetensors`` is what `memory.retention.head` takes. Sessions are JSONL files: those
`python -m eval.sessions` writes, or chat messages with tool calls. How much the head may say beside the rule is chosen
at the end, by how well the last sessions (--held-out), which it was not trained on, are foreseen behind what it keeps.
"""

from __future__ import annotations

import argparse
import sys
from contextlib import closing
from pathlib import Path
from types import MappingProxyType

from keep_agent.errors import KeepError, check_choice, check_rate
from keep_agent.options import ANY, SEEDS, THREADS, check_device, check_folder, check_model_place, check_ranges
from memory.config.choices import DTYPES
from memory.files.atomic import alone
from planners.training.retention.tool_sessions import read_sessions

LONG = Path(__file__).parent / "planner_tiny_long"
BUDGETS = (128, 256, 512, 1024)
RANGES = MappingProxyType(
    {
        "threads": THREADS,
        "epochs": (1, ANY),
        "accumulate": (1, ANY),
        "decay": (0, 1),
        "budgets": (1, ANY),
        "shortest": (1, ANY),
        "held_out": (0, ANY),
        "save": (1, ANY),
        "seed": SEEDS,
    }
)


def parser() -> argparse.ArgumentParser:
    """Command line of the trainer."""
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--sessions", nargs="+", required=True, help="JSONL files of sessions, .gz or not")
    p.add_argument("--out", required=True, help="run folder; continued when it already holds a checkpoint")
    p.add_argument("--model", default=str(LONG), help="folder or hub name (default: planner-tiny-long of this package)")
    p.add_argument("--tokenizer", default="", help="folder or hub name (default: the model's own)")
    p.add_argument("--dtype", default="bfloat16")
    p.add_argument("--device", default="cpu")
    p.add_argument("--threads", type=int, default=0, help="CPU threads (default: torch's choice)")
    p.add_argument("--epochs", type=int, default=2)
    p.add_argument("--lr", type=float, default=1e-3)
    p.add_argument("--accumulate", type=int, default=8, help="turns of an optimiser step (default 8)")
    p.add_argument("--decay", type=float, default=0.5, help="of the query memory, per turn (default 0.5)")
    p.add_argument(
        "--budgets", type=int, nargs="+", default=list(BUDGETS), metavar="N",
        help=f"rows that stay after a turn, drawn for every session (default {' '.join(map(str, BUDGETS))})",
    )  # fmt: skip
    p.add_argument("--shortest", type=int, default=3, help='letters of evidence; "to" is in toilet (default 3)')
    p.add_argument("--held-out", type=int, default=8, metavar="N", help="last sessions, which choose alpha (default 8)")
    p.add_argument("--save", type=int, default=20, help="sessions between checkpoints (default 20)")
    p.add_argument("--seed", type=int, default=42)
    return p


def check_options(args: argparse.Namespace) -> None:
    """Raises KeepError for what can be seen to be wrong without torch."""
    check_ranges(args, RANGES)
    check_rate(args.lr)
    check_choice("--dtype", args.dtype, DTYPES)
    check_device("--device", args.device)
    check_folder("--out", Path(args.out))
    check_model_place("--model", args.model)
    if args.tokenizer:
        check_model_place("--tokenizer", args.tokenizer)
    for file in args.sessions:
        with closing(read_sessions(Path(file), str.encode)) as sessions:  # the first of them; no tokenizer is here yet
            next(sessions, None)


def main() -> None:
    """Exit codes: 0 done, 2 bad input, 130 interrupted (the run folder holds the last checkpoint)."""
    args = parser().parse_args()
    try:
        check_options(args)
        import torch  # here: what is mistyped is refused before

        from planners.training.retention.trainer import Trainer

        if args.threads:
            torch.set_num_threads(args.threads)
        with alone(Path(args.out)), closing(Trainer(args)) as trainer:
            trainer.run()
    except KeyboardInterrupt:
        sys.exit(130)
    except KeepError as error:
        sys.stderr.write(f"error: {error}\n")
        sys.exit(2)


if __name__ == "__main__":
    main()

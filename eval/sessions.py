"""Training sessions of a retention head: ``python -m eval.sessions --out FILE.jsonl [KEY=VALUE ...]``.

The scripted expert plays task streams, and a planner with a full KV cache builds the transcript. Each line holds the
text that a turn added and the entities that the next skill names. KEY=VALUE are overrides of `python -m eval.alfred`.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from eval.common.accepted_overrides import check_overrides
from eval.common.hydra_command import check_target
from eval.common.resume import use_threads
from eval.common.variants import compose_variants
from eval.retention.__main__ import SETTING
from keep_agent.config.model_names import expand_model
from keep_agent.guard import guarded

ACCEPTED_KEYS = ("engine", "env", "memory", "model", "prompt", "eval.episodes", "eval.seed", "eval.threads")


def parser() -> argparse.ArgumentParser:
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--out", required=True, type=Path, help="file to write; a file with the same settings is continued")
    p.add_argument("overrides", nargs="*", metavar="KEY=VALUE")
    return p


def report(arguments: Sequence[str]) -> None:
    args = parser().parse_intermixed_args(arguments)
    check_target(args.out)
    (config,) = compose_variants(["full_cache"], [*SETTING, *expand_model(args.overrides)]).values()
    check_overrides(args.overrides, ACCEPTED_KEYS, {})
    use_threads(config)
    from eval.dataset.session_recorder import record_sessions  # imported here because it loads torch

    record_sessions(config, args.out)


def main() -> None:
    sys.exit(guarded(lambda: report(sys.argv[1:])))


if __name__ == "__main__":
    main()

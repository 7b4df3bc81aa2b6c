"""Latency of memory methods, side by side: ``python -m eval.latency [latency.planners=[...]] [latency.KEY=...] ...``"""

from __future__ import annotations

import sys

from eval.cli import hydra_command
from eval.tables import make_console
from eval.timing.run import evaluate


def main() -> None:
    """Exit code 0: done; 2: bad input, one line on standard error; 130: interrupted and resumable."""
    console = make_console()
    sys.exit(hydra_command("latency", lambda config, folder, given: evaluate(config, folder, console, given)))


if __name__ == "__main__":
    main()

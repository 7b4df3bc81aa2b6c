"""Command of a world: plays the episodes of ``configs/NAME.yaml``."""

from __future__ import annotations

import sys

from eval.common.hydra_command import hydra_command
from eval.common.run import evaluate
from keep_agent.console import make_console


def world_command(name: str) -> None:
    """Exit code 0: done; 2: bad input, one line on standard error; 130: interrupted and resumable."""
    sys.exit(hydra_command(name, lambda config, folder, given: evaluate(config, folder, make_console(), given)))

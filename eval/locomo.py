"""Questions about remembered conversations: ``python -m eval.locomo [data=PATH] [planner=NAME] [limit=N] ...``"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

from omegaconf import DictConfig

from eval.common.hydra_command import hydra_command
from keep_agent.config.settings import check_values
from keep_agent.console import make_console


def main() -> None:
    """Run the command. Exit code 0: done; 2: bad input, one line on standard error; 130: interrupted and resumable."""
    sys.exit(hydra_command("locomo", _evaluate))


def _evaluate(config: DictConfig, folder: Path, overrides: Sequence[str]) -> None:
    check_values(config)
    from eval.chat.run import evaluate  # lazy: it loads torch

    evaluate(config, folder, make_console(), overrides)


if __name__ == "__main__":
    main()

"""Latency of memory methods, side by side: ``python -m eval.latency [latency.planners=[...]] [latency.KEY=...] ...``"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

from omegaconf import DictConfig

from eval.common.hydra_command import hydra_command
from eval.common.variants import METHOD_KEYS, PLAIN, as_list, compose_variants, separate_hydra
from keep_agent.config.model_names import check_model
from keep_agent.config.settings import check_values
from keep_agent.console import make_console


def main() -> None:
    """Exit code 0: done; 2: bad input, one line on standard error; 130: interrupted and resumable."""
    sys.exit(hydra_command("latency", _evaluate))


def _evaluate(config: DictConfig, folder: Path, given: Sequence[str]) -> None:
    check_values(config)
    check_names(config)
    from eval.latency.run import evaluate  # here: it loads torch, and what is mistyped is refused before

    evaluate(config, folder, make_console(), given)


def check_names(config: DictConfig) -> None:
    """Raises ConfigError for a model or planner that there cannot be; what is set of it is checked later."""
    for model in as_list(config.latency.models):
        check_model(str(model))
    named = [(str(name).partition(":")[2] or str(name)).split("+")[0] for name in as_list(config.latency.planners)]
    with separate_hydra():
        compose_variants([name for name in dict.fromkeys(named) if name != PLAIN], [], METHOD_KEYS)


if __name__ == "__main__":
    main()

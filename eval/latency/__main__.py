"""Latency comparison of memory methods: ``python -m eval.latency [latency.planners=[...]] [latency.KEY=...] ...``"""

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
    """Run the command. Exit code 0: done; 2: bad input, one line on standard error; 130: interrupted and resumable."""
    sys.exit(hydra_command("latency", _evaluate))


def _evaluate(config: DictConfig, folder: Path, overrides: Sequence[str]) -> None:
    check_values(config)
    check_names(config)
    from eval.latency.run import evaluate  # lazy: it loads torch

    evaluate(config, folder, make_console(), overrides)


def check_names(config: DictConfig) -> None:
    """Raise ConfigError for unknown models and planners; other settings are checked later."""
    for model in as_list(config.latency.models):
        check_model(str(model))
    names = [(str(name).partition(":")[2] or str(name)).split("+")[0] for name in as_list(config.latency.planners)]
    with separate_hydra():
        compose_variants([name for name in dict.fromkeys(names) if name != PLAIN], [], METHOD_KEYS)


if __name__ == "__main__":
    main()

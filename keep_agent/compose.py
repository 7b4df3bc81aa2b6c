"""Composed settings: a file of ``configs`` with overrides, every one of which is known."""

from __future__ import annotations

from collections.abc import Sequence

from hydra import compose, initialize_config_module
from omegaconf import DictConfig

from keep_agent.known import check_known


def compose_settings(name: str, overrides: Sequence[str]) -> DictConfig:
    """``configs/NAME.yaml`` with ``overrides``. Raises ConfigError, or what Hydra raises for one it cannot read."""
    check_known(name, overrides)
    with initialize_config_module("configs", version_base="1.3"):
        return compose(name, list(overrides))

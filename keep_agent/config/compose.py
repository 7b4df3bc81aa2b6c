"""Composed settings: a file of ``configs`` with overrides, every one of which is known."""

from __future__ import annotations

from collections.abc import Sequence
from threading import Lock

from hydra import compose, initialize_config_module
from omegaconf import DictConfig

from keep_agent.config.known_settings import check_known
from keep_agent.config.model_override import choose_model, expand_model
from keep_agent.config.settings import check_settings
from keep_agent.errors import ConfigError

AGENTS_LEAST = {"prompt.budget": 1, "prompt.examples": 0, "eval.threads": 1}
COMPOSING = Lock()  # Hydra has one state for all threads


def compose_settings(name: str, overrides: Sequence[str]) -> DictConfig:
    """``configs/NAME.yaml`` with ``overrides``. Raises ConfigError, or what Hydra raises for one it cannot read."""
    with COMPOSING:
        check_known(name, overrides)
        with initialize_config_module("configs", version_base="1.3"):
            return compose(name, list(overrides))


def compose_agent(overrides: Sequence[str]) -> DictConfig:
    """``configs/agent.yaml`` with ``overrides``, checked before anything is loaded.

    Raises ConfigError, or what Hydra raises; `keep_agent.config.planner_factory.load_brain` needs what passes.
    """
    config = compose_settings("agent", expand_model(overrides))
    check_settings(config, AGENTS_LEAST, ("eval.threads",), ())
    if config.planner.kind != "kv":
        raise ConfigError(f"planner={config.planner.name} has no model; choose one that has, such as keep")
    return config


def choose_agent(planner: str, model: str, overrides: Sequence[str]) -> DictConfig:
    """What `compose_agent` gives for an agent's choices. Raises ConfigError for what is no text, or no list of them."""
    for name, value in (("planner", planner), ("model", model)):
        if not isinstance(value, str):
            raise ConfigError(f"{name}={value!r:.80}: give its name")
    several = isinstance(overrides, Sequence) and not isinstance(overrides, str)
    if not several or not all(isinstance(one, str) for one in overrides):
        raise ConfigError(f"overrides={overrides!r:.80}: give a list of KEY=VALUE, such as ['prompt.style=linked']")
    return compose_agent([f"planner={planner}", *choose_model(model), *overrides])

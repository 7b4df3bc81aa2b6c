"""Composition of settings by Hydra, from a YAML file in ``configs`` and checked overrides ``KEY=VALUE``."""

from __future__ import annotations

from collections.abc import Sequence
from threading import Lock

from hydra import compose, initialize_config_module
from omegaconf import DictConfig

from keep_agent.config.known_settings import check_known
from keep_agent.config.model_names import choose_model, expand_model
from keep_agent.config.settings import check_settings
from keep_agent.errors import ConfigError

AGENT_MINIMUMS = {"prompt.budget": 1, "prompt.examples": 0, "prompt.preamble": 0, "eval.threads": 1}
COMPOSE_LOCK = Lock()  # all threads share Hydra's state


def compose_settings(name: str, overrides: Sequence[str]) -> DictConfig:
    """Compose ``configs/NAME.yaml`` with ``overrides``. Raises ConfigError, or a Hydra error."""
    with COMPOSE_LOCK:
        check_known(name, overrides)
        with initialize_config_module("configs", version_base="1.3"):
            return compose(name, list(overrides))


def compose_agent(overrides: Sequence[str]) -> DictConfig:
    """Compose ``configs/agent.yaml`` with ``overrides``; loads no model. Raises ConfigError, or a Hydra error."""
    config = compose_settings("agent", expand_model(overrides))
    check_settings(config, AGENT_MINIMUMS, ("eval.threads", "prompt.preamble"), ())
    if config.planner.kind != "kv":
        raise ConfigError(f"planner={config.planner.name} uses no model; choose a planner that uses one, such as keep")
    return config


def choose_agent(planner: str, model: str, overrides: Sequence[str]) -> DictConfig:
    """Compose an agent's settings from the arguments of `Agent.from_config`. Raises ConfigError, or a Hydra error."""
    for name, value in (("planner", planner), ("model", model)):
        if not isinstance(value, str):
            raise ConfigError(f"{name}={value!r:.80}: give the name of a {name}")
    is_list = isinstance(overrides, Sequence) and not isinstance(overrides, str)
    if not is_list or not all(isinstance(override, str) for override in overrides):
        raise ConfigError(f"overrides={overrides!r:.80}: give a list of KEY=VALUE, such as ['prompt.style=linked']")
    return compose_agent([f"planner={planner}", *choose_model(model), *overrides])

"""How a run begins: anew or as an earlier one, whose config counts; the command line may not ask for something else."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

from omegaconf import DictConfig, OmegaConf

from keep_agent.errors import ConfigError
from keep_agent.runfolder import RunFolder

Folder = TypeVar("Folder", bound=RunFolder)
FREE = ("eval.out", "eval.resume", "eval.progress", "wandb", "bertscore")  # may differ when a run is resumed


def begin(
    kind: type[Folder], config: DictConfig, given: Sequence[str], check: Callable[[DictConfig], None]
) -> tuple[Folder | None, DictConfig]:
    """The run that ``config`` goes on with, if any, and the config that counts: checked, with its torch threads set."""
    earlier = kind.resume(Path(config.eval.resume)) if config.eval.resume else None
    if earlier is not None:
        config = resumed_config(config, earlier.config, given)
    check(config)
    if config.eval.threads:
        import torch

        torch.set_num_threads(config.eval.threads)
    return earlier, config


def resumed_config(config: DictConfig, saved: Mapping[str, Any], given: Sequence[str]) -> DictConfig:
    """The saved config with FREE settings of the new one.

    ``given`` are the overrides of the command line. What they set must be as it was; raises ConfigError naming what
    is not.
    """
    here, there = OmegaConf.to_container(config, resolve=True), dict(saved)
    changed: dict[str, str] = {}
    keys = [override.lstrip("+~").partition("=")[0].partition("@")[0].replace("/", ".") for override in given]
    for key in keys:
        if not _free(key):
            changed |= _changes(_leaves(_at(here, key), key), _leaves(_at(there, key), key))
    if changed:
        shown = ", ".join(f"{key}={change}" for key, change in sorted(changed.items()))
        raise ConfigError(f"{config.eval.resume} was run otherwise: {shown}; leave these out or start anew")
    merged = OmegaConf.create(there)
    merged.eval.progress = config.eval.progress
    if "wandb" in config:
        merged.wandb = config.wandb
    if "bertscore" in keys and "bertscore" in config:  # a null that nobody asked for takes nothing back
        merged.bertscore = config.bertscore
    return merged


def _free(key: str) -> bool:
    return any(key == name or key.startswith(f"{name}.") for name in FREE)


def _at(tree: Any, key: str) -> Any:
    """The value under a dotted key; None where there is none."""
    for part in key.split("."):
        tree = tree.get(part) if isinstance(tree, Mapping) else None
    return tree


def _leaves(value: Any, prefix: str) -> dict[str, Any]:
    if not isinstance(value, Mapping):
        return {prefix: value}
    return {k: v for key, inner in value.items() for k, v in _leaves(inner, f"{prefix}.{key}").items()}


def _changes(here: Mapping[str, Any], there: Mapping[str, Any]) -> dict[str, str]:
    keys = [key for key in here.keys() | there.keys() if here.get(key) != there.get(key)]
    return {key: f"{here.get(key)} (was {there.get(key)})" for key in keys}

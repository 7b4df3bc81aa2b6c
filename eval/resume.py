"""How a run begins: anew or as an earlier one, whose config counts; the command line may not ask for something else."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

from omegaconf import DictConfig, OmegaConf

from eval.overrides import key_of, within
from keep_agent.errors import ConfigError
from keep_agent.literal import as_config, as_override, literal, looked_up
from keep_agent.runfolder import RunFolder
from memory.component_names import check_names, named_classes
from memory.encoder import chosen_encoder, warn_of_fallback

Folder = TypeVar("Folder", bound=RunFolder)
THOR = tuple(f"env.thor.{key}" for key in ("platform", "gpu", "display", "server", "start_timeout", "timeout"))
CREW = ("eval.workers", "eval.launcher", "eval.ray")  # who plays
ELSEWHERE = ("bertscore", "env.simulator", "env.record", *CREW, *THOR)  # may be another when a run is resumed elsewhere
OF_THE_RUN = ("weights", "episodes")  # what a run found and wrote down
PROGRAMS = {  # settings that start a program or join one, with the values that are safe whoever wrote them
    "env.thor.executable": (None, "stand-in"),
    "eval.ray.address": (None, "auto"),
}
CLASS = re.compile(r"_target_\s*[=:]\s*['\"]?([\w.]+)")  # in an override
FREE = ("eval.out", "eval.resume", "eval.progress", "wandb", *ELSEWHERE)


def begin(
    kind: type[Folder], config: DictConfig, given: Sequence[str], check: Callable[[DictConfig], None]
) -> tuple[Folder | None, DictConfig]:
    """The run that ``config`` goes on with, if any, and the config that counts: checked, with its torch threads set."""
    path = Path(config.eval.resume) if config.eval.resume else None
    wanted = None if path or config.planner.kind != "kv" else OmegaConf.select(config, "prompt.encoder")
    if "prompt" in config:  # a run that goes on elsewhere, or is compared, is one of the encoder that it had
        config.prompt.encoder = literal(chosen_encoder(config.prompt.encoder))
    if path is not None:
        config = resumed_config(config, kind.saved(path), given)
    check(config)
    if wanted is not None:
        warn_of_fallback(wanted)
    use_threads(config)
    return (kind.resume(path) if path is not None else None), config


def use_threads(config: DictConfig, processes: int = 1) -> None:
    """As many torch threads as the config says; null leaves the choice to torch.

    With several processes that is what each has; of torch's choice each takes its share, if it has a model at all.
    """
    shared = processes > 1 and config.planner.kind == "kv"
    if config.eval.threads or shared:
        import torch

        torch.set_num_threads(config.eval.threads or max(1, torch.get_num_threads() // processes))


def resumed_config(config: DictConfig, saved: Mapping[str, Any], given: Sequence[str]) -> DictConfig:
    """The saved config with FREE settings of the new one.

    ``given`` are the overrides of the command line. What they set must be as it was; raises ConfigError naming what
    is not.
    """
    if "eval" not in saved:
        raise ConfigError(f"{config.eval.resume} holds a run of another command; resume it with that one")
    here, there = OmegaConf.to_container(config, resolve=True), dict(saved)
    changed: dict[str, str] = {}
    keys = [key_of(override) for override in given]
    for key in keys:
        if not within(key, FREE):
            changed |= changes(_at(here, key), _at(there, key), key)
    if changed:
        shown = ", ".join(f"{key}={change}" for key, change in sorted(changed.items()))
        raise ConfigError(f"{config.eval.resume} was run otherwise: {shown}; leave these out or start anew")
    check_names(there, classes_of(config, given), str(config.eval.resume))
    merged = as_config(there)
    merged.eval.progress = config.eval.progress
    for key in CREW:  # which an older run does not have
        if OmegaConf.select(merged, key) is None and OmegaConf.select(config, key) is not None:
            _copy(merged, key, config)
    if "wandb" in config:
        merged.wandb = config.wandb
    for key in keys:
        if within(key, ELSEWHERE):  # a null that nobody asked for takes nothing back
            _copy(merged, key, config)
    _check_programs(merged, config)
    return merged


def classes_of(config: DictConfig, given: Sequence[str]) -> set[str]:
    """The classes that the command line has chosen: those of its config, and those its overrides name."""
    chosen = {name for _, name in named_classes(OmegaConf.to_container(config, resolve=False))}
    return chosen.union(*(CLASS.findall(override) for override in given))


def check_composed(config: DictConfig, chosen: Collection[str], run: Path) -> None:
    """Raises ConfigError for a config composed of what a run has saved that names other classes than ours and the
    ``chosen``, or looks anything up.
    """
    plain = OmegaConf.to_container(config, resolve=False)
    check_names(plain, chosen, str(run))
    for text in looked_up(plain):
        raise ConfigError(f"{run} has the setting {text!r}, and nothing is looked up for a run folder: start a new run")


def _check_programs(merged: DictConfig, config: DictConfig) -> None:
    """Raises ConfigError where a saved config would start or join a program that the command line does not name."""
    for key, harmless in PROGRAMS.items():
        value = OmegaConf.select(merged, key)
        if value not in harmless and value != OmegaConf.select(config, key):
            raise ConfigError(
                f"{config.eval.resume} was run with {key}={value}, and a run folder cannot choose a program: if it is "
                f"yours, give {as_override(key, str(value))} on the command line"
            )


def _copy(merged: DictConfig, key: str, config: DictConfig) -> None:
    value = OmegaConf.select(config, key)
    plain = OmegaConf.to_container(value, resolve=True) if OmegaConf.is_config(value) else value
    OmegaConf.update(merged, key, literal(plain))


def made_otherwise(config: DictConfig, saved: Mapping[str, Any]) -> dict[str, str]:
    """What ``config`` would do otherwise than the run that saved its own: `changes`, but for FREE settings."""
    if "prompt" in config:
        config.prompt.encoder = literal(chosen_encoder(config.prompt.encoder))
    found = changes(OmegaConf.to_container(config, resolve=True), saved)
    return {key: change for key, change in found.items() if not within(key, (*FREE, *OF_THE_RUN))}


def _at(tree: Any, key: str) -> Any:
    """The value under a dotted key; None where there is none."""
    for part in key.split("."):
        tree = tree.get(part) if isinstance(tree, Mapping) else None
    return tree


def changes(here: Any, there: Any, prefix: str = "") -> dict[str, str]:
    """By dotted key what is not as it was there: the value here, and in brackets what it was."""
    new, old = _leaves(here, prefix), _leaves(there, prefix)
    keys = [key for key in new.keys() | old.keys() if new.get(key) != old.get(key)]
    return {key: f"{new.get(key)} (was {old.get(key)})" for key in keys}


def _leaves(value: Any, prefix: str) -> dict[str, Any]:
    if not isinstance(value, Mapping):
        return {prefix: value}
    return {k: v for key, inner in value.items() for k, v in _leaves(inner, f"{prefix}.{key}".lstrip(".")).items()}

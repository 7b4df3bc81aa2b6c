"""Beginning of a run, anew or as an earlier one, whose config counts: the command line may not ask for others."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, TypeVar

from omegaconf import DictConfig, OmegaConf

from envs.setting import Episode
from eval.common.accepted_overrides import key_of, within
from eval.common.external_settings import check_outside
from keep_agent.config.known_settings import keys_of
from keep_agent.config.literal import as_config, literal, looked_up
from keep_agent.config.setting_types import Kind, check_kinds
from keep_agent.errors import ConfigError, DataError
from keep_agent.rollout.run_folder import AGAIN, CONFIG, RunFolder
from memory.config.component_names import check_names, named_classes
from memory.segments.sentence_encoder import chosen_encoder, warn_of_fallback

Folder = TypeVar("Folder", bound=RunFolder)
Create = Callable[[Mapping[str, Any]], Folder]  # of the config that is saved
THOR = tuple(f"env.thor.{key}" for key in ("platform", "gpu", "display", "server", "start_timeout", "timeout"))
CREW = ("eval.workers", "eval.launcher", "eval.ray")  # who plays
ELSEWHERE = ("bertscore", "env.simulator", "env.record", *CREW, *THOR)  # may be another when a run is resumed elsewhere
OF_THE_RUN = ("weights", "trained", "episodes")  # what a run found and wrote down
LATER = (*CREW, "eval.shard", "eval.frames", "prompt.goal")  # which an older run does not have
OTHER = ("env", "memory", "planner", "wandb")  # of which a run has another choice, or none
MODELS = ("engine", "model")  # without which a planner that has no model plays
ENV = ("env", *(f"env.{key}" for key in ("data", "id", "limit", "observability", "skills", "split", "stream")))
NEEDED = (*ENV, "planner", "planner.kind", "planner.name")  # of these, whatever the choice
CLASS = re.compile(r"_target_\s*[=:]\s*['\"]?([\w.]+)")  # in an override
FREE = ("eval.out", "eval.resume", "eval.progress", "wandb", *ELSEWHERE)


@contextmanager
def begin(
    kind: type[Folder], config: DictConfig, folder: Path, given: Sequence[str], check: Callable[[DictConfig], None]
) -> Iterator[tuple[Folder | None, DictConfig, Create[Folder]]]:
    """The run that ``config`` goes on with, if any, and the config that counts: checked, with its torch threads set.

    The third makes a new run in ``folder``. At the end of the context, however it ends, either run is released.
    """
    with ExitStack() as claimed:
        earlier, config = _begun(kind, config, given, check)
        if earlier is not None:
            claimed.enter_context(earlier)
        yield earlier, config, lambda saved: claimed.enter_context(kind.create(folder, saved))


def _begun(
    kind: type[Folder], config: DictConfig, given: Sequence[str], check: Callable[[DictConfig], None]
) -> tuple[Folder | None, DictConfig]:
    if config.eval.resume is None:
        check(config)
        if config.planner.kind == "kv" and "prompt" in config:
            warn_of_fallback(config.prompt.encoder)
        _name_encoder(config)
        use_threads(config)
        return None, config
    check_kinds(OmegaConf.to_container(config, resolve=True))
    path = Path(config.eval.resume)
    saved = kind.saved(path)
    check_saved(saved, config, str(path / CONFIG))
    _name_encoder(config)
    config = resumed_config(config, saved, given)
    with _read_from(path / CONFIG):
        check_kinds(saved)
    check(config)
    use_threads(config)
    return kind.resume(path), config


def _name_encoder(config: DictConfig) -> None:
    """Write down what ``auto`` is here: a run that goes on elsewhere, or is compared, is one of the encoder it had."""
    if "prompt" in config:
        config.prompt.encoder = literal(chosen_encoder(config.prompt.encoder))


def check_saved(saved: Mapping[str, Any], config: DictConfig, file: str) -> None:
    """Raises DataError unless what a run has saved has the settings of its command, in groups as that has them.

    :param config: a config of the command, whatever its values
    """
    if "eval" not in saved:
        raise DataError(f"{file} is of a run of another command; resume it with that one")
    with _read_from(file):
        check_kinds(saved, only=[Kind.GROUP])
    like = [key for key in keys_of(OmegaConf.to_container(config, resolve=False)) if not within(key, OTHER)]
    like += [key for key in NEEDED if key.partition(".")[0] in config]
    if _at(saved, "planner.kind") == "kv":
        like.append("memory")
    else:
        like = [key for key in like if not within(key, MODELS)]
    for key in like:
        above, _, last = key.rpartition(".")
        parent = _at(saved, above) if above else saved
        if isinstance(parent, Mapping) and last not in parent and key not in LATER:
            raise DataError(f"{file}: there is no {key}; {AGAIN}")


@contextmanager
def _read_from(file: Path | str) -> Iterator[None]:
    """A ConfigError of what was read becomes a DataError that names the file."""
    try:
        yield
    except ConfigError as error:
        raise DataError(f"{file}: {error}") from error


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
    check_outside(merged, config, given, str(config.eval.resume))
    return merged


def check_played(episodes: Sequence[Episode], played: Mapping[int, str], where: Path) -> None:
    """Raises ConfigError for a played episode, by index and id, that is no longer there: the data have changed."""
    for index, name in played.items():
        if index >= len(episodes) or episodes[index].id != name:
            raise ConfigError(f"{where} holds {name}, which the data no longer have there; start a new run")


def classes_of(config: DictConfig, given: Sequence[str]) -> set[str]:
    """The classes that the command line has chosen: those of its config, and those its overrides name."""
    chosen = {name for _, name in named_classes(OmegaConf.to_container(config, resolve=False))}
    return chosen.union(*(CLASS.findall(override) for override in given))


def check_composed(config: DictConfig, asked: DictConfig, given: Sequence[str], run: Path) -> None:
    """Raises ConfigError for a config composed of what a run has saved that names other classes than ours, looks
    anything up, or reaches outside, where the command line does not.

    :param asked: the command line's own config; ``given`` are its overrides
    """
    plain = OmegaConf.to_container(config, resolve=False)
    check_names(plain, classes_of(asked, given), str(run))
    for text in looked_up(plain):
        raise ConfigError(f"{run} has the setting {text!r}, and nothing is looked up for a run folder: start a new run")
    check_outside(config, asked, given, str(run))


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

"""Start of a new or resumed run. A resumed run keeps its saved config; conflicting overrides are rejected."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, TypeVar

from omegaconf import DictConfig, OmegaConf

from envs.setting import Episode
from eval.common.external_settings import check_external
from eval.common.variants import key_of, within
from keep_agent.config.known_settings import keys_of
from keep_agent.config.literal import as_config, interpolations, literal
from keep_agent.config.setting_types import ValueKind, check_kinds
from keep_agent.errors import ConfigError, DataError
from keep_agent.rollout.run_folder import CONFIG, RESTORE, RunFolder
from memory.config.component_names import check_names, named_classes
from memory.segments.sentence_encoder import resolve_encoder, warn_of_fallback

Folder = TypeVar("Folder", bound=RunFolder)
CreateFolder = Callable[[Mapping[str, Any]], Folder]  # makes a run folder that holds the config
THOR_KEYS = tuple(f"env.thor.{key}" for key in ("platform", "gpu", "display", "server", "start_timeout", "timeout"))
WORKER_KEYS = ("eval.workers", "eval.launcher", "eval.ray")  # which processes play the episodes
# Settings of the machine, and bertscore; a resumed run takes them from the command line if they are set there.
MACHINE_KEYS = ("bertscore", "env.simulator", "env.record", *WORKER_KEYS, *THOR_KEYS)
RUN_KEYS = ("weights", "trained", "episodes")  # written by the run itself
NEWER_KEYS = (  # missing in older runs
    *WORKER_KEYS, "eval.shard", "eval.frames", "prompt.goal", "prompt.focus", "prompt.preamble",
)  # fmt: skip
CHOICE_KEYS = ("env", "memory", "planner", "wandb")  # config groups whose keys depend on the chosen option
MODEL_KEYS = ("engine", "model")  # not needed by planners without a model
ENV_KEYS = ("env", *(f"env.{key}" for key in ("data", "id", "limit", "observability", "skills", "split", "stream")))
REQUIRED_KEYS = (*ENV_KEYS, "planner", "planner.kind", "planner.name")  # keys in every option of env and planner
CLASS_OVERRIDE = re.compile(r"_target_\s*[=:]\s*['\"]?([\w.]+)")  # finds the class that an override names
FREE_KEYS = ("eval.out", "eval.resume", "eval.progress", "wandb", *MACHINE_KEYS)  # a resumed run may change these


@contextmanager
def begin_run(
    kind: type[Folder], config: DictConfig, folder: Path, overrides: Sequence[str], check: Callable[[DictConfig], None]
) -> Iterator[tuple[Folder | None, DictConfig, CreateFolder[Folder]]]:
    """Check ``config``, set the number of torch threads, and open the run that ``eval.resume`` names.

    Yields the resumed run (or None), the config to use, and a function that makes a new run in ``folder``. At the end
    of the context the run folder is unlocked.
    """
    with ExitStack() as stack:
        earlier = None
        if config.eval.resume is None:
            check(config)
            if config.planner.kind == "kv" and "prompt" in config:
                warn_of_fallback(config.prompt.encoder)
            _resolve_encoder(config)
            use_threads(config)
        else:
            check_kinds(OmegaConf.to_container(config, resolve=True))
            path = Path(config.eval.resume)
            saved = kind.saved(path)
            check_saved(saved, config, str(path / CONFIG))
            _resolve_encoder(config)
            config = resumed_config(config, saved, overrides)
            with _as_data_error(path / CONFIG):
                check_kinds(saved)
            check(config)
            use_threads(config)
            earlier = stack.enter_context(kind.resume(path))
        yield earlier, config, lambda saved: stack.enter_context(kind.create(folder, saved))


def _resolve_encoder(config: DictConfig) -> None:
    """Replace the encoder ``auto`` by the encoder that it selects, so that a resumed run uses the same."""
    if "prompt" in config:
        config.prompt.encoder = literal(resolve_encoder(config.prompt.encoder))


def check_saved(saved: Mapping[str, Any], config: DictConfig, file: str) -> None:
    """Raise DataError if a saved config lacks a setting of its command; ``config``: any config of that command."""
    if "eval" not in saved:
        raise DataError(f"{file} belongs to a run of another command; resume it with that command")
    with _as_data_error(file):
        check_kinds(saved, only=[ValueKind.GROUP])
    has_model = _value_at(saved, "planner.kind") == "kv"
    optional = CHOICE_KEYS if has_model else (*CHOICE_KEYS, *MODEL_KEYS)
    needed_keys = [key for key in keys_of(OmegaConf.to_container(config, resolve=False)) if not within(key, optional)]
    needed_keys += [key for key in REQUIRED_KEYS if key.partition(".")[0] in config]
    needed_keys += ["memory"] if has_model else []
    for key in needed_keys:
        above, _, last = key.rpartition(".")
        parent = _value_at(saved, above) if above else saved
        if isinstance(parent, Mapping) and last not in parent and key not in NEWER_KEYS:
            raise DataError(f"{file}: there is no {key}; {RESTORE}")


@contextmanager
def _as_data_error(file: Path | str) -> Iterator[None]:
    """Turn a ConfigError about a file's content into a DataError that names the file."""
    try:
        yield
    except ConfigError as error:
        raise DataError(f"{file}: {error}") from error


def use_threads(config: DictConfig, processes: int = 1) -> None:
    """Set torch's threads to ``eval.threads``; if null, ``processes`` with models split torch's default number."""
    shared = processes > 1 and config.planner.kind == "kv"
    if config.eval.threads or shared:
        import torch

        torch.set_num_threads(config.eval.threads or max(1, torch.get_num_threads() // processes))


def resumed_config(config: DictConfig, saved: Mapping[str, Any], overrides: Sequence[str]) -> DictConfig:
    """Return the saved config changed by ``overrides``. Raises ConfigError if a key outside `FREE_KEYS` changes."""
    new_config, saved_config = OmegaConf.to_container(config, resolve=True), dict(saved)
    changed: dict[str, str] = {}
    keys = [key_of(override) for override in overrides]
    for key in keys:
        if not within(key, FREE_KEYS):
            changed |= changed_settings(_value_at(new_config, key), _value_at(saved_config, key), key)
    run = str(config.eval.resume)
    if changed:
        text = ", ".join(f"{key}={change}" for key, change in sorted(changed.items()))
        raise ConfigError(f"{run} was run with other settings: {text}; leave these out or start a new run")
    check_names(saved_config, classes_of(config, overrides), run)
    merged = as_config(saved_config)
    merged.eval.progress = config.eval.progress
    for key in WORKER_KEYS:  # missing in older runs
        if OmegaConf.select(merged, key) is None and OmegaConf.select(config, key) is not None:
            _copy(merged, key, config)
    if "wandb" in config:
        merged.wandb = config.wandb
    for key in keys:
        if within(key, MACHINE_KEYS):  # only overrides replace saved values, defaults do not
            _copy(merged, key, config)
    check_external(merged, config, overrides, run)
    return merged


def check_played(episodes: Sequence[Episode], ids: Mapping[int, str], place: Path) -> None:
    """Raise ConfigError unless each played episode (``ids``: its id by index) still has its index in the data."""
    for index, name in ids.items():
        if index >= len(episodes) or episodes[index].id != name:
            raise ConfigError(f"{place} holds {name}, which the data no longer hold at index {index}; start a new run")


def classes_of(config: DictConfig, overrides: Sequence[str]) -> set[str]:
    """Return the classes chosen by the command line: those in its config, and those in its overrides."""
    names = {name for _, name in named_classes(OmegaConf.to_container(config, resolve=False))}
    return names.union(*(CLASS_OVERRIDE.findall(override) for override in overrides))


def check_composed(config: DictConfig, command_config: DictConfig, overrides: Sequence[str], run: Path) -> None:
    """Raise ConfigError for interpolations, and for classes and external settings that the command line lacks."""
    plain = OmegaConf.to_container(config, resolve=False)
    check_names(plain, classes_of(command_config, overrides), str(run))
    for text in interpolations(plain):
        remedy = "interpolations of a run folder are not resolved: start a new run"
        raise ConfigError(f"{run} has the setting {text!r}, and {remedy}")
    check_external(config, command_config, overrides, str(run))


def _copy(merged: DictConfig, key: str, config: DictConfig) -> None:
    value = OmegaConf.select(config, key)
    plain = OmegaConf.to_container(value, resolve=True) if OmegaConf.is_config(value) else value
    OmegaConf.update(merged, key, literal(plain))


def differing_settings(config: DictConfig, saved: Mapping[str, Any]) -> dict[str, str]:
    """Return the `changed_settings` of ``config`` against a saved config, without `FREE_KEYS` and `RUN_KEYS`."""
    _resolve_encoder(config)
    changes = changed_settings(OmegaConf.to_container(config, resolve=True), saved)
    return {key: change for key, change in changes.items() if not within(key, (*FREE_KEYS, *RUN_KEYS))}


def _value_at(tree: Any, key: str) -> Any:
    for part in key.split("."):
        tree = tree.get(part) if isinstance(tree, Mapping) else None
    return tree


def changed_settings(new: Any, old: Any, prefix: str = "") -> dict[str, str]:
    """Return the differing settings by dotted key, as text: the new value, and the old value in brackets."""
    new, old = flatten(new, prefix), flatten(old, prefix)
    keys = [key for key in new.keys() | old.keys() if new.get(key) != old.get(key)]
    return {key: f"{new.get(key)} (was {old.get(key)})" for key in keys}


def flatten(value: Any, prefix: str = "") -> dict[str, Any]:
    """Flatten nested mappings into values by dotted key."""
    if not isinstance(value, Mapping):
        return {prefix: value}
    return {k: v for key, inner in value.items() for k, v in flatten(inner, f"{prefix}.{key}".lstrip(".")).items()}

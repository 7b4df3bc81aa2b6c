"""Settings with effects outside a run folder: programs to start, network addresses, files written elsewhere.

A run folder may come from another user, so only the command line may set these settings.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from omegaconf import DictConfig, OmegaConf

from keep_agent.config.literal import as_override
from keep_agent.config.settings import LAUNCHER, RAY
from keep_agent.errors import ConfigError

EXTERNAL_KEYS = {  # by key: what the value names, and values that are always harmless
    "env.thor.executable": ("a program", (None, "stand-in")),  # the AI2-THOR stub
    "env.thor.display": ("an address", (None,)),
    "env.simulator": ("an address", (None,)),
    "env.record": ("a file to write", (None,)),
    "eval.ray.address": ("an address", (None, "auto")),
}
FOLDER = "folder"  # key of a storage's folder, at any depth of a method's config
STORAGE_FOLDER = ("a folder to write", (None,))  # null: the user's cache folder


def check_external(saved: DictConfig, command_config: DictConfig, overrides: Sequence[str], run: str) -> None:
    """Raise ConfigError if an external setting of a resumed ``run`` is neither harmless nor on the command line."""
    command_line = dict(_external_settings(command_config))
    for key, value in _external_settings(saved):
        if key == "eval.ray.address" and OmegaConf.select(saved, LAUNCHER) != RAY:
            continue  # the address is unused
        what, harmless = EXTERNAL_KEYS.get(key, STORAGE_FOLDER)
        pattern = re.compile(rf"{re.escape(f'{key}={value}')}(?=$|[+,'\"\]])")  # alone, or in keep+KEY=VALUE
        if value not in (*harmless, command_line.get(key)) and not any(map(pattern.search, overrides)):
            raise ConfigError(
                f"{run} was run with {key}={value}, and a run folder cannot choose {what}: if you trust it, give "
                f"{as_override(key, str(value))}, and the settings it needs, on the command line"
            )


def _external_settings(config: DictConfig) -> Iterator[tuple[str, Any]]:
    for key in EXTERNAL_KEYS:
        yield key, OmegaConf.select(config, key)
    memory = OmegaConf.select(config, "memory")
    yield from _folders(OmegaConf.to_container(memory, resolve=False) if memory is not None else {}, "memory")


def _folders(values: Any, place: str) -> Iterator[tuple[str, Any]]:
    parts = values.items() if isinstance(values, Mapping) else enumerate(values if isinstance(values, list) else ())
    for key, value in parts:
        if key == FOLDER:
            yield f"{place}.{key}", value
        yield from _folders(value, f"{place}.{key}")

"""Settings that reach outside a run folder: programs that are started, addresses that are talked to, files that are
written elsewhere. A run folder may come from somebody else, so it never chooses them.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from omegaconf import DictConfig, OmegaConf

from keep_agent.config.literal import as_override
from keep_agent.config.settings import LAUNCHER, RAY
from keep_agent.errors import ConfigError

OUTSIDE = {  # what they choose, and the values that are harmless whoever wrote them
    "env.thor.executable": ("a program", (None, "stand-in")),
    "env.thor.display": ("an address", (None,)),
    "env.simulator": ("an address", (None,)),
    "env.record": ("a file that is written", (None,)),
    "eval.ray.address": ("an address", (None, "auto")),
}
FOLDER = "folder"  # of a storage, wherever it is in a method
WRITTEN = ("a folder that is written to", (None,))  # null: the user's own cache folder


def check_outside(saved: DictConfig, asked: DictConfig, given: Sequence[str], run: str) -> None:
    """Raises ConfigError where what a ``run`` has saved reaches outside, unless the command line says the same.

    :param saved: what counts when the run goes on
    :param asked: what the command line is composed to; ``given`` are its overrides, which may name several methods
    """
    mine = dict(_reaching(asked))
    for key, value in _reaching(saved):
        if key == "eval.ray.address" and OmegaConf.select(saved, LAUNCHER) != RAY:
            continue  # nothing goes there
        what, harmless = OUTSIDE.get(key, WRITTEN)
        if value not in harmless and value != mine.get(key) and not _is_named(key, value, given):
            raise ConfigError(
                f"{run} was run with {key}={value}, and a run folder cannot choose {what}: if it is yours, give "
                f"{as_override(key, str(value))}, and what it needs, on the command line"
            )


def _is_named(key: str, value: Any, given: Sequence[str]) -> bool:
    """Whether an override says so, if only for one of several methods."""
    named = re.compile(rf"{re.escape(f'{key}={value}')}(?=$|[+,'\"\]])")
    return any(named.search(override) for override in given)


def _reaching(config: DictConfig) -> Iterator[tuple[str, Any]]:
    """The settings that may reach outside, by dotted key."""
    for key in OUTSIDE:
        yield key, OmegaConf.select(config, key)
    memory = OmegaConf.select(config, "memory")
    yield from _folders(OmegaConf.to_container(memory, resolve=False) if memory is not None else {}, "memory")


def _folders(values: Any, place: str) -> Iterator[tuple[str, Any]]:
    """The values under `FOLDER`, at any depth, by dotted key."""
    parts = values.items() if isinstance(values, Mapping) else enumerate(values if isinstance(values, list) else ())
    for key, value in parts:
        if key == FOLDER:
            yield f"{place}.{key}", value
        yield from _folders(value, f"{place}.{key}")

"""Overrides ``KEY=VALUE`` of a command, and variants of methods.

A variant is ``PLANNER+KEY=VALUE+...`` or ``NAME:PLANNER+...``, such as ``one_hop:keep+memory.recompute.max_hops=0``.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from hydra.core.global_hydra import GlobalHydra
from hydra.core.singleton import Singleton
from omegaconf import DictConfig, ListConfig

from keep_agent.config.compose import compose_settings
from keep_agent.config.known_settings import UnknownSetting
from keep_agent.config.settings import check_settings
from keep_agent.errors import ConfigError, did_you_mean


def key_of(override: str) -> str:
    """Return the dotted key or config group that an override sets."""
    return override.lstrip("+~").partition("=")[0].partition("@")[0].replace("/", ".")


def within(key: str, names: Collection[str]) -> bool:
    """Return whether the key is one of ``names`` or below one of them."""
    return any(key == name or key.startswith(f"{name}.") for name in names)


def check_overrides(overrides: Sequence[str], readable_keys: Collection[str], replacements: Mapping[str, str]) -> None:
    """Raise ConfigError for a key outside ``readable_keys``, or in ``replacements`` (the option to use, by key)."""
    for override in overrides:
        key = key_of(override)
        if key in replacements:
            raise ConfigError(f"{override} is not read here; use {replacements[key]}")
        if not within(key, readable_keys):
            hint = did_you_mean(key, readable_keys, cutoff=0.75)
            raise ConfigError(f"{override} is not read here; keys that are read: {', '.join(readable_keys)}{hint}")


PLAIN = "transformers"  # name of transformers' own forward in a list of methods
METHOD_KEYS = ("memory", "planner")  # keys in which methods may differ (`eval.latency`)
MEMORY_KEYS = ("memory", "prompt.budget")  # the same for `eval.recall`
DECISION_KEYS = (*MEMORY_KEYS, "planner", "prompt.style")  # the same for comparisons of decisions


def name_list(text: str) -> list[str]:
    """Split a comma-separated list; ``none`` and lone commas give an empty list."""
    return [] if text == "none" else [part for part in text.split(",") if part]


def check_distinct(option: str, values: Sequence[str], key: Callable[[str], Any] = str) -> None:
    """Raise ConfigError if two values of an option have the same ``key``."""
    if len(set(map(key, values))) < len(values):
        raise ConfigError(f"--{option} {','.join(values)} names a value twice; name each once")


def as_list(value: Any) -> list[Any]:
    """Return the items of a ListConfig or of a text with commas; any other value as the only item of a list."""
    if isinstance(value, ListConfig):
        return list(value)
    return list(name_list(value)) if isinstance(value, str) else [value]


@contextmanager
def separate_hydra() -> Iterator[None]:
    """Allow the composition of other configs while Hydra runs a job."""
    running = Singleton.get_state()
    GlobalHydra.instance().clear()
    try:
        yield
    finally:
        Singleton.set_state(running)


def compose_variants(
    variants: Sequence[str], overrides: Sequence[str], allowed: Collection[str] = DECISION_KEYS
) -> dict[str, DictConfig]:
    """Return configs by variant name, each composed from ``overrides`` and the variant's own overrides after ``+``.

    :param allowed: keys that a variant's own overrides may set
    :raises ConfigError: a variant is named twice, has no memory, or overrides a key outside ``allowed``
    """
    parts = [variant.partition(":") for variant in variants]
    methods = {label: method or label for label, _, method in parts}
    if len(methods) < len(variants):
        raise ConfigError(f"{','.join(variants)} names a method twice; give variants names: NAME:PLANNER+...")
    configs = {}
    for label, method in methods.items():
        planner, *extra = method.split("+")
        for override in extra:
            if not within(key_of(override), allowed):
                raise ConfigError(
                    f"method {label}: methods may differ only in {', '.join(allowed)}, not in {override!r}; give it to "
                    "all methods, without the +"
                )
        try:
            configs[label] = compose_settings("alfred", [f"planner={planner}", *overrides, *extra])
        except UnknownSetting as error:
            raise ConfigError(
                f"method {label}: {error}; if only some methods have this setting, append it to those: NAME+KEY=VALUE"
            ) from error
    for variant, config in configs.items():
        check_settings(config)
        if "memory" not in config:
            raise ConfigError(f"method {variant} has no memory to measure; see `keep-agent methods`")
    return configs


def check_methods(configs: Mapping[str, DictConfig]) -> None:
    """Raise ConfigError for a method that cannot be built, before a model is loaded."""
    from keep_agent.config.planner_factory import make_method  # lazy: it loads torch

    for config in configs.values():
        make_method(config.memory)

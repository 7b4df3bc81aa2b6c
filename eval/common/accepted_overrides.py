"""Overrides ``KEY=VALUE`` that a command accepts. All others are refused, because ignoring them would mislead."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

from keep_agent.errors import ConfigError, did_you_mean


def key_of(override: str) -> str:
    """Return the dotted key that an override sets, also for a config group."""
    return override.lstrip("+~").partition("=")[0].partition("@")[0].replace("/", ".")


def within(key: str, names: Collection[str]) -> bool:
    """Return whether the key is one of ``names`` or below one of them."""
    return any(key == name or key.startswith(f"{name}.") for name in names)


def check_overrides(overrides: Sequence[str], read: Collection[str], instead: Mapping[str, str]) -> None:
    """Raises ConfigError for keys outside ``read`` and for keys replaced by an option (``instead``: option by key)."""
    for override in overrides:
        key = key_of(override)
        if key in instead:
            raise ConfigError(f"{override} is not read here; use {instead[key]}")
        if not within(key, read):
            hint = did_you_mean(key, read, cutoff=0.75)
            raise ConfigError(f"{override} is not read here; these keys are: {', '.join(read)}{hint}")

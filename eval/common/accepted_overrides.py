"""Which ``KEY=VALUE`` a command reads. What it does not read is refused: dropped, it would seem to have no effect."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

from keep_agent.errors import ConfigError, did_you_mean


def key_of(override: str) -> str:
    """The dotted key that it sets; a config group has one, too."""
    return override.lstrip("+~").partition("=")[0].partition("@")[0].replace("/", ".")


def within(key: str, names: Collection[str]) -> bool:
    """Is the key one of ``names``, or below one of them?"""
    return any(key == name or key.startswith(f"{name}.") for name in names)


def check_overrides(overrides: Sequence[str], read: Collection[str], instead: Mapping[str, str]) -> None:
    """Raises ConfigError for what is not within ``read``, and for the keys that have an option ``instead``."""
    for override in overrides:
        key = key_of(override)
        if key in instead:
            raise ConfigError(f"{override} is not read here; use {instead[key]}")
        if not within(key, read):
            hint = did_you_mean(key, read, cutoff=0.75)
            raise ConfigError(f"{override} is not read here; what is: {', '.join(read)}{hint}")

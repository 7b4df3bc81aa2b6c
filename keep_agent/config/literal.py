"""Literal values in configs and overrides: text that was given or read stays what it is, whatever characters it has."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

from hydra.core.override_parser.types import Quote, QuotedString
from omegaconf import DictConfig, OmegaConf

from keep_agent.errors import ConfigError

MISSING = "???"  # OmegaConf's mark of a value that must be given; it cannot be escaped
PLAIN = re.compile(r"/[A-Za-z0-9_./-]*")  # a path that Hydra reads as it stands
INTERPOLATION = re.compile(r"(\\*)\$\{")


def as_override(key: str, text: str) -> str:
    """The override that sets ``key`` to ``text`` exactly."""
    return f"{key}={text if PLAIN.fullmatch(text) else quoted(text)}"


def quoted(text: str) -> str:
    """``text`` as Hydra's grammar writes it."""
    return QuotedString(_escaped(text), Quote.single).with_quotes()


def as_config(values: Mapping[str, Any]) -> DictConfig:
    """A config of these plain values, in which ``${...}`` is text: no environment, file or other key is looked up."""
    return OmegaConf.create(literal(dict(values)))


def literal(value: Any) -> Any:
    """A plain value as one that OmegaConf reads as it is."""
    if isinstance(value, str):
        return _escaped(value)
    if isinstance(value, Mapping):
        return {key: literal(inner) for key, inner in value.items()}
    return [literal(inner) for inner in value] if isinstance(value, list | tuple) else value


def _escaped(text: str) -> str:
    """Raises ConfigError for the one text that cannot be."""
    if text == MISSING:
        raise ConfigError(f"{MISSING!r} means a missing value in a config and cannot be a name: write './{MISSING}'")
    return INTERPOLATION.sub(r"\1\1\\${", text)


def as_read(value: Any) -> Any:
    """What OmegaConf makes of an override's value in which it looks nothing up."""
    read: dict[str, Any] = OmegaConf.to_container(OmegaConf.create({"value": value}), resolve=True)  # type: ignore[assignment]
    return read["value"]


def unreadable(override: str) -> str:
    """The sentence for an override that Hydra's grammar cannot read."""
    key, _, value = override.partition("=")
    quotes = f'; put a value with special characters in quotes, as in "{as_override(key, value)}"' if value else ""
    return f"{override} cannot be read as KEY=VALUE{quotes}"


def looked_up(value: Any) -> Iterator[str]:
    """The texts, at any depth of a config's values, in which OmegaConf would look something up."""
    if isinstance(value, str) and any(len(found[1]) % 2 == 0 for found in INTERPOLATION.finditer(value)):
        yield value
    if isinstance(value, Mapping):
        value = list(value.values())
    if isinstance(value, list):
        for inner in value:
            yield from looked_up(inner)

"""Literal values in configs and overrides: quoting of texts that Hydra and OmegaConf must not interpret."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

from hydra.core.override_parser.types import Quote, QuotedString
from omegaconf import DictConfig, OmegaConf

from keep_agent.errors import ConfigError

MISSING = "???"  # text by which OmegaConf marks a missing value; it cannot be escaped
PLAIN = re.compile(r"/[A-Za-z0-9_./-]*")  # a path that needs no quotes
INTERPOLATION = re.compile(r"(\\*)\$\{")


def as_override(key: str, text: str) -> str:
    """Return the override that sets ``key`` to ``text`` exactly."""
    return f"{key}={text if PLAIN.fullmatch(text) else quote(text)}"


def quote(text: str) -> str:
    return QuotedString(_escape(text), Quote.single).with_quotes()


def as_config(values: Mapping[str, Any]) -> DictConfig:
    """Make a config of plain values, in which ``${...}`` is text, not an interpolation."""
    return OmegaConf.create(literal(dict(values)))


def literal(value: Any) -> Any:
    if isinstance(value, str):
        return _escape(value)
    if isinstance(value, Mapping):
        return {key: literal(inner) for key, inner in value.items()}
    return [literal(inner) for inner in value] if isinstance(value, list | tuple) else value


def _escape(text: str) -> str:
    if text == MISSING:
        raise ConfigError(f"{MISSING!r} marks a missing value in a config; for a file of this name write './{MISSING}'")
    return INTERPOLATION.sub(r"\1\1\\${", text)


def parse_value(value: Any) -> Any:
    """Return an override's ``value`` as OmegaConf parses it. ``value`` must contain no interpolation."""
    config: dict[str, Any] = OmegaConf.to_container(OmegaConf.create({"value": value}), resolve=True)  # type: ignore[assignment]
    return config["value"]


def parse_error_message(override: str) -> str:
    key, _, value = override.partition("=")
    quotes = f'; put a value with special characters in quotes, as in "{as_override(key, value)}"' if value else ""
    return f"{override} cannot be read as KEY=VALUE{quotes}"


def interpolations(value: Any) -> Iterator[str]:
    """Yield all texts with an interpolation in a config value, at any depth."""
    if isinstance(value, str) and any(len(match[1]) % 2 == 0 for match in INTERPOLATION.finditer(value)):
        yield value
    inner = value.values() if isinstance(value, Mapping) else value if isinstance(value, list) else ()
    for item in inner:
        yield from interpolations(item)

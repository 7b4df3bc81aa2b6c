"""Outcome of an action, and the error for unknown skills, for all worlds."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from keep_agent.errors import ConfigError, SkillError, did_you_mean


@dataclass(frozen=True, slots=True)
class Outcome:
    """Result of a skill or action; the message is a failure's reason, or empty. Raises ConfigError for wrong types."""

    ok: bool
    message: str = ""

    def __post_init__(self) -> None:
        object.__setattr__(self, "ok", checked_flag("ok", self.ok))
        if not isinstance(self.message, str):
            raise ConfigError(f"message={self.message!r:.80}: give a text, or an empty one if there is no reason")


def checked_flag(name: str, value: Any) -> bool:
    """Return a Python or numpy boolean as ``bool``. Raises ConfigError for any other value: bool("failed") is True."""
    numpy = sys.modules.get("numpy")  # if numpy is not loaded, no value is a numpy boolean
    if isinstance(value, bool) or (numpy is not None and isinstance(value, numpy.bool_)):
        return bool(value)
    raise ConfigError(f"{name}={value!r:.80}: give True or False")


SUCCESS = Outcome(True)


def failed(message: str) -> Outcome:
    """Return a failure with its reason."""
    return Outcome(False, message)


def unknown_skill(skill: str, known: Iterable[str]) -> SkillError:
    """Return the error for an unknown skill, with the closest known skill."""
    return SkillError(f"unknown skill {skill!r}{did_you_mean(skill, known, cutoff=0.0)}")

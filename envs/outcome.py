"""Outcome of an action, and the error for a skill that nobody knows. Shared by all worlds."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from envs.hints import did_you_mean
from keep_agent.errors import ConfigError, SkillError


@dataclass(frozen=True, slots=True)
class Outcome:
    """Whether a primitive or skill worked. The message says why it did not, where somebody knows; it may be empty.

    :raises ConfigError: ``ok`` is neither True nor False, or ``message`` is no text
    """

    ok: bool
    message: str = ""

    def __post_init__(self) -> None:
        object.__setattr__(self, "ok", checked_flag("ok", self.ok))
        if not isinstance(self.message, str):
            raise ConfigError(f"message={self.message!r:.80}: give a text; an empty one says nothing")


def checked_flag(name: str, value: Any) -> bool:
    """``value`` if it is True or False, also numpy's. Raises ConfigError: text such as "failed" would count as true."""
    numpy = sys.modules.get("numpy")  # without it no value is one of its flags
    if isinstance(value, bool) or (numpy is not None and isinstance(value, numpy.bool_)):
        return bool(value)
    raise ConfigError(f"{name}={value!r:.80}: give True or False")


DONE = Outcome(True)


def failed(message: str) -> Outcome:
    """A failure with its reason."""
    return Outcome(False, message)


def unknown_skill(skill: str, known: Iterable[str]) -> SkillError:
    """The error for a skill nobody knows, with the closest one that exists."""
    return SkillError(f"unknown skill {skill!r}{did_you_mean(skill, known, cutoff=0.0)}")

"""What becomes of an action, and the error for a skill that nobody knows. Shared by all worlds."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from envs.hints import did_you_mean
from keep_agent.errors import SkillError


@dataclass(frozen=True, slots=True)
class Outcome:
    """Whether a primitive or skill worked. The message says why it did not, where somebody knows; it may be empty."""

    ok: bool
    message: str = ""


DONE = Outcome(True)


def failed(message: str) -> Outcome:
    """A failure with its reason."""
    return Outcome(False, message)


def unknown_skill(skill: str, known: Iterable[str]) -> SkillError:
    """The error for a skill nobody knows, with the closest one that exists."""
    return SkillError(f"unknown skill {skill!r}{did_you_mean(skill, known, cutoff=0.0)}")

"""What becomes of an action, and the error for a skill that nobody knows. Shared by all worlds."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from difflib import get_close_matches

from keep_agent.errors import SkillError


@dataclass(frozen=True, slots=True)
class Outcome:
    """Whether a primitive or skill worked; the sentence says why it did not (empty on success)."""

    ok: bool
    message: str = ""


DONE = Outcome(True)


def failed(message: str) -> Outcome:
    """A failure with its reason."""
    return Outcome(False, message)


def unknown_skill(skill: str, known: Iterable[str]) -> SkillError:
    """The error for a skill nobody knows, with the closest one that exists."""
    closest = get_close_matches(skill, list(known), n=1, cutoff=0.0)
    hint = f"; did you mean {closest[0]!r}?" if closest else ""
    return SkillError(f"unknown skill {skill!r}{hint}")

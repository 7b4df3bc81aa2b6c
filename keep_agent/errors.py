"""Errors, all derived from `KeepError`, and checks of values. Imports no other module of the project."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from difflib import get_close_matches


class KeepError(Exception):
    """Error that the user can act on; the message names the value and the remedy."""


class ConfigError(KeepError, ValueError):
    """Invalid setting or argument."""


class StaleError(KeepError, RuntimeError):
    """Request based on an outdated state."""


class DataError(KeepError, ValueError):
    """Input data that is missing, truncated or in an unexpected format."""


class CorruptError(DataError):
    """Stored file whose bytes have changed since it was written."""


class SkillError(KeepError, ValueError):
    """Skill, verb or node that the simulated world does not have."""


class EpisodeError(KeepError, RuntimeError):
    """Simulator failure in this episode; the next episode may succeed."""


class ModelError(KeepError, RuntimeError):
    """Model that cannot be loaded or run."""


class StorageError(KeepError, OSError):
    """File or folder that cannot be written: read-only, forbidden or broken."""


class CapacityError(KeepError, MemoryError):
    """Exceeded capacity; the message gives the size and the limit."""


class TooLongError(CapacityError):
    """Text with more tokens than the model has positions."""


def did_you_mean(word: str, known: Iterable[str], cutoff: float = 0.6) -> str:
    """Return "; did you mean X?" for the known word X closest to ``word``; "" if no word is similar."""
    by_lower = {entry.lower(): entry for entry in known}
    closest = get_close_matches(word.lower(), list(by_lower), 1, cutoff)
    return f"; did you mean {by_lower[closest[0]]!r}?" if closest else ""


def check_choice(name: str, value: object, allowed: Iterable[str], *, null: bool = False) -> None:
    """Raises ConfigError for a value that is not in ``allowed``; with ``null`` None is accepted, too."""
    choices = tuple(allowed)
    if value in choices or (null and value is None):
        return
    options = ", ".join([*choices, *(["null"] if null else [])])
    raise ConfigError(f"{name}={value!r} is unknown; use one of {options}{did_you_mean(str(value), choices)}")


def check_rate(value: float) -> None:
    """Raises ConfigError for a learning rate outside (0, 1]."""
    if not 0 < value <= 1:
        raise ConfigError(f"--lr {value:g} is not a learning rate: give a number above 0, up to 1")


def check_once(ids: Iterable[str], what: str, remedy: str) -> None:
    """Raises DataError for a repeated id. ``what`` is the noun before the id in the message."""
    id, count = next(iter(Counter(ids).most_common(1)), ("", 0))
    if count > 1:
        raise DataError(f"{what} {id!r} occurs {count} times; {remedy}")

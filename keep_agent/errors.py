"""Errors with one root class, and checks with hints for unknown values. Imports no other module of the project."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from difflib import get_close_matches


class KeepError(Exception):
    """An error that the user can act on; the message names the value and the remedy."""


class ConfigError(KeepError, ValueError):
    """A setting that cannot work."""


class StaleError(KeepError, RuntimeError):
    """A request that builds on a state that has changed."""


class DataError(KeepError, ValueError):
    """Input files that are missing, truncated or of another format."""


class CorruptError(DataError):
    """A stored file whose bytes have changed."""


class SkillError(KeepError, ValueError):
    """A skill that the world does not have."""


class EpisodeError(KeepError, RuntimeError):
    """A simulator that fails in this episode; the next one may succeed."""


class ModelError(KeepError, RuntimeError):
    """A model that cannot be loaded or driven."""


class StorageError(KeepError, OSError):
    """A place that cannot be written: read-only, forbidden or broken."""


class CapacityError(KeepError, MemoryError):
    """Something does not fit; the message says by how much."""


class TooLongError(CapacityError):
    """A text is longer than the model has positions."""


def did_you_mean(word: str, known: Iterable[str], cutoff: float = 0.6) -> str:
    """Return a hint to append to a message: the known word most similar to ``word`` (`difflib`'s ratio), or ""."""
    by_lower = {entry.lower(): entry for entry in known}
    closest = get_close_matches(word.lower(), list(by_lower), 1, cutoff)
    return f"; did you mean {by_lower[closest[0]]!r}?" if closest else ""


def check_choice(name: str, value: object, allowed: Iterable[str], *, null: bool = False) -> None:
    """Raises ConfigError for a value that is not ``allowed``; with ``null`` None is allowed too."""
    choices = tuple(allowed)
    if value in choices or (null and value is None):
        return
    options = ", ".join([*choices, *(["null"] if null else [])])
    raise ConfigError(f"{name}={value!r} is unknown; use one of {options}{did_you_mean(str(value), choices)}")


def check_rate(value: float) -> None:
    """Raises ConfigError for a learning rate outside (0, 1]."""
    if not 0 < value <= 1:
        raise ConfigError(f"--lr {value:g} is no learning rate: give a number above 0, 1 at most")


def check_once(ids: Iterable[str], what: str, remedy: str) -> None:
    """Raises DataError for a repeated id; ``what`` names the things that have ids."""
    id, count = next(iter(Counter(ids).most_common(1)), ("", 0))
    if count > 1:
        raise DataError(f"{what} {id!r} is there {count} times; {remedy}")

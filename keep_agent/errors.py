"""Errors: one root for all of them, and the words that go with a value nobody knows. Imports nothing of ours."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from difflib import get_close_matches


class KeepError(Exception):
    """Something the user can act on; the message names the value and the remedy."""


class ConfigError(KeepError, ValueError):
    """A setting that cannot work."""


class StaleError(KeepError, RuntimeError):
    """What was asked for builds on something that is no longer so."""


class DataError(KeepError, ValueError):
    """Input files that are missing, truncated or not what they claim to be."""


class CorruptError(DataError):
    """A stored file whose bytes are no longer those that were written."""


class SkillError(KeepError, ValueError):
    """A skill the world does not know."""


class EpisodeError(KeepError, RuntimeError):
    """A simulator that does not get through this episode, where the next one may go well."""


class ModelError(KeepError, RuntimeError):
    """A model that cannot be loaded or driven."""


class StorageError(KeepError, OSError):
    """A place where nothing can be written: it is read-only, forbidden or broken."""


class CapacityError(KeepError, MemoryError):
    """Something does not fit; the message says by how much."""


class TooLongError(CapacityError):
    """A text is longer than the model has positions."""


def did_you_mean(word: str, known: Iterable[str], cutoff: float = 0.6) -> str:
    """A hint to append to a message: the known word that is most like ``word``, or "" if none is like it.

    :param cutoff: least likeness of the two, from 0 to 1, as `difflib` measures it
    """
    by_lower = {one.lower(): one for one in known}
    closest = get_close_matches(word.lower(), list(by_lower), 1, cutoff)
    return f"; did you mean {by_lower[closest[0]]!r}?" if closest else ""


def check_choice(name: str, value: object, allowed: Iterable[str], *, null: bool = False) -> None:
    """Raises ConfigError for a value that is none of those ``allowed``; with ``null`` None is allowed too."""
    choices = tuple(allowed)
    if value in choices or (null and value is None):
        return
    listed = ", ".join([*choices, *(["null"] if null else [])])
    raise ConfigError(f"{name}={value!r} is unknown; use one of {listed}{did_you_mean(str(value), choices)}")


def check_rate(value: float) -> None:
    """Raises ConfigError for a learning rate with which no weight stays what it was, or none moves."""
    if not 0 < value <= 1:
        raise ConfigError(f"--lr {value:g} is no learning rate: give a number above 0, 1 at most")


def check_once(ids: Iterable[str], what: str, remedy: str) -> None:
    """Raises DataError if one of ``ids`` is there twice, which nothing tells apart; ``what`` they are of."""
    id, count = next(iter(Counter(ids).most_common(1)), ("", 0))
    if count > 1:
        raise DataError(f"{what} {id!r} is there {count} times; {remedy}")

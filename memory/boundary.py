"""Boundary around libraries that read files: what they raise over a damaged one becomes a sentence that names it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from keep_agent.errors import KeepError, ModelError


@contextmanager
def loading(what: object, remedy: str) -> Iterator[None]:
    """Turn any error of a library within the block into one about ``what`` is loaded, with the ``remedy``.

    :raises ModelError: instead; errors of this project pass as they are
    """
    try:
        yield
    except KeepError:
        raise
    except Exception as error:  # libraries raise bare exceptions, and others with every version
        raise ModelError(f"cannot load {what} ({reason(error)}); {remedy}") from error


def reason(error: BaseException) -> str:
    """The kind of an error and the first line of its message."""
    lines = str(error).strip().splitlines()
    return f"{type(error).__name__}: {lines[0]}" if lines else type(error).__name__

"""JSON from files: one reader for all worlds, so that whatever a file holds ends in a value or a named error."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any

from keep_agent.errors import DataError

_HALF = re.compile(r"\\u[dD][89a-fA-F]")  # an escape that may be half of a surrogate pair


def parse_json(raw: bytes, where: str, remedy: str) -> Any:
    """The content of a JSON file in UTF-8, UTF-16 or UTF-32.

    :param where: names the file in errors, ``remedy`` says what to do about it
    :raises DataError: it is no JSON, is nested too deeply, or has a text that is no Unicode
    """
    try:
        text = raw.decode(json.detect_encoding(raw))
        content = json.loads(text)
    except ValueError as error:
        raise DataError(f"{where} is truncated or no JSON ({error}); {remedy}") from error
    except RecursionError:
        raise DataError(f"{where} is nested too deeply to be read; {remedy}") from None
    if _HALF.search(text):
        for place, value in _texts(content):
            if any("\ud800" <= letter <= "\udfff" for letter in value):
                raise DataError(f"{where} has half of a surrogate pair at {place} ({value!r:.60}); {remedy}")
    return content


def _texts(content: Any) -> Iterator[tuple[str, str]]:
    """Every text in a JSON value with its place, as in ``anns[0].task_desc``; keys as well as values."""
    todo: list[tuple[str, Any]] = [("", content)]
    while todo:
        place, value = todo.pop()
        if isinstance(value, str):
            yield place or "the top", value
        elif isinstance(value, list):
            todo += [(f"{place}[{number}]", one) for number, one in enumerate(value)]
        elif isinstance(value, dict):
            todo += [(f"{place}.{key}".lstrip("."), one) for key, one in value.items()]
            todo += [(f"a key of {place or 'the top'}", key) for key in value]


def finite(value: Any) -> float:
    """A number as JSON has them. Raises ValueError for true and false, texts, NaN and infinities."""
    if type(value) not in (int, float) or not abs(value) < float("inf"):
        raise ValueError(f"{value!r:.40} is no finite number")
    return float(value)

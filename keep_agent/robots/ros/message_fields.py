"""Fields of received messages, which may hold anything: read as a text or a flag, or refused with a DataError."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from typing import Any

from keep_agent.errors import DataError

Listener = Callable[[Any], None]
log = logging.getLogger(__name__)


def listening(topic: str, listener: Listener) -> Listener:
    """Log and ignore what ``listener`` refuses: a topic has nobody who waits for an answer."""

    def heard(message: Any) -> None:
        try:
            listener(message)
        except DataError as error:
            log.warning("message on %s ignored: %s", topic, error)

    return heard


def member(message: Any, *names: str) -> Any:
    """The value at a path of names. Raises DataError."""
    found = message
    for name in names:
        if not isinstance(found, Mapping) or name not in found:
            raise DataError(f"{message!r:.80} has no field {'.'.join(names)!r}; send one that has it")
        found = found[name]
    return found


def text_of(message: Any, name: str) -> str:
    """A field's text, "" where there is none. Halves of surrogate pairs, which cannot be written, become "?"."""
    value = message.get(name) if isinstance(message, Mapping) else None
    return "" if value is None else str(value).encode("utf-8", "replace").decode()


def flag_of(message: Any, name: str) -> bool:
    """Whether a field is true: a ``bool``, a ``uint8`` of 0 or 1, or a ``std_msgs/Bool``.

    Raises DataError for a missing field and for every other value: text such as "false" would count as true.
    """
    value = member(message, name)
    flag = value["data"] if isinstance(value, Mapping) and value.keys() == {"data"} else value
    if isinstance(flag, int) and flag in (0, 1):  # a bool is an int
        return bool(flag)
    raise DataError(f"{name}={value!r:.80} is neither true nor false; send a bool")

"""Fields of other people's formats that this server takes only with a value that changes nothing."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from keep_agent.server.problems import NotFound, Refused

ANY = object()  # says nothing about the answer


class Unsupported(Refused):
    """A field that asks for what is not there."""


def check_neutral(given: Mapping[str, Any], neutral: Mapping[str, tuple[Any, ...]]) -> None:
    """Refuse fields that are unknown, or ask for anything. Left out and null are always as good."""
    for name, value in given.items():
        allowed = neutral.get(name)
        if value is None or (allowed is not None and (ANY in allowed or _stands_in(value, allowed))):
            continue
        remedy = "leave it out" if allowed is None else f"leave it out, or use {allowed[0]!r}"
        reason = " (answers are greedy: temperature=0)" if name == "temperature" else ""
        raise Unsupported(f"{name[:64]} is not supported{reason}: {remedy}")


def _stands_in(value: Any, allowed: tuple[Any, ...]) -> bool:
    """Equal, and of one kind: ``True`` is no 1."""
    return any(value == one and isinstance(value, bool) == isinstance(one, bool) for one in allowed)


def check_model(asked: str, served: str) -> None:
    if asked != served:
        raise NotFound(f"model {asked[:64]!r} is not served; use {served!r}")

"""What requests of all formats may ask for."""

from __future__ import annotations

from collections.abc import Sequence

from keep_agent.server.chat.ignored_fields import Unsupported
from keep_agent.server.chat.settings import ChatLimits


def most_tokens(limits: ChatLimits, *asked: int | None) -> int:
    """The first number that is given, within the limit."""
    most = next((number for number in asked if number is not None), limits.tokens)
    if most > limits.max_tokens:
        raise Unsupported(f"max_tokens={most} is more than {limits.max_tokens}, which a request may have; ask for less")
    return most


def stops_of(limits: ChatLimits, asked: str | Sequence[str] | None) -> tuple[str, ...]:
    stops = (asked,) if isinstance(asked, str) else tuple(asked or ())
    if len(stops) > limits.stops or any(not 0 < len(stop) <= limits.stop_chars for stop in stops):
        raise Unsupported(
            f"use up to {limits.stops} texts that end an answer, each of 1 to {limits.stop_chars} characters"
        )
    return stops

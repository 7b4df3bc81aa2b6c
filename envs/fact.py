"""Fact: report of a world as relations and states instead of sentences."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Fact:
    """State of one thing as known to the agent. A prompt style renders it as text.

    ``place`` is the id of the receptacle that an object is in or on (for the agent: its location), ``holds`` the id of
    the object in the agent's hand, ``sees`` the ids of the objects at the agent's location. ``states`` is a sorted
    tuple of words such as ``closed``, ``hot`` or ``unseen``. ``gone`` marks a thing that no longer exists, such as an
    apple that was sliced.
    """

    id: str
    category: str  # object | receptacle | agent
    type: str  # lower case without spaces: "alarmclock"
    place: str | None = None
    holds: str | None = None
    states: tuple[str, ...] = ()
    gone: bool = False
    sees: tuple[str, ...] = ()

"""Fact: what a world reports about one object, receptacle or agent, as fields instead of a sentence."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Fact:
    """State of one object, receptacle or agent, as far as the agent knows it. A prompt style renders it as text.

    ``place`` is the id of the receptacle or room in which an object or the agent is, or ``floor``; for an object in the
    hand it is ``agent``. Only the agent's fact has ``holds``, the id of the object in its hand (``ID ID`` with two
    full hands), and ``sees``, the ids of the objects that it sees at its place. ``states`` are sorted words such
    as ``closed``, ``hot`` or ``unseen``. ``gone`` marks an object that no longer exists, such as a sliced apple.
    """

    id: str
    category: str  # object | receptacle | agent
    type: str  # lower case without spaces: "alarmclock"
    place: str | None = None
    holds: str | None = None
    states: tuple[str, ...] = ()
    gone: bool = False
    sees: tuple[str, ...] = ()

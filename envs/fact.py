"""Fact: what a world reports about one object, receptacle or agent, as fields instead of a sentence."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Fact:
    """State of one object, receptacle or agent, as far as the agent knows it. Prompts contain the fact as text.

    ``place`` is the id of the receptacle or room where the object, receptacle or agent is. For an object on the floor
    it is ``floor``, for a held object ``agent``. Only the agent's fact has ``holds`` and ``sees``. ``holds`` is the id
    of the held object (``ID ID`` if both hands are full). ``sees`` are the ids of the objects that the agent sees.
    ``states`` are sorted words such as ``closed`` or ``unseen``. ``gone`` marks an object that no longer exists.
    """

    id: str
    category: str  # object | receptacle | agent
    type: str  # lower case without spaces: "alarmclock"
    place: str | None = None
    holds: str | None = None
    states: tuple[str, ...] = ()
    gone: bool = False
    sees: tuple[str, ...] = ()

"""What a world reports about itself: facts with relation and state fields, never prose."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Fact:
    """One thing the agent knows. Rendering it to text is the prompt style's business.

    ``place`` is the id of the receptacle an object is in or on (for the agent: where it stands),
    ``holds`` the id of what the agent carries, ``sees`` the ids of the objects that lie before it,
    ``states`` a sorted tuple of state words such as ``closed``, ``hot`` or ``unseen``. ``gone``
    marks a thing that no longer exists (a sliced apple).
    """

    id: str
    category: str  # object | receptacle | agent
    type: str  # lower case without spaces: "alarmclock"
    place: str | None = None
    holds: str | None = None
    states: tuple[str, ...] = ()
    gone: bool = False
    sees: tuple[str, ...] = ()

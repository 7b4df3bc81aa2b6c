"""Action of a VirtualHome script line: a verb with one thing or two."""

from __future__ import annotations

import re
from dataclasses import dataclass

from keep_agent.errors import SkillError

WALK, GRAB, OPEN, CLOSE = "walk", "grab", "open", "close"
SWITCH_ON, SWITCH_OFF, PUT_IN, PUT_ON, SIT = "switchon", "switchoff", "putin", "putback", "sit"
VERBS = (WALK, GRAB, OPEN, CLOSE, SWITCH_ON, SWITCH_OFF, PUT_IN, PUT_ON, SIT)
_LINE = re.compile(r"<char(\d+)> \[(\w+)\] <(\w+)> \((\d+)\)(?: <(\w+)> \((\d+)\))?")


@dataclass(frozen=True, slots=True)
class Action:
    """A verb and node ids; ``place`` is the destination of putting, 0 for verbs with one thing."""

    verb: str
    thing: int
    place: int = 0

    def line(self, name: str, place_name: str = "") -> str:
        """Return the script line for the simulator; the names are the classes of thing and place."""
        second = f" <{place_name}> ({self.place})" if self.place else ""
        return f"<char0> [{self.verb}] <{name}> ({self.thing}){second}"


def parse_line(line: str) -> Action:
    """Parse a script line. Raises SkillError for an invalid one."""
    match = _LINE.fullmatch(line.strip())
    if match is None or match[2].lower() not in VERBS:
        raise SkillError(f"{line!r} is no script line; write <char0> [verb] <class> (id), with {', '.join(VERBS)}")
    return Action(match[2].lower(), int(match[4]), int(match[6] or 0))

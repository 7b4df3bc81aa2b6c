"""What ALFWorld's text has told so far: where things are, which doors are open, what is held."""

from __future__ import annotations

import re
from dataclasses import dataclass, field

NOTHING = "Nothing happens."
THING = r"[a-z]+ \d+"
_LISTED = re.compile(rf"\ban? ({THING})")
_CONTENT = re.compile(rf"(?:On the {THING}|In it), you see (.*?)\.")
_MARKS = {"heat": "hot", "cool": "cold", "clean": "clean", "slice": "sliced"}
_OPPOSITE = {"hot": "cold", "cold": "hot"}  # ALFWorld's things are one or the other


def entity(words: str) -> str:
    """As the memory lines have it: "mug 2" -> "mug_2"."""
    return words.replace(" ", "_")


def name(thing: str) -> str:
    """As commands have it: "mug_2" -> "mug 2"."""
    return thing.replace("_", " ")


def kind(thing: str) -> str:
    """The type in an id: "mug_2" -> "mug"."""
    return thing.rpartition("_")[0]


def numbered(thing: str) -> tuple[str, int]:
    """Sorts ids by type and number."""
    return kind(thing), int(thing.rpartition("_")[2])


@dataclass
class Told:
    """By ids such as ``mug_2``. Nobody but the agent moves things, so what was told stays true."""

    receptacles: tuple[str, ...] = ()
    at: str | None = None
    holding: str | None = None
    places: dict[str, str] = field(default_factory=dict)  # of what lies somewhere, lamps too
    marks: dict[str, set[str]] = field(default_factory=dict)  # hot, cold, clean, sliced, on
    doors: dict[str, str] = field(default_factory=dict)  # open or closed; none told: no door, or not been there
    seen: set[str] = field(default_factory=set)  # receptacles whose content was told

    def begin(self, opening: str) -> None:
        """The first text lists the receptacles of the room."""
        around = opening.partition("you see ")[2].partition("Your task is to")[0]
        self.receptacles = tuple(sorted(map(entity, _LISTED.findall(around)), key=numbered))

    def hear(self, command: str, answer: str) -> None:
        """Take in what a command has done. One that did nothing tells nothing."""
        if answer.strip() == NOTHING:
            return
        verb, *things = command.split(" ", 1)[0], *map(entity, re.findall(THING, command))
        if verb in ("go", "open", "close", "examine") and things:
            self._see(verb, things[0], answer)
        elif verb == "take":
            self.places.pop(things[0], None)
            self.holding = things[0]
        elif verb in ("put", "move"):
            self.places[things[0]] = things[1]
            self.holding = None
        elif verb == "use":
            self.marks.setdefault(things[0], set()).add("on")
        elif verb in _MARKS:
            self._mark(things[0], _MARKS[verb])

    def knows(self, words: str) -> bool:
        """Whether all things that a skill or command names were told of."""
        known = {*self.receptacles, *self.places, self.holding}
        return known.issuperset(map(entity, re.findall(THING, words)))

    def inside(self, place: str) -> list[str]:
        """What is known to lie in or on a receptacle, by type and number."""
        return sorted((thing for thing, where in self.places.items() if where == place), key=numbered)

    def before(self) -> list[str]:
        """What lies before the agent, behind no door."""
        return [] if self.at is None or self.doors.get(self.at) == "closed" else self.inside(self.at)

    def _mark(self, thing: str, mark: str) -> None:
        marks = self.marks.setdefault(thing, set())
        marks.discard(_OPPOSITE.get(mark, ""))
        marks.add(mark)

    def _see(self, verb: str, thing: str, answer: str) -> None:
        if thing not in self.receptacles:
            return
        if verb == "go":
            self.at = thing
        if verb == "close" or " is closed." in answer:
            self.doors[thing] = "closed"
        elif verb == "open" or " is open." in answer:
            self.doors[thing] = "open"
        content = _CONTENT.search(answer)
        if content is not None:
            self.seen.add(thing)
            self.places.update((entity(words), thing) for words in _LISTED.findall(content[1]))

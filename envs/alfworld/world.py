"""World of ALFWorld: a running game, and the part of the state that the game's text has described."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from weakref import finalize

from envs.alfworld.engine import EnginePool
from envs.alfworld.scene import Game
from envs.outcome import SUCCESS, Outcome, failed

REFUSAL = "Nothing happens."
NO_EFFECT = "nothing happens"
THING = r"[a-z]+ \d+"
_LISTING = re.compile(rf"\ban? ({THING})")
_CONTENT = re.compile(rf"(?:On the {THING}|In it), you see (.*?)\.")
_MARKS = {"heat": "hot", "cool": "cold", "clean": "clean", "slice": "sliced"}
_OPPOSITE = {"hot": "cold", "cold": "hot"}  # an object of ALFWorld is hot or cold, never both


def to_id(words: str) -> str:
    """Convert a name in ALFWorld's commands to an id in facts: "mug 2" -> "mug_2"."""
    return words.replace(" ", "_")


def to_words(thing: str) -> str:
    """Convert an id in facts to a name in ALFWorld's commands: "mug_2" -> "mug 2"."""
    return thing.replace("_", " ")


def type_of(thing: str) -> str:
    """Return the type part of an id: "mug_2" -> "mug"."""
    return thing.rpartition("_")[0]


def sort_key(thing: str) -> tuple[str, int]:
    """Return the type and the number of an id, to sort ids by both."""
    return type_of(thing), int(thing.rpartition("_")[2])


@dataclass
class TextState:
    """State that the text has described, by ids such as ``mug_2``. It stays valid: only the agent moves objects."""

    receptacles: tuple[str, ...] = ()
    at: str | None = None
    holding: str | None = None
    places: dict[str, str] = field(default_factory=dict)  # maps an object or lamp to its receptacle
    marks: dict[str, set[str]] = field(default_factory=dict)  # maps an object or lamp to hot, cold, clean, sliced, on
    doors: dict[str, str] = field(default_factory=dict)  # maps a visited receptacle with a door to open or closed
    inspected: set[str] = field(default_factory=set)  # receptacles whose content the text has listed

    def begin(self, opening: str) -> None:
        """Read the receptacles of the room from a game's opening text."""
        room = opening.partition("you see ")[2].partition("Your task is to")[0]
        self.receptacles = tuple(sorted(map(to_id, _LISTING.findall(room)), key=sort_key))

    def update(self, command: str, answer: str) -> None:
        """Apply a command and its answer, unless the answer is a refusal."""
        if answer.strip() == REFUSAL:
            return
        verb, *things = command.split(" ", 1)[0], *map(to_id, re.findall(THING, command))
        if verb in ("go", "open", "close", "examine") and things:
            self._read_place(verb, things[0], answer)
        elif verb == "take":
            self.places.pop(things[0], None)
            self.holding = things[0]
        elif verb in ("put", "move"):
            self.places[things[0]] = things[1]
            self.holding = None
        elif verb == "use":
            self.marks.setdefault(things[0], set()).add("on")
        elif verb in _MARKS:
            mark, marks = _MARKS[verb], self.marks.get(things[0], set())
            self.marks[things[0]] = marks - {_OPPOSITE.get(mark, "")} | {mark}

    def knows(self, words: str) -> bool:
        """Return whether the text has mentioned all objects and receptacles that a skill or command names."""
        known = {*self.receptacles, *self.places, self.holding}
        return known.issuperset(map(to_id, re.findall(THING, words)))

    def inside(self, place: str) -> list[str]:
        """Return the objects known to be in or on a receptacle, sorted by type and number."""
        return sorted((thing for thing, holder in self.places.items() if holder == place), key=sort_key)

    def in_view(self) -> list[str]:
        """Return the known objects in or on the receptacle at which the agent stands; none if its door is closed."""
        return [] if self.at is None or self.doors.get(self.at) == "closed" else self.inside(self.at)

    def _read_place(self, verb: str, thing: str, answer: str) -> None:
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
            self.inspected.add(thing)
            self.places.update((to_id(words), thing) for words in _LISTING.findall(content[1]))


class GameWorld:
    """World of one game. Agents read only ``state``; ``won`` and the expert's plan use the hidden state."""

    def __init__(self, game: Game, engines: EnginePool) -> None:
        """Start the game. Raises DataError for an unplayable game, ConfigError if the engine is not installed."""
        self.game, self.engines = game, engines
        self.engine = engines.acquire()
        finalize(self, engines.release, self.engine)
        self.state = TextState()
        self.commands: list[str] = []  # all commands sent, in order
        self.ever_won = False  # whether the goal has held at any time
        self.lamp: str | None = None  # lamp at which the agent stands; for ALFWorld it stands at the lamp's receptacle
        self.active: set[str] = set()  # microwaves and faucets that are on; in ALFWorld only lamps have a switch
        self.state.begin(self.engine.load(game.read(), str(game.file)))

    def __eq__(self, value: object) -> bool:
        """Compare games, sent commands and the agent's state."""
        if not isinstance(value, GameWorld):
            return NotImplemented
        return self.game == value.game and self._progress() == value._progress()

    def _progress(self) -> tuple[object, ...]:
        return self.commands, self.lamp, self.active, self.state

    def copy(self) -> GameWorld:
        """Return a world in the same state: replay all commands in another engine (1 s, plus 0.1 s per command)."""
        copy = GameWorld(self.game, self.engines)
        for command in self.commands:
            copy.do(command)
        copy.lamp, copy.active = self.lamp, set(self.active)
        return copy

    def begin_task(self) -> None:
        """Leave the world unchanged: a game has one task."""

    def do(self, command: str) -> Outcome:
        """Send one of ALFWorld's commands. ALFWorld gives no reasons, so every failure says `NO_EFFECT`."""
        answer = self.engine.do(command)
        self.commands.append(command)
        self.state.update(command, answer)
        self.ever_won |= self.won
        return failed(NO_EFFECT) if answer.strip() == REFUSAL else SUCCESS

    @property
    def won(self) -> bool:
        """Whether the goal holds now."""
        return self.engine.won

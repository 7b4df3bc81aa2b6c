"""Long-memory probes in the planner's language: lines that only make sense together, and questions about them.

Three kinds, all of which need attention between lines:

* *needle*: ``desk desk_1``, ``there mug mug_2``: where a thing is stands in the header that its line refers back to;
* *two_hop*: ``keychain keychain_1 box_2`` in one place, ``there box box_2`` under a header elsewhere: what the key lies
  under in the end takes both;
* *tracking*: ``did go to shelf_3``, ``did put mug_2``: things are moved again and again, the latest line wins.

The question's cue stands behind the lines, before them, or on both sides. A cue before them is a line of its own, and
what is asked in the end is ``where it``.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from keep_agent.errors import ConfigError, check_choice

CUES = ("after", "before", "both")
WHERE, UNDER, IT = "where", "under", "it"
RECEPTACLES = (
    "cabinet", "drawer", "shelf", "countertop", "desk", "sidetable", "dresser", "coffeetable", "diningtable", "sofa",
    "armchair", "bed", "fridge", "microwave", "safe", "cart", "tvstand", "ottoman", "toilet", "sinkbasin",
)  # fmt: skip
CONTAINERS = ("box", "bowl", "plate", "cup", "pan", "pot", "mug")
OBJECTS = (
    "keychain", "creditcard", "pencil", "pen", "watch", "cd", "cellphone", "book", "laptop", "remotecontrol", "apple",
    "tomato", "potato", "lettuce", "bread", "egg", "spoon", "fork", "knife", "butterknife", "ladle", "spatula", "vase",
    "candle", "cloth", "statue", "pillow", "newspaper", "soapbar", "soapbottle", "spraybottle", "tissuebox",
    "toiletpaper", "handtowel", "dishsponge", "winebottle", "kettle", "alarmclock", "saltshaker", "peppershaker",
)  # fmt: skip
SETUP = 12  # room for an answer at least, in tokens
MOST = 10  # of a type, so that every name is one token


@dataclass(frozen=True, slots=True)
class Fact:
    """One memory line; ``parent`` is the line it refers back to."""

    id: str
    text: str
    parent: str | None = None


@dataclass(frozen=True, slots=True)
class Asked:
    """A question about a scene, its answer, and the lines that hold it, what the question names first."""

    word: str  # WHERE or UNDER
    thing: str
    answer: str
    needles: tuple[str, ...]

    def text(self, it: bool = False) -> str:
        return f"{self.word} {IT if it else self.thing}"


@dataclass
class Scene:
    """Lines in prompt order and everything that can be asked about them."""

    facts: list[Fact] = field(default_factory=list)
    questions: list[Asked] = field(default_factory=list)

    def add(self, text: str, parent: str | None = None) -> str:
        fact = Fact(f"line_{len(self.facts) + 1}", f"{text}\n", parent)
        self.facts.append(fact)
        return fact.id


@dataclass(frozen=True, slots=True)
class Probe:
    """One question: a front line ("" unless the cue comes first), memory lines, and the prompt's end."""

    kind: str
    cue: str
    front: str
    facts: tuple[Fact, ...]
    question: str
    answer: str
    needles: tuple[str, ...]

    def room(self, length: Callable[[str], int]) -> int:
        """Tokens an answer may take."""
        return max(SETUP, 2 * length(self.answer))

    def grade(self, said: str) -> float:
        """1 for exactly the answer, else 0."""
        return float(said.split() == self.answer.split())


class Names:
    """Fresh entity names, at most `MOST` of a type."""

    def __init__(self, rng: random.Random) -> None:
        self._rng, self._count = rng, dict.fromkeys((*RECEPTACLES, *CONTAINERS, *OBJECTS), 0)

    def draw(self, kinds: Sequence[str]) -> tuple[str, str]:
        """(type, name) of a type that has names left."""
        kind = self._rng.choice([kind for kind in kinds if self._count[kind] < MOST])
        self._count[kind] += 1
        return kind, f"{kind}_{self._count[kind]}"


def needle(segments: int, rng: random.Random) -> Scene:
    """Headers with what was found in them."""
    scene, names = Scene(), Names(rng)
    while len(scene.facts) < segments:
        kind, place = names.draw(RECEPTACLES)
        header = scene.add(f"{kind} {place}")
        for _ in range(min(rng.randint(1, 5), segments - len(scene.facts))):
            kind, thing = names.draw((*OBJECTS, *CONTAINERS))
            line = scene.add(f"there {kind} {thing}", header)
            scene.questions.append(Asked(WHERE, thing, place, (line, header)))
    return scene


def two_hop(segments: int, rng: random.Random) -> Scene:
    """Containers found in places, and, shuffled behind them, what lies in the containers."""
    scene, names = Scene(), Names(rng)
    held: list[tuple[str, str, str, str]] = []  # container, its line, header, place
    while len(scene.facts) < segments // 2:
        kind, place = names.draw(RECEPTACLES)
        header = scene.add(f"{kind} {place}")
        for _ in range(rng.randint(1, 3)):
            kind, thing = names.draw(CONTAINERS if not held or rng.random() < 0.35 else OBJECTS)
            line = scene.add(f"there {kind} {thing}", header)
            if kind in CONTAINERS:
                held.append((thing, line, header, place))
    while len(scene.facts) < segments:
        kind, thing = names.draw(OBJECTS)
        container, line, header, place = rng.choice(held)
        own = scene.add(f"{kind} {thing} {container}")
        scene.questions.append(Asked(UNDER, thing, place, (own, line, header)))
    return scene


def tracking(segments: int, rng: random.Random) -> Scene:
    """Things carried about; of each the latest place counts."""
    scene, names = Scene(), Names(rng)
    places = [names.draw(RECEPTACLES)[1] for _ in range(max(2, min(segments // 4, 40)))]
    things = [names.draw((*OBJECTS, *CONTAINERS))[1] for _ in range(max(1, segments // 8))]
    latest: dict[str, Asked] = {}
    while len(scene.facts) + 1 < segments:
        place, thing = rng.choice(places), rng.choice(things)
        header = scene.add(f"did go to {place}")
        line = scene.add(f"did put {thing}", header)
        latest[thing] = Asked(WHERE, thing, place, (line, header))
    scene.questions.extend(latest.values())
    return scene


def filler(lines: int, rng: random.Random) -> list[str]:
    """Lines that say nothing about where a thing is: doors opened and closed."""
    return [
        f"did {rng.choice(('open', 'close'))} {rng.choice(RECEPTACLES)}_{rng.randint(1, MOST)}\n" for _ in range(lines)
    ]


KINDS: dict[str, Callable[[int, random.Random], Scene]] = {"needle": needle, "two_hop": two_hop, "tracking": tracking}
LEAST, GREATEST = 8, 250  # lines


def make_scene(kind: str, segments: int, rng: random.Random) -> Scene:
    """A scene of about ``segments`` lines (never more). Raises `ConfigError` for a kind or a size there is not."""
    check_choice("probe kind", kind, KINDS)
    if not LEAST <= segments <= GREATEST:
        raise ConfigError(f"a probe of {segments} segments cannot be made; use {LEAST} to {GREATEST}")
    return KINDS[kind](segments, rng)


def make_probe(kind: str, segments: int, cue: str, rng: random.Random) -> Probe:
    """A scene with one of its questions. Raises `ConfigError` for an unknown kind, cue or size."""
    check_choice("cue", cue, CUES)
    scene = make_scene(kind, segments, rng)
    asked = rng.choice(scene.questions)
    front = "" if cue == "after" else f"{asked.text()}\n"
    return Probe(kind, cue, front, tuple(scene.facts), asked.text(cue == "before"), asked.answer, asked.needles)

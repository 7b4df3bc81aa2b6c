"""Recall probes of a long memory in the planner's language: interdependent lines, and questions about them.

All three kinds need attention between lines:

* *needle*: ``desk desk_1``, ``there mug mug_2``: the header is the place of the object in the member line;
* *two_hop*: ``keychain keychain_1 box_2``, and elsewhere, under a header, ``there box box_2``: only both lines together
  give the place of the keychain;
* *tracking*: ``did go to shelf_3``, ``did put mug_2``: objects are moved repeatedly, and the latest line is valid.

The *cue* of a probe is the position of its question: after the lines, before them as a separate line, or both. If the
question stands only before the lines, the prompt ends in ``where it`` (two_hop: ``under it``).
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import ClassVar

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
MIN_ANSWER_TOKENS = 12  # lower bound of `RecallProbe.max_answer_tokens`
MAX_NUMBER = 10  # maximum entities per type, so that every name is one token


@dataclass(frozen=True, slots=True)
class MemoryLine:
    """A memory line; ``parent`` is the line that it refers back to."""

    id: str
    text: str
    parent: str | None = None


@dataclass(frozen=True, slots=True)
class Question:
    """A question about a scene, its answer, and the needles: ids of the lines that connect ``entity`` to the answer."""

    word: str  # WHERE or UNDER
    entity: str  # name of the object in question
    answer: str
    needles: tuple[str, ...]

    def text(self, as_pronoun: bool = False) -> str:
        return f"{self.word} {IT if as_pronoun else self.entity}"


@dataclass
class Scene:
    """Memory lines in prompt order, with all questions about them."""

    facts: list[MemoryLine] = field(default_factory=list)
    questions: list[Question] = field(default_factory=list)

    def add(self, text: str, parent: str | None = None) -> str:
        fact = MemoryLine(f"line_{len(self.facts) + 1}", f"{text}\n", parent)
        self.facts.append(fact)
        return fact.id


@dataclass(frozen=True, slots=True)
class RecallProbe:
    """A prompt: ``front`` is the question as first line ("" if the cue is ``after``), ``question`` is the last line."""

    kind: str
    cue: str
    front: str
    facts: tuple[MemoryLine, ...]
    question: str
    answer: str
    needles: tuple[str, ...]
    grade_never_falls: ClassVar[bool] = False  # the answer must match exactly

    def max_answer_tokens(self, length: Callable[[str], int]) -> int:
        """Return the maximum number of tokens of an answer; ``length`` counts the tokens of a text."""
        return max(MIN_ANSWER_TOKENS, 2 * length(self.answer))

    def grade(self, text: str) -> float:
        """Return 1 for an exact match, else 0."""
        return float(text.split() == self.answer.split())


class NameSource:
    """Source of unused entity names, at most `MAX_NUMBER` of a type."""

    def __init__(self, rng: random.Random) -> None:
        self._rng, self._count = rng, dict.fromkeys((*RECEPTACLES, *CONTAINERS, *OBJECTS), 0)

    def draw(self, kinds: Sequence[str]) -> tuple[str, str]:
        """Draw a type with unused names from ``kinds``; return the type and its next name."""
        kind = self._rng.choice([kind for kind in kinds if self._count[kind] < MAX_NUMBER])
        self._count[kind] += 1
        return kind, f"{kind}_{self._count[kind]}"


def needle(segments: int, rng: random.Random) -> Scene:
    """Make headers with member lines."""
    scene, names = Scene(), NameSource(rng)
    while len(scene.facts) < segments:
        kind, place = names.draw(RECEPTACLES)
        header = scene.add(f"{kind} {place}")
        for _ in range(min(rng.randint(1, 5), segments - len(scene.facts))):
            kind, entity = names.draw((*OBJECTS, *CONTAINERS))
            line = scene.add(f"there {kind} {entity}", header)
            scene.questions.append(Question(WHERE, entity, place, (line, header)))
    return scene


def two_hop(segments: int, rng: random.Random) -> Scene:
    """Make lines of containers in places, then lines of objects in these containers."""
    scene, names = Scene(), NameSource(rng)
    containers: list[tuple[str, str, str, str]] = []  # name, line id, header id, place
    while len(scene.facts) < segments // 2:
        kind, place = names.draw(RECEPTACLES)
        header = scene.add(f"{kind} {place}")
        for _ in range(rng.randint(1, 3)):
            kind, entity = names.draw(CONTAINERS if not containers or rng.random() < 0.35 else OBJECTS)
            line = scene.add(f"there {kind} {entity}", header)
            if kind in CONTAINERS:
                containers.append((entity, line, header, place))
    while len(scene.facts) < segments:
        kind, entity = names.draw(OBJECTS)
        container, line, header, place = rng.choice(containers)
        first = scene.add(f"{kind} {entity} {container}")
        scene.questions.append(Question(UNDER, entity, place, (first, line, header)))
    return scene


def tracking(segments: int, rng: random.Random) -> Scene:
    """Make lines that move objects repeatedly; the latest place of an object is the answer."""
    scene, names = Scene(), NameSource(rng)
    places = [names.draw(RECEPTACLES)[1] for _ in range(max(2, min(segments // 4, 40)))]
    entities = [names.draw((*OBJECTS, *CONTAINERS))[1] for _ in range(max(1, segments // 8))]
    latest: dict[str, Question] = {}
    while len(scene.facts) + 1 < segments:
        place, entity = rng.choice(places), rng.choice(entities)
        header = scene.add(f"did go to {place}")
        line = scene.add(f"did put {entity}", header)
        latest[entity] = Question(WHERE, entity, place, (line, header))
    scene.questions.extend(latest.values())
    return scene


def filler(lines: int, rng: random.Random) -> list[str]:
    """Make lines that no question asks about: receptacles opened and closed."""
    return [
        f"did {rng.choice(('open', 'close'))} {rng.choice(RECEPTACLES)}_{rng.randint(1, MAX_NUMBER)}\n"
        for _ in range(lines)
    ]


KINDS: dict[str, Callable[[int, random.Random], Scene]] = {"needle": needle, "two_hop": two_hop, "tracking": tracking}
MIN_LINES, MAX_LINES = 8, 250  # limits of a scene's size


def make_scene(kind: str, segments: int, rng: random.Random) -> Scene:
    """Make a scene of about ``segments`` lines, never more. Raises ConfigError for an unknown kind or size."""
    check_choice("probe kind", kind, KINDS)
    if not MIN_LINES <= segments <= MAX_LINES:
        raise ConfigError(f"a probe cannot have {segments} segments; use {MIN_LINES} to {MAX_LINES}")
    return KINDS[kind](segments, rng)


def make_probe(kind: str, segments: int, cue: str, rng: random.Random) -> RecallProbe:
    """Make a scene with one of its questions. Raises ConfigError for an unknown kind, cue or size."""
    check_choice("cue", cue, CUES)
    scene = make_scene(kind, segments, rng)
    question = rng.choice(scene.questions)
    front = "" if cue == "after" else f"{question.text()}\n"
    end = question.text(cue == "before")
    return RecallProbe(kind, cue, front, tuple(scene.facts), end, question.answer, question.needles)

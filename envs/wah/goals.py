"""Goals: predicates with required counts, scored as in LoTA-Bench (check_goal_condition at 97c46cc).

``on_CLASS_PLACE`` and ``inside_CLASS_PLACE`` count the things of CLASS that are directly on or in one instance of the
class PLACE. ``turnOn_PLACE`` requires that the instance is on. All these predicates are counted at the same instance,
namely the instance with the best score. Watch-And-Help's ``holds_CLASS`` and ``sit_PLACE`` concern the agent.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache

from envs.wah.data.formats import ALIASES
from envs.wah.graph import INSIDE, ON
from envs.wah.scene import Task
from envs.wah.state import HomeState
from keep_agent.errors import DataError

RELATIONS = {"on": ON, "inside": INSIDE}
_PLACE_VERBS = {"turnOn": "turn", "sit": "sit"}
_LATE = ("turnOn", "holds", "sit")
FORMS = "on_CLASS_PLACE, inside_CLASS_PLACE, turnOn_PLACE, holds_CLASS or sit_PLACE"


@dataclass(frozen=True, slots=True)
class Predicate:
    """One part of a goal. ``thing`` and ``place`` are classes, or "" if this kind of predicate has none."""

    kind: str  # on | inside | turnOn | holds | sit
    thing: str
    place: str
    count: int


def parse_goal(goal: Iterable[tuple[str, int]]) -> tuple[Predicate, ...]:
    """Parse predicates with their counts, and leave out those with count 0. Raises DataError for an invalid goal.

    Class names of the older simulator are replaced by the current ones, as in graphs (`envs.wah.data.formats.ALIASES`).
    """
    predicates = tuple(_predicate(text, count) for text, count in goal if count != 0)
    if not predicates:
        raise DataError("a goal without predicates cannot be reached; leave the task out")
    places = {predicate.place for predicate in predicates if predicate.kind in (*RELATIONS, "turnOn")}
    if len(places) > 1:
        raise DataError(f"a goal needs a single destination, not {' and '.join(sorted(places))}; make it two tasks")
    return predicates


@lru_cache(maxsize=256)
def goal_of(task: Task) -> tuple[Predicate, ...]:
    """Return the parsed predicates of a task (cached)."""
    return parse_goal(task.goal)


def goal_words(goal: Sequence[Predicate]) -> str:
    """Return a goal as words, find before put before turn: "find plate find plate put dishwasher turn dishwasher"."""
    with_thing = [predicate for predicate in goal if predicate.thing]
    words = [f"find {predicate.thing}" for predicate in with_thing for _ in range(predicate.count)]
    words += [f"put {place}" for place in sorted({predicate.place for predicate in with_thing if predicate.place})]
    words += [f"{_PLACE_VERBS[predicate.kind]} {predicate.place}" for predicate in goal if not predicate.thing]
    return " ".join(words)


def _predicate(text: str, count: int) -> Predicate:
    kind, *words = text.split("_")
    words = [ALIASES.get(word, word) for word in words]
    if type(count) is not int or count < 0:
        raise DataError(f"goal {text!r} has the count {count!r}; give a whole number")
    match kind, words:
        case (("on" | "inside"), [thing, place]):
            return Predicate(kind, thing, place, count)
        case "turnOn" | "sit", [place]:
            return Predicate(kind, "", place, 1)
        case "holds", [thing]:
            return Predicate(kind, thing, "", count)
    raise DataError(f"goal {text!r} is not a predicate; use {FORMS}")


def unmet_predicates(goal: Sequence[Predicate], counts: Iterable[int]) -> list[Predicate]:
    """Return the unmet predicates in the order of execution: put things, turn a machine on, hold things, sit down."""
    unmet = [predicate for predicate, count in zip(goal, counts, strict=True) if count < predicate.count]
    return sorted(unmet, key=lambda predicate: _LATE.index(predicate.kind) if predicate.kind in _LATE else -1)


def goal_counts(home: HomeState, goal: Sequence[Predicate]) -> tuple[int, ...]:
    """Return how often each predicate holds now at the `best_place`, capped at the predicate's required count."""
    return tuple(counts_at(home, goal, best_place(home, goal)))


def best_place(home: HomeState, goal: Sequence[Predicate]) -> int | None:
    """Return the instance of the goal's place with the largest sum of count / required count; the first on a tie."""

    def score(place: int) -> float:
        pairs = zip(counts_at(home, goal, place), goal, strict=True)
        return sum(count / predicate.count for count, predicate in pairs)

    return max(home.graph.of_class(place_class(goal)), key=score, default=None)


def place_class(goal: Sequence[Predicate]) -> str:
    """Return the class of a goal's destination; without a destination the seat's class, without a seat ""."""
    places = sorted((predicate.kind == "sit", predicate.place) for predicate in goal if predicate.place)
    return places[0][1] if places else ""


def counts_at(home: HomeState, goal: Sequence[Predicate], place: int | None) -> list[int]:
    """Return how often each predicate holds at a place, capped at the predicate's required count."""
    return [min(_count(home, predicate, place), predicate.count) for predicate in goal]


def _count(home: HomeState, predicate: Predicate, place: int | None) -> int:
    graph = home.graph
    if predicate.kind == "sit":
        return int(home.sitting is not None and graph[home.sitting].class_name == predicate.place)
    if predicate.kind == "holds":
        things = home.inventory
    elif place is None:
        return 0
    elif predicate.kind == "turnOn":
        return int("ON" in graph[place].states)
    else:
        things = graph.sources(place, RELATIONS[predicate.kind])
    return sum(graph[thing].class_name == predicate.thing for thing in things)


def goal_conditions(home: HomeState, goal: Sequence[Predicate]) -> tuple[int, int]:
    """Return (conditions met, conditions required): their ratio is LoTA-Bench's sub-goal success rate of the task."""
    return sum(goal_counts(home, goal)), sum(predicate.count for predicate in goal)

"""Goals as counts of predicates, scored as LoTA-Bench scores them (check_goal_condition at 97c46cc).

``on_CLASS_PLACE`` and ``inside_CLASS_PLACE`` count things of a class directly on or in one thing of the place's class;
``turnOn_PLACE`` asks that it is on. One and the same place has to satisfy all of them: of several, the one that does
best counts. Watch-And-Help's ``holds_CLASS`` and ``sit_PLACE`` speak of the agent.
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
_ALONE = {"turnOn": "turn", "sit": "sit"}
_LATE = ("turnOn", "holds", "sit")
FORMS = "on_CLASS_PLACE, inside_CLASS_PLACE, turnOn_PLACE, holds_CLASS or sit_PLACE"


@dataclass(frozen=True, slots=True)
class Predicate:
    """One part of a goal. ``thing`` or ``place`` is "" where there is none."""

    kind: str  # on | inside | turnOn | holds | sit
    thing: str
    place: str
    count: int


def parse_goal(goal: Iterable[tuple[str, int]]) -> tuple[Predicate, ...]:
    """The predicates of a goal; those that are asked zero times are left out. Raises DataError for what is none.

    Names that the older simulator has are those of graphs that were read: see `envs.wah.data.formats.ALIASES`.
    """
    found = tuple(_predicate(text, count) for text, count in goal if count != 0)
    if not found:
        raise DataError("a goal without predicates cannot be reached; leave the task out")
    places = {one.place for one in found if one.kind in (*RELATIONS, "turnOn")}
    if len(places) > 1:
        raise DataError(f"a goal is about one place, not {' and '.join(sorted(places))}; make it two tasks")
    return found


@lru_cache(maxsize=256)
def goal_of(task: Task) -> tuple[Predicate, ...]:
    """The predicates of a task: asked for at every step, parsed once."""
    return parse_goal(task.goal)


def asked_for(goal: Sequence[Predicate]) -> str:
    """A goal in words, always in the same order: "find plate find plate put dishwasher turn dishwasher"."""
    carried = [one for one in goal if one.thing]
    words = [f"find {one.thing}" for one in carried for _ in range(one.count)]
    words += [f"put {place}" for place in sorted({one.place for one in carried if one.place})]
    words += [f"{_ALONE[one.kind]} {one.place}" for one in goal if not one.thing]
    return " ".join(words)


def _predicate(text: str, count: int) -> Predicate:
    kind, *words = text.split("_")
    words = [ALIASES.get(word, word) for word in words]
    if type(count) is not int or count < 0:
        raise DataError(f"goal {text!r} is asked {count!r} times; give a whole number")
    match kind, words:
        case (("on" | "inside"), [thing, place]):
            return Predicate(kind, thing, place, count)
        case "turnOn" | "sit", [place]:
            return Predicate(kind, "", place, 1)
        case "holds", [thing]:
            return Predicate(kind, thing, "", count)
    raise DataError(f"goal {text!r} is no predicate; use {FORMS}")


def unmet_of(goal: Sequence[Predicate], counts: Iterable[int]) -> list[Predicate]:
    """What is still to do: things are brought first, then machines run; who sits down gets up no more."""
    unmet = [one for one, count in zip(goal, counts, strict=True) if count < one.count]
    return sorted(unmet, key=lambda one: _LATE.index(one.kind) if one.kind in _LATE else -1)


def goal_counts(home: HomeState, goal: Sequence[Predicate]) -> tuple[int, ...]:
    """How often each predicate holds now, at most as often as it is asked, at the place that does best."""
    return tuple(counts_at(home, goal, best_place(home, goal)))


def best_place(home: HomeState, goal: Sequence[Predicate]) -> int | None:
    """The instance of the goal's place at which most of it holds, the first of equals; None where there is none."""
    places = home.graph.of_class(place_class(goal))
    return max(places, key=lambda place: _share(counts_at(home, goal, place), goal), default=None)


def place_class(goal: Sequence[Predicate]) -> str:
    """The class of the one place that a goal is about, a seat only if there is no other; "" where it names none."""
    places = sorted((one.kind == "sit", one.place) for one in goal if one.place)
    return places[0][1] if places else ""


def _share(counts: Iterable[int], goal: Sequence[Predicate]) -> float:
    return sum(count / one.count for count, one in zip(counts, goal, strict=True))


def counts_at(home: HomeState, goal: Sequence[Predicate], place: int | None) -> list[int]:
    return [min(_count(home, one, place), one.count) for one in goal]


def _count(home: HomeState, one: Predicate, place: int | None) -> int:
    graph = home.graph
    if one.kind == "holds":
        return sum(graph[thing].class_name == one.thing for thing in home.held)
    if one.kind == "sit":
        return int(home.sitting is not None and graph[home.sitting].class_name == one.place)
    if place is None:
        return 0
    if one.kind == "turnOn":
        return int("ON" in graph[place].states)
    return sum(graph[thing].class_name == one.thing for thing in graph.sources(place, RELATIONS[one.kind]))


def goal_conditions(home: HomeState, goal: Sequence[Predicate]) -> tuple[int, int]:
    """(sub-goals met, sub-goals asked): their ratio is LoTA-Bench's sub-goal success rate of the task."""
    return sum(goal_counts(home, goal)), sum(one.count for one in goal)

"""Generated episodes: an apartment with goal objects, and tasks with varied instructions.

A task's goal is unmet at its start, whether or not earlier tasks were solved.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from random import Random
from types import MappingProxyType

from envs.splits import split_of
from envs.wah.apartments.furniture import ROOMS
from envs.wah.apartments.generator import draw_apartment
from envs.wah.apartments.placing import Goal, lay_out
from envs.wah.language.phrases import phrase
from envs.wah.scene import TASK_TYPES, Episode, Scene, Task
from keep_agent.errors import ConfigError

SNACKS = ("apple", "cupcake", "juice", "pudding", "wine")
MEALS = ("apple", "coffeepot", "cupcake", "juice", "pancake", "poundcake", "pudding", "wine")
TABLEWARE = ("cutleryfork", "plate", "waterglass", "wineglass")
GROCERIES = ("apple", "cupcake", "juice", "pancake", "poundcake", "pudding", "wine")
# By task type: the relation, the class of the place, and the classes of things.
PUT_TASKS: Mapping[str, tuple[str, str, tuple[str, ...]]] = MappingProxyType(
    {
        "prepare_snack": ("on", "coffeetable", SNACKS), "prepare_food": ("on", "kitchentable", MEALS),
        "setup_table": ("on", "kitchentable", TABLEWARE), "put_dishwasher": ("inside", "dishwasher", TABLEWARE),
        "put_fridge": ("inside", "fridge", GROCERIES),
    }
)  # fmt: skip
READING = "read_book"  # sit down with a book, possibly with snacks on the table; not in LoTA-Bench
CLASS_COUNTS = ((1, 2), (2, 6), (3, 8), (4, 4), (5, 2), (6, 1))  # (number of classes in a goal, weight)
MAX_THINGS = 6  # maximum of things in a goal, copies included


def generate_episode(seed: int, stream: int = 1, most: int = 1, types: Sequence[str] = tuple(PUT_TASKS)) -> Episode:
    """Generate the apartment of ``seed``, a number from `apartment_seed`, with ``stream`` tasks.

    :param most: maximum number of things of one class in a goal
    :param types: task types to draw from, by default LoTA-Bench's five
    :raises ConfigError: invalid settings
    """
    if stream < 1 or most < 1:
        raise ConfigError(f"a stream of {stream} tasks with up to {most} things of a class; use 1 or more of both")
    if unknown := [kind for kind in types if kind not in TASK_TYPES]:
        raise ConfigError(f"unknown task type {unknown[0]!r}; choose from {', '.join(TASK_TYPES)}")
    rng = Random(f"wah-{seed}")
    graph = draw_apartment(split_of(seed), rng).graph
    goals = _draw_goals(rng, stream, most, types)
    distractors = rng.sample(sorted({*MEALS, *TABLEWARE, "book"}), 6)
    lay_out(graph, [goal for _, goal in goals], rng, distractors)
    name = f"apartment-{seed}"
    tasks = tuple(
        Task(kind, goal, phrase(kind, goal, rng), f"{name}-{number}") for number, (kind, goal) in enumerate(goals)
    )
    return Episode(f"{name}-x{stream}", Scene(name, graph, rng.choice(ROOMS)), tasks)


def _draw_goals(rng: Random, stream: int, most: int, types: Sequence[str]) -> list[tuple[str, Goal]]:
    """Draw the tasks' types and goals; no predicate occurs in two goals.

    The longer the stream, the smaller the goals, so that predicates remain for the last task.
    """
    goals: list[tuple[str, Goal]] = []
    used_predicates: set[str] = set()
    for number in range(stream):
        free = {kind: _free_things(kind, used_predicates) for kind in types}
        limit = sum(map(len, free.values())) // (stream - number)
        if not limit:
            raise ConfigError(f"a stream of {stream} tasks needs more goals than an apartment has; use fewer")
        kind = rng.choice([kind for kind, things in free.items() if things])
        if kind == READING:
            goal = _draw_reading_goal(free[kind], rng)
        else:
            goal = _draw_goal(kind, free[kind], limit, rng, most, used_predicates)
        used_predicates.update(predicate for predicate, _ in goal)
        goals.append((kind, goal))
    return goals


def _free_things(kind: str, used_predicates: set[str]) -> list[str]:
    """Return the classes of things that a further task of the type can use; a stream has one reading task at most."""
    if kind == READING:
        return [] if "holds_book" in used_predicates else ["book", *_free_things("prepare_snack", used_predicates)]
    relation, place, things = PUT_TASKS[kind]
    return [thing for thing in things if f"{relation}_{thing}_{place}" not in used_predicates]


def _draw_goal(kind: str, free: list[str], limit: int, rng: Random, most: int, used_predicates: set[str]) -> Goal:
    """Draw a goal for at most ``limit`` classes and `MAX_THINGS` things; ``put_dishwasher`` mostly adds a turnOn."""
    relation, place, _ = PUT_TASKS[kind]
    amount = rng.choices([amount for amount, _ in CLASS_COUNTS], [weight for _, weight in CLASS_COUNTS])[0]
    things = sorted(rng.sample(free, min(amount, limit, len(free))))
    spare, goal = MAX_THINGS - len(things), []
    for thing in things:
        copies = 0 if rng.random() < 0.75 else rng.randint(0, min(most - 1, spare))
        spare -= copies
        goal.append((f"{relation}_{thing}_{place}", 1 + copies))
    start = f"turnOn_{place}"
    if kind == "put_dishwasher" and start not in used_predicates and rng.random() < 0.85:
        goal.append((start, 1))
    return tuple(goal)


def _draw_reading_goal(free: Sequence[str], rng: Random) -> Goal:
    snacks = sorted(rng.sample(free[1:], min(rng.choice((0, 0, 1, 2)), len(free) - 1)))
    return ("holds_book", 1), *((f"on_{thing}_coffeetable", 1) for thing in snacks), ("sit_sofa", 1)

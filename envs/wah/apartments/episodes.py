"""Embedded tasks: an apartment, what its tasks are about laid out in it, and the tasks in somebody's words.

The goal of a task is false when it begins, as long as the tasks before it were done as asked, or not at all.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from random import Random
from types import MappingProxyType

from envs.wah.apartments.furniture import ROOMS
from envs.wah.apartments.generator import draw_apartment, split_of
from envs.wah.apartments.layout import Goal, lay_out
from envs.wah.language.phrases import phrase
from envs.wah.scene import TASK_TYPES, Episode, Scene, Task
from keep_agent.errors import ConfigError

SNACKS = ("apple", "cupcake", "juice", "pudding", "wine")
MEALS = ("apple", "coffeepot", "cupcake", "juice", "pancake", "poundcake", "pudding", "wine")
TABLEWARE = ("cutleryfork", "plate", "waterglass", "wineglass")
GROCERIES = ("apple", "cupcake", "juice", "pancake", "poundcake", "pudding", "wine")
KINDS: Mapping[str, tuple[str, str, tuple[str, ...]]] = MappingProxyType(
    {
        "prepare_snack": ("on", "coffeetable", SNACKS),
        "prepare_food": ("on", "kitchentable", MEALS),
        "setup_table": ("on", "kitchentable", TABLEWARE),
        "put_dishwasher": ("inside", "dishwasher", TABLEWARE),
        "put_fridge": ("inside", "fridge", GROCERIES),
    }
)
READING = "read_book"  # sit down with a book, perhaps beside a snack; LoTA-Bench leaves it out
AMOUNTS = ((1, 2), (2, 6), (3, 8), (4, 4), (5, 2), (6, 1))  # things a task asks for, and how often
LARGEST = 6  # things that a task asks for, copies counted


def generate_episode(seed: int, stream: int = 1, most: int = 1, types: Sequence[str] = tuple(KINDS)) -> Episode:
    """The apartment of a seed (`apartment_seed`) with ``stream`` tasks that ask for at most ``most`` of a class.

    ``types`` are drawn from: LoTA-Bench's five, unless something else is said.

    :raises ConfigError: for settings that cannot work
    """
    if stream < 1 or most < 1:
        raise ConfigError(f"a stream of {stream} tasks that ask for up to {most} of a class; use 1 or more of both")
    if strange := [kind for kind in types if kind not in TASK_TYPES]:
        raise ConfigError(f"unknown task type {strange[0]!r}; choose from {', '.join(TASK_TYPES)}")
    rng = Random(f"wah-{seed}")
    graph = draw_apartment(split_of(seed), rng).graph
    drawn = _draw_tasks(rng, stream, most, types)
    lay_out(graph, [goal for _, goal in drawn], rng, _others(rng))
    name = f"apartment-{seed}"
    tasks = tuple(
        Task(kind, goal, phrase(kind, goal, rng), f"{name}-{number}") for number, (kind, goal) in enumerate(drawn)
    )
    return Episode(f"{name}-x{stream}", Scene(name, graph, rng.choice(ROOMS)), tasks)


def _draw_tasks(rng: Random, stream: int, most: int, types: Sequence[str]) -> list[tuple[str, Goal]]:
    """Types and goals: no thing is asked to the same place twice, and a dishwasher is started once.

    A long stream asks for little at a time, so that there is something left for its last task.
    """
    drawn: list[tuple[str, Goal]] = []
    taken: set[str] = set()
    for number in range(stream):
        free = {kind: _free(kind, taken) for kind in types}
        left = sum(map(len, free.values())) // (stream - number)
        if not left:
            raise ConfigError(f"a stream of {stream} tasks asks for more than an apartment has; use fewer")
        kind = rng.choice([kind for kind, things in free.items() if things])
        reading = kind == READING
        goal = _reading(free[kind], rng) if reading else _draw_goal(kind, free[kind], left, rng, most, taken)
        taken.update(predicate for predicate, _ in goal)
        drawn.append((kind, goal))
    return drawn


def _free(kind: str, taken: set[str]) -> list[str]:
    """What a task of the type could ask for; who has the book in the hand has nothing to read about."""
    if kind == READING:
        return [] if "holds_book" in taken else ["book", *_free("prepare_snack", taken)]
    relation, where, things = KINDS[kind]
    return [thing for thing in things if f"{relation}_{thing}_{where}" not in taken]


def _draw_goal(kind: str, free: list[str], left: int, rng: Random, most: int, taken: set[str]) -> Goal:
    """At most ``left`` predicates, by name, which ask for at most `LARGEST` things."""
    relation, where, _ = KINDS[kind]
    wanted = rng.choices([amount for amount, _ in AMOUNTS], [weight for _, weight in AMOUNTS])[0]
    chosen = sorted(rng.sample(free, min(wanted, left, len(free))))
    spare, goal = LARGEST - len(chosen), []
    for thing in chosen:
        more = 0 if rng.random() < 0.75 else rng.randint(0, min(most - 1, spare))
        spare -= more
        goal.append((f"{relation}_{thing}_{where}", 1 + more))
    start = f"turnOn_{where}"
    if kind == "put_dishwasher" and start not in taken and rng.random() < 0.85:
        goal.append((start, 1))
    return tuple(goal)


def _reading(free: Sequence[str], rng: Random) -> Goal:
    snacks = sorted(rng.sample(free[1:], min(rng.choice((0, 0, 1, 2)), len(free) - 1)))
    return ("holds_book", 1), *((f"on_{thing}_coffeetable", 1) for thing in snacks), ("sit_sofa", 1)


def _others(rng: Random) -> list[str]:
    """What else of the kind lies about."""
    return rng.sample(sorted({*MEALS, *TABLEWARE, "book"}), 6)

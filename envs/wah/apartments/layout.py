"""Lays out what tasks are about in an apartment, so that they can be done and are not done yet.

They can be done under both rules of `envs.wah.lota`: of each class the last instance lies in the open, or in the last
container of its class. Nothing lies where a task wants it.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from random import Random

from envs.wah.apartments.placing import GraphJson, likely_holders, place
from keep_agent.errors import DataError

Goal = tuple[tuple[str, int], ...]
INSTANCES = (1, 1, 2, 2, 3)  # of a class that a task is about


def lay_out(graph: GraphJson, goals: Sequence[Goal], rng: Random, others: Iterable[str] = ()) -> None:
    """Place what the goals ask for, and some of the classes ``others``, in a graph that has none of them.

    :raises DataError: if there is no likely place for something
    """
    asked: dict[str, int] = {}
    banned: dict[str, set[str]] = {}
    for predicate, count in (one for goal in goals for one in goal):
        kind, thing, *where = predicate.split("_")
        if kind not in ("turnOn", "sit"):
            asked[thing] = max(asked.get(thing, 0), count)
            banned.setdefault(thing, set()).update(where)
    for thing in others:
        asked.setdefault(thing, 1)
    for thing in sorted(asked):
        _place_all(graph, thing, max(asked[thing], rng.choice(INSTANCES)), banned.get(thing, set()), rng)


def _place_all(graph: GraphJson, thing: str, count: int, banned: set[str], rng: Random) -> None:
    rows = {row["id"]: row for row in graph["nodes"]}
    holders = [one for one in likely_holders(graph, thing) if rows[one]["class_name"] not in banned]
    last = {row["class_name"]: row["id"] for row in graph["nodes"]}
    easy = [one for one in holders if "CLOSED" not in rows[one]["states"] or last[rows[one]["class_name"]] == one]
    if not easy:
        raise DataError(f"there is no place for a {thing} in this apartment of {len(rows)} nodes; use another one")
    for number in range(count):
        free = holders if number + 1 < count else easy
        kind = rng.choice(sorted({rows[one]["class_name"] for one in free}))
        place(graph, thing, rng.choice([one for one in free if rows[one]["class_name"] == kind]), rng)

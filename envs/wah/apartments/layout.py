"""Layout of goal objects in an apartment, such that goals are possible and false at the start.

Goals are possible under both rules of `envs.wah.lota`: the last instance of each class is visible or in the last
container of its class. No goal object is at its destination.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from random import Random

from envs.wah.apartments.placing import GraphJson, likely_holders, place
from keep_agent.errors import DataError

Goal = tuple[tuple[str, int], ...]
INSTANCES = (1, 1, 2, 2, 3)  # of a class of goal objects


def lay_out(graph: GraphJson, goals: Sequence[Goal], rng: Random, distractors: Iterable[str] = ()) -> None:
    """Place the things of the goals, and at least one of each class ``distractors``, in a graph without them.

    :raises DataError: a thing has no likely place
    """
    counts: dict[str, int] = {}
    banned: dict[str, set[str]] = {}
    for predicate, count in (condition for goal in goals for condition in goal):
        kind, thing, *place = predicate.split("_")
        if kind not in ("turnOn", "sit"):
            counts[thing] = max(counts.get(thing, 0), count)
            banned.setdefault(thing, set()).update(place)
    for thing in distractors:
        counts.setdefault(thing, 1)
    for thing in sorted(counts):
        _place_all(graph, thing, max(counts[thing], rng.choice(INSTANCES)), banned.get(thing, set()), rng)


def _place_all(graph: GraphJson, thing: str, count: int, banned: set[str], rng: Random) -> None:
    rows = {row["id"]: row for row in graph["nodes"]}
    holders = [holder for holder in likely_holders(graph["nodes"], thing) if rows[holder]["class_name"] not in banned]
    last = {row["class_name"]: row["id"] for row in graph["nodes"]}
    reachable = [
        holder
        for holder in holders
        if "CLOSED" not in rows[holder]["states"] or last[rows[holder]["class_name"]] == holder
    ]
    if not reachable:
        raise DataError(
            f"there is no place for a {thing} in this apartment of {len(rows)} nodes; use another apartment"
        )
    for number in range(count):
        candidates = holders if number + 1 < count else reachable
        kind = rng.choice(sorted({rows[holder]["class_name"] for holder in candidates}))
        same_kind = [holder for holder in candidates if rows[holder]["class_name"] == kind]
        place(graph, thing, rng.choice(same_kind), rng)

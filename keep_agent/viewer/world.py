"""Known world at a step: tree of things (objects and receptacles), place of the agent, and things that it holds."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from keep_agent.rollout.trace import Entry
from keep_agent.viewer.history import History

AGENT = "agent"  # category of the agent's own fact


@dataclass(frozen=True, slots=True)
class Thing:
    """A line of the tree: an object or receptacle, followed by the things in or on it, which have depth + 1."""

    id: str
    category: str  # "" for a place about which there is no fact
    depth: int
    states: tuple[str, ...]
    step: int  # step of the last fact about it, -1 if there is none
    visible: bool  # to the agent at this step


@dataclass(frozen=True, slots=True)
class KnownWorld:
    """The world according to the facts up to a step."""

    things: tuple[Thing, ...]
    agent: str  # the agent's place, "" if unknown
    holds: tuple[str, ...]


def known_world(facts: History[Entry], step: int) -> KnownWorld:
    """Return the world at a step. The tree omits things that the agent holds; cycles of containment are cut."""
    known = dict(facts.at(step))
    agents = {id: fact for id, fact in known.items() if fact.get("category") == AGENT}
    in_hand = [id for id, fact in known.items() if fact.get("place") in agents]
    not_held = {id: fact for id, fact in known.items() if id not in agents and id not in in_hand}
    visible = {id for agent in agents.values() for id in agent.get("sees", ())}
    things = []
    for id, depth in _tree(not_held):
        fact, versions = not_held.get(id, {}), facts.versions(step, id)
        states = tuple(str(state) for state in fact.get("states", ()))
        since = versions[-1][0] if versions else -1
        things.append(Thing(id, fact.get("category", ""), depth, states, since, id in visible))
    place = next((str(agent["place"]) for agent in agents.values() if agent.get("place")), "")
    holds = dict.fromkeys([*in_hand, *(str(agent["holds"]) for agent in agents.values() if agent.get("holds"))])
    return KnownWorld(tuple(things), place, tuple(holds))


def _tree(not_held: Mapping[str, Entry]) -> Iterator[tuple[str, int]]:
    """Yield ids with their depth, parents first."""
    inside: dict[str, list[str]] = {}
    for id, fact in not_held.items():
        inside.setdefault(fact.get("place") or "", []).append(id)
    places = [place for place in inside if place and place not in not_held]
    visited: set[str] = set()
    for root in (*places, *inside.get("", ()), *not_held):  # not_held last: ids not reached before it are in cycles
        stack = [(root, 0)]
        while stack:
            id, depth = stack.pop()
            if id not in visited:
                visited.add(id)
                yield id, depth
                stack += [(child, depth + 1) for child in reversed(inside.get(id, ()))]

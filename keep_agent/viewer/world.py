"""The world as far as it was told: what lies where, and what the agent holds and sees."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from keep_agent.rollout.trace import Entry
from keep_agent.viewer.history import History

AGENT = "agent"  # category of the agent's own fact


@dataclass(frozen=True, slots=True)
class Thing:
    """A line of the containment tree; what is in or on it follows, one deeper."""

    id: str
    category: str  # "" for a place that nothing else was told of
    depth: int
    states: tuple[str, ...]
    told: int  # step that told it last, -1 for a place that is only named
    seen: bool  # does the agent see it now?


@dataclass(frozen=True, slots=True)
class World:
    """All that was told by a step."""

    things: tuple[Thing, ...]
    agent: str  # where it stands, "" if nobody said
    holds: tuple[str, ...]


def world(facts: History[Entry], step: int) -> World:
    """The tree at a step; what the agent holds is not in it. A circle is cut where it closes."""
    told = dict(facts.at(step))
    agents = {id: fact for id, fact in told.items() if fact.get("category") == AGENT}
    held = [id for id, fact in told.items() if fact.get("place") in agents]
    lying = {id: fact for id, fact in told.items() if id not in agents and id not in held}
    seen = {id for agent in agents.values() for id in agent.get("sees", ())}
    things = tuple(_thing(id, depth, lying.get(id, {}), facts, step, id in seen) for id, depth in _walk(lying))
    where = next((str(agent["place"]) for agent in agents.values() if agent.get("place")), "")
    holds = dict.fromkeys([*held, *(str(agent["holds"]) for agent in agents.values() if agent.get("holds"))])
    return World(things, where, tuple(holds))


def _thing(id: str, depth: int, fact: Entry, facts: History[Entry], step: int, seen: bool) -> Thing:
    versions = facts.versions(step, id)
    states = tuple(str(state) for state in fact.get("states", ()))
    return Thing(id, fact.get("category", ""), depth, states, versions[-1][0] if versions else -1, seen)


def _walk(lying: Mapping[str, Entry]) -> Iterator[tuple[str, int]]:
    """Ids with their depth, parents first."""
    inside: dict[str, list[str]] = {}
    for id, fact in lying.items():
        inside.setdefault(fact.get("place") or "", []).append(id)
    named = [place for place in inside if place and place not in lying]
    visited: set[str] = set()
    for root in (*named, *inside.get("", ()), *lying):  # the last ones: of a circle, whatever comes first
        yield from _below(root, inside, visited)


def _below(root: str, inside: Mapping[str, Sequence[str]], visited: set[str]) -> Iterator[tuple[str, int]]:
    waiting = [(root, 0)]
    while waiting:
        id, depth = waiting.pop()
        if id in visited:
            continue
        visited.add(id)
        yield id, depth
        waiting += [(child, depth + 1) for child in reversed(inside.get(id, ()))]

"""Comparison of our world with VirtualHome's executors, and the list of their known differences.

A difference is recognised by the state before the step, never by the result alone. A clash is one disagreement: one
side executes what the other refuses, or a fact is true on one side only. After each step the oracle (the executors'
household) is set to our facts, so that a difference causes no further ones.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from math import hypot

from envs.wah.action import CLOSE as SHUT
from envs.wah.action import GRAB, OPEN, PUT_IN, PUT_ON, SIT, SWITCH_OFF, SWITCH_ON, WALK, Action, Rules
from envs.wah.data.formats import write_graph
from envs.wah.geometry import is_never_close
from envs.wah.graph import CLOSE, HANDS, INSIDE, ON, SITTING, Box, Node
from envs.wah.home import Home
from tests.envs.wah.oracle import Fact, Oracle

PUT = (PUT_IN, PUT_ON)
SEATS = {"bed": 4, "sofa": 4, "bench": 2}  # seats of each; other furniture has one
REACH = 1.3  # metres


@dataclass(frozen=True, slots=True)
class Clash:
    """A disagreement in one step. ``fact`` is None if the sides disagree on whether the action is possible."""

    before: Home
    after: Home
    action: Action
    rules: Rules
    only_ours: bool  # whether our world executes the action or has the fact; else only the oracle does
    fact: Fact | None = None

    @property
    def target(self) -> Node:
        """Return the place of the action, or its thing."""
        return self.before.graph[self.action.place or self.action.thing]

    def about(self, only_ours: bool, *verbs: str) -> bool:
        """Return whether an action with one of these verbs is executed on that side only."""
        return self.fact is None and self.only_ours == only_ours and self.action.verb in verbs

    def linked(self, only_ours: bool, relation: str, *verbs: str) -> bool:
        """Return whether such an action leads to an edge of this relation on that side only."""
        if self.fact is None or self.action.verb not in verbs:
            return False
        return (self.only_ours, self.fact[1]) == (only_ours, relation)


@dataclass
class Tally:
    """Statistics of a run."""

    steps: int = 0
    done: Counter[str] = field(default_factory=Counter)  # steps that our world executed, by verb
    differences: Counter[str] = field(default_factory=Counter)  # steps with a known difference, by its name
    wrong: list[str] = field(default_factory=list)  # clashes without a known difference


def compare(
    oracle: Oracle, before: Home, after: Home, action: Action, verdicts: Mapping[Rules, bool], tally: Tally
) -> None:
    """Compare one step; ``after`` is ``before`` if it was refused. ``verdicts``: whether our rules allow it."""
    allowed = oracle.allows(action)
    clashes = [Clash(before, after, action, rules, ok) for rules, ok in verdicts.items() if ok != allowed]
    if after is not before:
        oracle.do(action)
        tally.done[action.verb] += 1
    world_facts, oracle_facts, rules = facts(after), oracle.facts(), next(iter(verdicts))
    differing = sorted(world_facts ^ oracle_facts)
    clashes += [Clash(before, after, action, rules, fact in world_facts, fact) for fact in differing]
    oracle.amend(oracle_facts - world_facts, world_facts - oracle_facts)
    names = {_name(clash): clash for clash in clashes}
    tally.wrong += [_description(names.pop(""))] if "" in names else []
    tally.differences.update(names.keys())
    tally.steps += 1


def facts(home: Home) -> set[Fact]:
    """Return all edges and states, in the executors' terms: a sitting agent is ON the seat and in the state SITTING."""
    graph = home.graph
    edges = {(a, ON if relation == SITTING else relation, b) for a, relation, b in graph.edges()}
    states = {(node.id, state, 0) for node in graph.nodes.values() for state in node.states}
    return edges | states | ({(home.agent, "SITTING", 0)} if home.sitting is not None else set())


def oracle_of(home: Home) -> Oracle:
    """Return the executors for a home in which the agent stands."""
    return Oracle(write_graph(home.graph))


def _name(clash: Clash) -> str:
    """Return the first difference that explains a clash; "" if there is none."""
    return next((name for name, explains in DIFFERENCES.items() if explains(clash)), "")


def _description(clash: Clash) -> str:
    action, nodes = clash.action, clash.before.graph.nodes
    words = [f"{nodes[node].class_name} ({node})" for node in (action.thing, action.place) if node]
    side = "our world" if clash.only_ours else "the oracle"
    what = "is executed" if clash.fact is None else f"leads to {clash.fact}"
    return f"{action.verb} {' '.join(words)} {what} in {side} only, {clash.rules} rules"


def _close_to(c: Clash, only_ours: bool) -> int:
    """Return the thing that the agent is close to on that side only, after the step; else 0."""
    if c.fact is None or c.fact[1] != CLOSE or c.only_ours != only_ours or c.before.agent not in c.fact:
        return 0
    return c.fact[2] if c.fact[0] == c.before.agent else c.fact[0]


def _keeps_seat(c: Clash) -> bool:
    seat, me = c.before.sitting, c.before.agent
    if c.fact is None:
        return c.about(False, SIT) and c.action.thing == seat
    leaves_seat = c.action.verb in (WALK, SIT) or (c.action.verb in (GRAB, *PUT) and c.action.thing == seat)
    return leaves_seat and not c.only_ours and c.fact in ((me, "SITTING", 0), (me, ON, seat))


def _inventory_stays(c: Clash) -> bool:
    if not (c.linked(True, INSIDE, WALK) or c.linked(False, INSIDE, WALK)):
        return False
    thing, _, room = c.fact or ()
    graph = (c.after if c.only_ours else c.before).graph
    return thing in c.before.inventory and graph.linked(c.before.agent, INSIDE, room)


def _lies_there(c: Clash) -> bool:
    home, thing = c.before, c.action.thing
    neighbours = {*home.graph.containers(thing), *home.graph.targets(thing, ON)}
    if c.action.verb == GRAB:
        neighbours |= {home.agent, *(home.all_contents(thing) if home.at == thing else ())}
    return c.action.verb in (WALK, GRAB) and _close_to(c, False) in neighbours


def _within_reach(c: Clash) -> bool:
    thing, home = _close_to(c, True), c.after
    if not thing or is_never_close(home.graph[thing]):
        return False
    furniture = home.at is not None and not is_never_close(home.graph[home.at])
    at_hand = furniture and (thing == home.at or thing in home.all_contents(home.at))
    return at_hand or thing in home.inventory or _distance(home.graph[thing].box, home.graph[home.agent].box) <= REACH


def _distance(a: Box | None, b: Box | None) -> float:
    """Return the metres on the floor plan from the middle of either box to the other box, whichever are fewer."""
    if a is None or b is None:
        return float("inf")
    apart = [abs(a.center[axis] - b.center[axis]) for axis in (0, 2)]
    return min(
        hypot(*(max(d - box.size[axis] / 2, 0.0) for d, axis in zip(apart, (0, 2), strict=True))) for box in (a, b)
    )


# Known differences, in the order in which they are tried: how the executors deviate from the simulator and LoTA-Bench.
DIFFERENCES: Mapping[str, Callable[[Clash], bool]] = {
    # They reach things on something close; the simulator measures the distance to the thing itself.
    "out of reach": lambda c: (
        c.about(False, GRAB, OPEN, SHUT, SWITCH_ON, SWITCH_OFF, *PUT, SIT)
        and not c.before.close(c.target.id)
        and any(c.before.close(node) for node in c.before.graph.targets(c.target.id, ON))
    ),
    # They close and switch with both hands full; LoTA-Bench requires a free one.
    "full hands": lambda c: c.about(False, SHUT, SWITCH_ON, SWITCH_OFF) and len(c.before.inventory) == len(HANDS),
    # They switch on open things; strict rules do not, and LoTA-Bench requires the state CLOSED.
    "ajar": lambda c: (
        c.about(False, SWITCH_ON)
        and ("CLOSED" not in c.target.states if c.rules == "lota" else "OPEN" in c.target.states)
    ),
    # They put things in anything and on anything; LoTA-Bench requires the property of the place.
    "holds nothing": lambda c: (
        (c.about(False, PUT_IN) and not c.target.container) or (c.about(False, PUT_ON) and not c.target.surface)
    ),
    # They put things in and on things in hand, even in and on themselves.
    "into the hand": lambda c: c.about(False, *PUT) and c.action.place in c.before.inventory,
    # They check the direct container of a thing; strict rules check the outer ones too.
    "hidden deeper": lambda c: (
        (c.about(False, GRAB) and c.rules == "strict" and c.before.hidden_in(c.action.thing) is not None)
        and not any(c.before.graph[node].closed for node in c.before.graph.containers(c.action.thing))
    ),
    # They walk to things in hand; strict rules do not.
    "in the hand": lambda c: c.about(False, WALK) and c.rules == "strict" and c.action.thing in c.before.inventory,
    # They put nothing into things that are not OPEN; strict rules refuse CLOSED things, LoTA-Bench none.
    "shut": lambda c: (
        (c.about(True, PUT_IN) and c.target.openable and "OPEN" not in c.target.states)
        and (c.rules == "lota" or not c.target.closed)
    ),
    # They do not open running things; LoTA-Bench does not check.
    "running": lambda c: c.about(True, OPEN) and "ON" in c.target.states,
    # They do not sit where things lie; the simulator and LoTA-Bench do not check.
    "crowded": lambda c: (
        c.about(True, SIT) and len(c.before.graph.sources(c.target.id, ON)) >= SEATS.get(c.target.class_name, 1)
    ),
    # They ignore that the agent sits: it sits down again, and its seat remains.
    "seated": _keeps_seat,
    # Things in hand stay INSIDE the room that the agent leaves.
    "inventory stays": _inventory_stays,
    # The content of a grabbed thing is in no room.
    "left behind": lambda c: (
        (c.fact is not None and c.linked(True, INSIDE, GRAB) and c.fact[0] in c.before.contents(c.action.thing))
        and c.fact[2] == c.before.graph.room(c.action.thing)
    ),
    # A thing put down keeps its relations; the simulator removes them first.
    "old edges": lambda c: (
        (c.fact is not None and not c.only_ours and c.action.verb in PUT)
        and (c.action.thing in (c.fact[0], c.fact[2]) and c.before.graph.linked(*c.fact))
    ),
    # A thing put on something does not get INSIDE its room.
    "new room": lambda c: (
        c.linked(True, INSIDE, PUT_ON) and c.fact == (c.action.thing, INSIDE, c.before.graph.room(c.action.place))
    ),
    # A thing put down is CLOSE to its place; in the simulator things are CLOSE to agents only.
    "touching": lambda c: c.linked(False, CLOSE, *PUT) and {c.action.thing, c.action.place} == {*c.fact} - {CLOSE},
    # The agent gets close to floors, walls, doors and curtains.
    "never close": lambda c: (
        c.action.verb == WALK and bool(node := _close_to(c, False)) and is_never_close(c.before.graph[node])
    ),
    # The agent gets close to the holders of a thing; when it grabs the thing it stays close to its content, and gets
    # close to itself if the thing has no place.
    "lies there": _lies_there,
    # The agent is not close to all things near it, nor to all content of its place.
    "within reach": _within_reach,
}

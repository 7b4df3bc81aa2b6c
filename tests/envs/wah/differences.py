"""Comparison of our world with VirtualHome's executors, and the list of their known differences.

A difference is recognised by the state before the step, never by the result alone. A clash is one disagreement: one
side executes what the other refuses, or a fact is true on one side only. After each step the oracle is set to our
facts, so that a difference causes no further ones.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from envs.wah.action import CLOSE as SHUT
from envs.wah.action import GRAB, OPEN, PUT_IN, PUT_ON, SIT, SWITCH_OFF, SWITCH_ON, WALK, Action, Rules
from envs.wah.data.formats import write_graph
from envs.wah.geometry import never_close
from envs.wah.graph import CLOSE, HANDS, INSIDE, ON, SITTING, Box
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


# Known differences: each docstring is how the executors deviate from the simulator and LoTA-Bench.


def _out_of_reach(c: Clash) -> bool:
    """Executors reach things on something close; the simulator measures the distance to the thing itself."""
    target = c.action.place or c.action.thing
    below = c.before.graph.targets(target, ON)
    near = not c.before.close(target) and any(c.before.close(node) for node in below)
    return c.about(False, GRAB, OPEN, SHUT, SWITCH_ON, SWITCH_OFF, *PUT, SIT) and near


def _full_hands(c: Clash) -> bool:
    """Executors close and switch with both hands full; LoTA-Bench requires a free one."""
    return c.about(False, SHUT, SWITCH_ON, SWITCH_OFF) and len(c.before.inventory) == len(HANDS)


def _ajar(c: Clash) -> bool:
    """Executors switch on open things; strict rules do not, and LoTA-Bench requires the state CLOSED."""
    states = c.before.graph[c.action.thing].states
    return c.about(False, SWITCH_ON) and ("CLOSED" not in states if c.rules == "lota" else "OPEN" in states)


def _holds_nothing(c: Clash) -> bool:
    """Executors put things in anything and on anything; LoTA-Bench requires the property of the place."""
    if not c.about(False, *PUT):
        return False
    place = c.before.graph[c.action.place]
    return not (place.container if c.action.verb == PUT_IN else place.surface)


def _into_the_hand(c: Clash) -> bool:
    """Executors put things in and on things in hand, even in and on themselves."""
    return c.about(False, *PUT) and c.action.place in c.before.inventory


def _hidden_deeper(c: Clash) -> bool:
    """Executors check the direct container of a thing; strict rules check the outer ones too."""
    if not c.about(False, GRAB) or c.rules != "strict" or c.before.hidden_in(c.action.thing) is None:
        return False
    return not any(c.before.graph[node].closed for node in c.before.graph.containers(c.action.thing))


def _in_the_hand(c: Clash) -> bool:
    """Executors walk to things in hand; strict rules do not."""
    return c.about(False, WALK) and c.rules == "strict" and c.action.thing in c.before.inventory


def _shut(c: Clash) -> bool:
    """Executors put nothing into things that are not OPEN; strict rules refuse CLOSED things, LoTA-Bench none."""
    if not c.about(True, PUT_IN):
        return False
    place = c.before.graph[c.action.place]
    return place.openable and "OPEN" not in place.states and (c.rules == "lota" or not place.closed)


def _running(c: Clash) -> bool:
    """Executors do not open running things; LoTA-Bench does not check."""
    return c.about(True, OPEN) and "ON" in c.before.graph[c.action.thing].states


def _crowded(c: Clash) -> bool:
    """Executors do not sit where things lie; the simulator and LoTA-Bench do not check."""
    if not c.about(True, SIT):
        return False
    graph, seat = c.before.graph, c.action.thing
    return len(graph.sources(seat, ON)) >= SEATS.get(graph[seat].class_name, 1)


def _seated(c: Clash) -> bool:
    """Executors ignore that the agent sits: it sits down again, and its seat remains."""
    seat, me = c.before.sitting, c.before.agent
    if c.fact is None:
        return c.about(False, SIT) and c.action.thing == seat
    leaves_seat = c.action.verb in (WALK, SIT) or (c.action.verb in (GRAB, *PUT) and c.action.thing == seat)
    return leaves_seat and not c.only_ours and c.fact in ((me, "SITTING", 0), (me, ON, seat))


def _inventory_stays(c: Clash) -> bool:
    """Things in hand stay INSIDE the room that the agent leaves."""
    if not (c.linked(True, INSIDE, WALK) or c.linked(False, INSIDE, WALK)):
        return False
    thing, _, room = c.fact or ()
    graph = (c.after if c.only_ours else c.before).graph
    return thing in c.before.inventory and graph.linked(c.before.agent, INSIDE, room)


def _old_edges(c: Clash) -> bool:
    """A thing put down keeps its relations; the simulator removes them first."""
    if c.fact is None or c.only_ours or c.action.verb not in PUT:
        return False
    return c.action.thing in (c.fact[0], c.fact[2]) and c.before.graph.linked(*c.fact)


def _new_room(c: Clash) -> bool:
    """A thing put on something does not get INSIDE its room."""
    graph = c.before.graph
    return c.linked(True, INSIDE, PUT_ON) and c.fact == (c.action.thing, INSIDE, graph.room(c.action.place))


def _left_behind(c: Clash) -> bool:
    """The content of a grabbed thing is in no room."""
    if c.fact is None or not c.linked(True, INSIDE, GRAB):
        return False
    grabbed = c.action.thing
    return c.fact[0] in c.before.contents(grabbed) and c.fact[2] == c.before.graph.room(grabbed)


def _touching(c: Clash) -> bool:
    """A thing put down is CLOSE to its place; in the simulator things are CLOSE to agents only."""
    ends = {c.action.thing, c.action.place}
    return c.linked(False, CLOSE, *PUT) and c.fact is not None and {c.fact[0], c.fact[2]} == ends


def _close_to(c: Clash, only_ours: bool) -> int | None:
    """Return the thing that the agent is close to on that side only, after the step."""
    if c.fact is None or c.fact[1] != CLOSE or c.only_ours != only_ours or c.before.agent not in c.fact:
        return None
    return c.fact[2] if c.fact[0] == c.before.agent else c.fact[0]


def _never_close(c: Clash) -> bool:
    """The agent gets close to floors, walls, doors and curtains."""
    thing = _close_to(c, False)
    return thing is not None and c.action.verb == WALK and never_close(c.before.graph[thing])


def _lies_there(c: Clash) -> bool:
    """The agent gets close to the holders of a thing; when it grabs the thing it stays close to its content, and gets
    close to itself if the thing has no place.
    """
    home, thing = c.before, c.action.thing
    neighbours = {*home.graph.containers(thing), *home.graph.targets(thing, ON)}
    if c.action.verb == GRAB:
        neighbours |= {home.agent, *(home.all_contents(thing) if home.at == thing else ())}
    return c.action.verb in (WALK, GRAB) and _close_to(c, False) in neighbours


def _within_reach(c: Clash) -> bool:
    """The agent is not close to all things near it, nor to all content of its place."""
    thing, home = _close_to(c, True), c.after
    if thing is None or never_close(home.graph[thing]):
        return False
    furniture = home.at is not None and not never_close(home.graph[home.at])
    at_hand = furniture and (thing == home.at or thing in home.all_contents(home.at))
    return at_hand or thing in home.inventory or _distance(home.graph[thing].box, home.graph[home.agent].box) <= REACH


def _distance(a: Box | None, b: Box | None) -> float:
    """Return the metres on the floor plan from the middle of one box to the other box, the smaller of both ways."""
    if a is None or b is None:
        return float("inf")
    ways = []
    for box in (a, b):
        gaps = [max(abs(a.center[axis] - b.center[axis]) - box.size[axis] / 2, 0.0) for axis in (0, 2)]
        ways.append(sum(gap**2 for gap in gaps) ** 0.5)
    return min(ways)


# In the order in which they are tried.
DIFFERENCES: Mapping[str, Callable[[Clash], bool]] = {
    check.__name__[1:].replace("_", " "): check
    for check in (
        _out_of_reach, _full_hands, _ajar, _holds_nothing, _into_the_hand, _hidden_deeper, _in_the_hand, _shut,
        _running, _crowded, _seated, _inventory_stays, _left_behind, _old_edges, _new_room, _touching, _never_close,
        _lies_there, _within_reach,
    )
}  # fmt: skip

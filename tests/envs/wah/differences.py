"""Our world and VirtualHome's executors do the same: the list of where they differ, and the comparison that knows it.

Every difference is recognised by what was the case before the step, never by its outcome alone. What differs is told
as a clash: one side does what the other refuses, or a fact is true on one side only. After each step the oracle is set
to our facts, so that a difference does not breed others.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from envs.wah.action import CLOSE as SHUT
from envs.wah.action import GRAB, OPEN, PUT_IN, PUT_ON, SIT, SWITCH_OFF, SWITCH_ON, WALK, Action
from envs.wah.checks import Rules
from envs.wah.data.formats import write_graph
from envs.wah.geometry import never_close
from envs.wah.graph import CLOSE, HANDS, INSIDE, ON, SITTING, Box
from envs.wah.home import Home
from tests.envs.wah.oracle import Fact, Oracle

PUT = (PUT_IN, PUT_ON)
SEATS = {"bed": 4, "sofa": 4, "bench": 2}  # of others there is one
REACH = 1.3  # metres


@dataclass(frozen=True, slots=True)
class Clash:
    """What one side alone does or has. ``fact`` is None where it is about whether the action is done at all."""

    before: Home
    after: Home
    action: Action
    rules: Rules
    here: bool  # our world is that side
    fact: Fact | None = None

    def about(self, here: bool, *verbs: str) -> bool:
        """Whether an action with one of these verbs is done on that side only."""
        return self.fact is None and self.here == here and self.action.verb in verbs

    def linked(self, here: bool, relation: str, *verbs: str) -> bool:
        """Whether such an action leads to an edge of this relation on that side only."""
        return self.fact is not None and (self.here, self.fact[1], self.action.verb in verbs) == (here, relation, True)


@dataclass(frozen=True, slots=True)
class Difference:
    """``why`` tells what the executors do otherwise than the simulator and LoTA-Bench, whom we follow."""

    why: str
    explains: Callable[[Clash], bool]


@dataclass
class Tally:
    """What a run of steps came to."""

    steps: int = 0
    done: Counter[str] = field(default_factory=Counter)  # steps that our world did, by verb
    met: Counter[str] = field(default_factory=Counter)  # steps with a difference, by its name
    wrong: list[str] = field(default_factory=list)  # clashes that nothing explains


def compare(
    oracle: Oracle, before: Home, after: Home, action: Action, verdicts: Mapping[Rules, bool], tally: Tally
) -> None:
    """One step of both; ``after`` is ``before`` where the step was refused. ``verdicts``: do our rules allow it?"""
    there = oracle.allows(action)
    clashes = [Clash(before, after, action, rules, ok) for rules, ok in verdicts.items() if ok != there]
    if after is not before:
        oracle.do(action)
        tally.done[action.verb] += 1
    ours, theirs, rules = facts(after), oracle.facts(), next(iter(verdicts))
    clashes += [Clash(before, after, action, rules, fact in ours, fact) for fact in sorted(ours ^ theirs)]
    oracle.amend(theirs - ours, ours - theirs)
    names = {_name(clash): clash for clash in clashes}
    tally.wrong += [_told(names.pop(""))] if "" in names else []
    tally.met.update(names.keys())
    tally.steps += 1


def facts(home: Home) -> set[Fact]:
    """All edges and states, in the executors' words: who sits is ON the seat and in the state SITTING."""
    graph = home.graph
    edges = {(a, ON if relation == SITTING else relation, b) for a, relation, b in graph.edges()}
    states = {(node.id, state, 0) for node in graph.nodes.values() for state in node.states}
    return edges | states | ({(home.agent, "SITTING", 0)} if home.sitting is not None else set())


def oracle_of(home: Home) -> Oracle:
    """The executors in a home where nobody sits."""
    return Oracle(write_graph(home.graph))


def _name(clash: Clash) -> str:
    """The first difference that explains it; "" if there is none."""
    return next((name for name, one in DIFFERENCES.items() if one.explains(clash)), "")


def _told(clash: Clash) -> str:
    action, nodes = clash.action, clash.before.graph.nodes
    words = [f"{nodes[one].class_name} ({one})" for one in (action.thing, action.place) if one]
    side = "ours" if clash.here else "theirs"
    what = "is done" if clash.fact is None else f"leads to {clash.fact}"
    return f"{action.verb} {' '.join(words)} {what} by {side} alone, {clash.rules} rules"


# What one does that the other refuses


def _out_of_reach(c: Clash) -> bool:
    target = c.action.place or c.action.thing
    below = c.before.graph.targets(target, ON)
    near = not c.before.close(target) and any(c.before.close(one) for one in below)
    return c.about(False, GRAB, OPEN, SHUT, SWITCH_ON, SWITCH_OFF, *PUT, SIT) and near


def _full_hands(c: Clash) -> bool:
    return c.about(False, SHUT, SWITCH_ON, SWITCH_OFF) and len(c.before.inventory) == len(HANDS)


def _ajar(c: Clash) -> bool:
    states = c.before.graph[c.action.thing].states
    return c.about(False, SWITCH_ON) and ("CLOSED" not in states if c.rules == "lota" else "OPEN" in states)


def _holds_nothing(c: Clash) -> bool:
    if not c.about(False, *PUT):
        return False
    place = c.before.graph[c.action.place]
    return not (place.container if c.action.verb == PUT_IN else place.surface)


def _into_the_hand(c: Clash) -> bool:
    return c.about(False, *PUT) and c.action.place in c.before.inventory


def _hidden_deeper(c: Clash) -> bool:
    if not c.about(False, GRAB) or c.rules != "strict" or c.before.hidden_in(c.action.thing) is None:
        return False
    return not any(c.before.graph[one].closed for one in c.before.graph.containers(c.action.thing))


def _in_the_hand(c: Clash) -> bool:
    return c.about(False, WALK) and c.rules == "strict" and c.action.thing in c.before.inventory


def _shut(c: Clash) -> bool:
    if not c.about(True, PUT_IN):
        return False
    place = c.before.graph[c.action.place]
    return place.openable and "OPEN" not in place.states and (c.rules == "lota" or not place.closed)


def _running(c: Clash) -> bool:
    return c.about(True, OPEN) and "ON" in c.before.graph[c.action.thing].states


def _crowded(c: Clash) -> bool:
    if not c.about(True, SIT):
        return False
    graph, seat = c.before.graph, c.action.thing
    return len(graph.sources(seat, ON)) >= SEATS.get(graph[seat].class_name, 1)


# What both do, to another effect


def _seated(c: Clash) -> bool:
    """Sitting down twice, and what remains of a seat."""
    seat, me = c.before.sitting, c.before.agent
    if c.fact is None:
        return c.about(False, SIT) and c.action.thing == seat
    left = c.action.verb in (WALK, SIT) or (c.action.verb in (GRAB, *PUT) and c.action.thing == seat)
    return left and not c.here and c.fact in ((me, "SITTING", 0), (me, ON, seat))


def _carried(c: Clash) -> bool:
    if not (c.linked(True, INSIDE, WALK) or c.linked(False, INSIDE, WALK)):
        return False
    thing, _, room = c.fact or ()
    then = (c.after if c.here else c.before).graph
    return thing in c.before.inventory and then.linked(c.before.agent, INSIDE, room)


def _old_edges(c: Clash) -> bool:
    if c.fact is None or c.here or c.action.verb not in PUT:
        return False
    return c.action.thing in (c.fact[0], c.fact[2]) and c.before.graph.linked(*c.fact)


def _new_room(c: Clash) -> bool:
    graph = c.before.graph
    return c.linked(True, INSIDE, PUT_ON) and c.fact == (c.action.thing, INSIDE, graph.room(c.action.place))


def _left_behind(c: Clash) -> bool:
    if c.fact is None or not c.linked(True, INSIDE, GRAB):
        return False
    grabbed = c.action.thing
    return c.fact[0] in c.before.contents(grabbed) and c.fact[2] == c.before.graph.room(grabbed)


def _touching(c: Clash) -> bool:
    ends = {c.action.thing, c.action.place}
    return c.linked(False, CLOSE, *PUT) and c.fact is not None and {c.fact[0], c.fact[2]} == ends


def _close_to(c: Clash, here: bool) -> int | None:
    """What the agent is close to on that side only, after the step."""
    if c.fact is None or c.fact[1] != CLOSE or c.here != here or c.before.agent not in c.fact:
        return None
    return c.fact[2] if c.fact[0] == c.before.agent else c.fact[0]


def _never_close(c: Clash) -> bool:
    thing = _close_to(c, False)
    return thing is not None and c.action.verb == WALK and never_close(c.before.graph[thing])


def _lies_there(c: Clash) -> bool:
    home, thing = c.before, c.action.thing
    there = {*home.graph.containers(thing), *home.graph.targets(thing, ON)}
    if c.action.verb == GRAB:
        there |= {home.agent, *(home.all_contents(thing) if home.at == thing else ())}
    return c.action.verb in (WALK, GRAB) and _close_to(c, False) in there


def _within_reach(c: Clash) -> bool:
    thing, home = _close_to(c, True), c.after
    if thing is None or never_close(home.graph[thing]):
        return False
    furniture = home.at is not None and not never_close(home.graph[home.at])
    at_hand = furniture and (thing == home.at or thing in home.all_contents(home.at))
    return at_hand or thing in home.inventory or _apart(home.graph[thing].box, home.graph[home.agent].box) <= REACH


def _apart(one: Box | None, other: Box | None) -> float:
    """Metres on the floor plan from the middle of one to the other's box, tried both ways."""
    if one is None or other is None:
        return float("inf")
    ways = []
    for box in (one, other):
        gaps = [max(abs(one.center[axis] - other.center[axis]) - box.size[axis] / 2, 0.0) for axis in (0, 2)]
        ways.append(sum(gap**2 for gap in gaps) ** 0.5)
    return min(ways)


DIFFERENCES: Mapping[str, Difference] = {
    # refusals of ours alone
    "out of reach": Difference(
        "they reach what lies on something close; the simulator measures the distance to the thing itself",
        _out_of_reach,
    ),
    "full hands": Difference("they close and switch with both hands full; LoTA-Bench asks for a free one", _full_hands),
    "ajar": Difference(
        "they switch on what is open; strict rules do not, and LoTA-Bench nothing that is not CLOSED", _ajar
    ),
    "holds nothing": Difference(
        "they put things in what is no container and on what is no surface; LoTA-Bench asks for the property",
        _holds_nothing,
    ),
    "into the hand": Difference("they put things in and on what they hold, be it themselves", _into_the_hand),
    "hidden deeper": Difference(
        "they see what a thing is directly in; strict rules also see what is closed around that", _hidden_deeper
    ),
    "in the hand": Difference("they walk to what they hold; strict rules do not", _in_the_hand),
    # refusals of theirs alone
    "shut": Difference(
        "they put nothing into what is not OPEN; LoTA-Bench does not ask, and strict rules refuse what is CLOSED", _shut
    ),
    "running": Difference("they do not open what is on; LoTA-Bench does not ask", _running),
    "crowded": Difference("they do not sit where things lie; nobody else asks", _crowded),
    # other effects
    "seated": Difference("they do not know that they sit: they sit down again, and never quite stand up", _seated),
    "carried": Difference("what they carry stays INSIDE the room that they walk out of", _carried),
    "left behind": Difference("what was in a thing that they take is in no room then", _left_behind),
    "old edges": Difference("what they put down keeps its relations; the simulator removes them first", _old_edges),
    "new room": Difference("what they put on something does not get INSIDE its room", _new_room),
    # closeness, which they derive from relations, and the simulator measures
    "touching": Difference(
        "what they put down is CLOSE to its place; the simulator's things only to agents", _touching
    ),
    "never close": Difference("they get close to floors, walls, doors and curtains", _never_close),
    "lies there": Difference(
        "they get close to all that a thing is on or in; when they take it they stay close to what was on or in it, "
        "and get close to themselves if it was nowhere",
        _lies_there,
    ),
    "within reach": Difference("they are not close to what is near, nor to all of what they walk to", _within_reach),
}

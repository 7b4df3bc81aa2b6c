"""Random actions in a household: some sensible, so that a walk leads somewhere, the others likely to be refused."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection, Mapping, Sequence
from random import Random

from envs.wah.action import CLOSE as SHUT
from envs.wah.action import GRAB, OPEN, PUT_IN, PUT_ON, SIT, SWITCH_OFF, SWITCH_ON, VERBS, WALK, Action
from envs.wah.checks import RULES, Rules, refusal
from envs.wah.graph import CLOSE, ON, Node
from envs.wah.home import Home
from tests.envs.wah.differences import Tally, compare, oracle_of

PUT = (PUT_IN, PUT_ON)
SENSIBLE = 0.6  # share of the actions that the rules allow
DEEPER = 0.4  # of these, about boxes and the like, or with what was touched a moment ago
SUITING = 0.7  # of the others, on a thing of the right kind
# What a verb is meant for; for putting, the place.
SUITS: Mapping[str, Callable[[Node], bool]] = {
    WALK: lambda node: node.grabbable or node.openable or node.container or node.surface or node.switchable,
    GRAB: lambda node: node.grabbable,
    OPEN: lambda node: node.openable,
    SHUT: lambda node: node.openable,
    SWITCH_ON: lambda node: node.switchable,
    SWITCH_OFF: lambda node: node.switchable,
    PUT_IN: lambda node: node.container,
    PUT_ON: lambda node: node.surface,
    SIT: lambda node: "SITTABLE" in node.properties,
}


def wander(home: Home, rng: Random, steps: int, tally: Tally) -> None:
    """Act at random beside the oracle. Both rules are asked at each step; one of them is played."""
    oracle, rules = oracle_of(home), rng.choice(RULES)
    touched: deque[int] = deque(maxlen=5)
    for _ in range(steps):
        action = _sensible(home, rng, rules, touched) if rng.random() < SENSIBLE else _random(home, rng)
        after = home.copy()
        done = after.act(action)
        verdicts = {one: done and not refusal(home, action, one) for one in RULES}
        after = after if verdicts[rules] else home
        compare(oracle, home, after, action, verdicts, tally)
        if after is not home:
            touched.extend(one for one in (action.thing, action.place) if one)
        home = after


def _sensible(home: Home, rng: Random, rules: Rules, touched: Collection[int]) -> Action:
    """An allowed action, each verb as likely as another."""
    for verb in rng.sample(VERBS, len(VERBS)):
        options = [one for one in _options(home, verb) if not refusal(home, one, rules)]
        deeper = [one for one in options if _deeper(home, one, touched)]
        if options:
            return rng.choice(deeper if deeper and rng.random() < DEEPER else options)
    raise AssertionError("one can always walk")


def _deeper(home: Home, action: Action, touched: Collection[int]) -> bool:
    """What leads to full boxes that are taken or shut away, and to machines that are opened while they run."""
    node = home.graph[action.place or action.thing]
    return (node.grabbable and node.container) or action.thing in touched


def _options(home: Home, verb: str) -> list[Action]:
    near = _near(home)
    if verb == WALK:
        return [Action(WALK, node.id) for node in home.graph.nodes.values() if SUITS[WALK](node)]
    if verb in PUT:
        return [Action(verb, thing, place) for thing in home.inventory for place in near]
    return [Action(verb, thing) for thing in near]


def _near(home: Home) -> list[int]:
    return sorted(home.graph.targets(home.agent, CLOSE))


def _random(home: Home, rng: Random) -> Action:
    """Any verb, mostly on what is close, or lies on that; of what is put down, mostly something held."""
    graph, verb = home.graph, rng.choice(VERBS)
    others = [one for one in graph.nodes if one != home.agent]
    around = sorted({*_near(home), *(thing for one in _near(home) for thing in graph.sources(one, ON))} - {home.agent})
    pool: Sequence[int] = around if around and rng.random() < 0.7 else others
    if rng.random() < SUITING:
        pool = [one for one in pool if SUITS[verb](graph[one])] or others
    if verb not in PUT:
        return Action(verb, rng.choice(pool))
    things = home.inventory if home.inventory and rng.random() < 0.8 else pool
    places = home.inventory if home.inventory and rng.random() < 0.1 else pool
    return Action(verb, rng.choice(things), rng.choice(places))

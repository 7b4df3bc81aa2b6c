"""Random walks in a household: some actions are possible ones, the others are likely to be refused."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection, Mapping, Sequence
from random import Random

from envs.wah import action as acts
from envs.wah.graph import CLOSE, ON, Node
from envs.wah.home import Home
from tests.envs.wah.differences import Tally, compare, oracle_of

PUT = (acts.PUT_IN, acts.PUT_ON)
POSSIBLE = 0.6  # share of the actions that the rules allow
NESTED = 0.4  # share of these with portable containers or recently used things
SUITABLE = 0.7  # share of the others with a suitable thing
# By verb, the things that it suits; for putting, the places.
SUITS: Mapping[str, Callable[[Node], bool]] = {
    acts.WALK: lambda node: node.grabbable or node.openable or node.container or node.surface or node.switchable,
    acts.GRAB: lambda node: node.grabbable, acts.OPEN: lambda node: node.openable,
    acts.CLOSE: lambda node: node.openable,
    acts.SWITCH_ON: lambda node: node.switchable, acts.SWITCH_OFF: lambda node: node.switchable,
    acts.PUT_IN: lambda node: node.container, acts.PUT_ON: lambda node: node.surface,
    acts.SIT: lambda node: "SITTABLE" in node.properties,
}  # fmt: skip


def wander(home: Home, rng: Random, steps: int, tally: Tally) -> None:
    """Act at random in our world and the oracle. Both rules are checked at each step; one of them is followed."""
    oracle, rules = oracle_of(home), rng.choice(acts.RULES)
    recent: deque[int] = deque(maxlen=5)
    for _ in range(steps):
        action = _possible(home, rng, rules, recent) if rng.random() < POSSIBLE else _random(home, rng)
        after = home.copy()
        done = after.act(action)
        verdicts = {name: done and not acts.refusal(home, action, name) for name in acts.RULES}
        after = after if verdicts[rules] else home
        compare(oracle, home, after, action, verdicts, tally)
        if after is not home:
            recent.extend(thing for thing in (action.thing, action.place) if thing)
        home = after


def _possible(home: Home, rng: Random, rules: acts.Rules, recent: Collection[int]) -> acts.Action:
    """Draw an allowed action, all verbs with equal probability."""
    for verb in rng.sample(acts.VERBS, len(acts.VERBS)):
        options = [action for action in _options(home, verb) if not acts.refusal(home, action, rules)]
        nested = [action for action in options if _is_nested(home, action, recent)]
        if options:
            return rng.choice(nested if nested and rng.random() < NESTED else options)
    raise AssertionError("walking is always possible")


def _is_nested(home: Home, action: acts.Action, recent: Collection[int]) -> bool:
    """Return whether an action leads to full boxes being carried or enclosed, or to running machines being opened."""
    node = home.graph[action.place or action.thing]
    return (node.grabbable and node.container) or action.thing in recent


def _options(home: Home, verb: str) -> list[acts.Action]:
    near = _near(home)
    if verb == acts.WALK:
        return [acts.Action(acts.WALK, node.id) for node in home.graph.nodes.values() if SUITS[acts.WALK](node)]
    if verb in PUT:
        return [acts.Action(verb, thing, place) for thing in home.inventory for place in near]
    return [acts.Action(verb, thing) for thing in near]


def _near(home: Home) -> list[int]:
    return sorted(home.graph.targets(home.agent, CLOSE))


def _random(home: Home, rng: Random) -> acts.Action:
    """Draw any verb, mostly with things that are close or lie on those; for putting, mostly things in hand."""
    graph, verb = home.graph, rng.choice(acts.VERBS)
    nodes = [node for node in graph.nodes if node != home.agent]
    around = sorted(
        {*_near(home), *(thing for below in _near(home) for thing in graph.sources(below, ON))} - {home.agent}
    )
    pool: Sequence[int] = around if around and rng.random() < 0.7 else nodes
    if rng.random() < SUITABLE:
        pool = [node for node in pool if SUITS[verb](graph[node])] or nodes
    if verb not in PUT:
        return acts.Action(verb, rng.choice(pool))
    things = home.inventory if home.inventory and rng.random() < 0.8 else pool
    places = home.inventory if home.inventory and rng.random() < 0.1 else pool
    return acts.Action(verb, rng.choice(things), rng.choice(places))

"""Instance-level skills: "go to kitchen 1", "open fridge 1", "put plate 2 in dishwasher 1", "sit on sofa 1" and "done".

The agent can go to rooms, furniture, and objects on the floor of a room. All other skills work only on the furniture or
object at which the agent stands, and on its content. Failure messages do not reveal where a hidden object is.
The strict checks of `envs.wah.action` apply.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from types import MappingProxyType

from envs.outcome import SUCCESS, Outcome, failed, unknown_skill
from envs.wah import action as verbs
from envs.wah.action import Action, refusal
from envs.wah.graph import ROOMS
from envs.wah.knowledge import Knowledge
from envs.wah.language.names import PUT_INTO
from envs.wah.state import HomeState

_FORM = re.compile(r"(go to|open|close|pick up|turn on|turn off|sit on) (\w+ \d+)")
_PUT = re.compile(r"put (\w+ \d+) in (\w+ \d+)")
_VERBS: Mapping[str, str] = MappingProxyType({
    "go to": verbs.WALK, "open": verbs.OPEN, "close": verbs.CLOSE, "pick up": verbs.GRAB, "turn on": verbs.SWITCH_ON,
    "turn off": verbs.SWITCH_OFF, "sit on": verbs.SIT,
})  # fmt: skip


class GroundedSkills:
    """Skills that name instances of the apartment's classes, such as "fridge 1"."""

    def execute(self, home: HomeState, skill: str) -> Outcome:
        """Execute a skill. Raises SkillError for a text that is not a skill or names a class not in the apartment."""
        if skill == "done":
            return SUCCESS
        if match := _PUT.fullmatch(skill):
            thing, place = (_resolve(home, skill, words) for words in match.groups())
            if thing is None or thing not in home.inventory:
                return failed(f"you are not holding {match[1]}")
            return _unreachable(home, place, match[2]) or _act(home, Action(put_verb(home, place), thing, place))
        if match := _FORM.fullmatch(skill):
            thing = _resolve(home, skill, match[2])
            if match[1] == "go to":
                return _go(home, thing, match[2])
            return _unreachable(home, thing, match[2]) or _act(home, Action(_VERBS[match[1]], thing))
        raise unknown_skill(skill, _all_skills(home))

    def admissible(self, home: HomeState, knowledge: Knowledge | None = None) -> tuple[str, ...]:
        """Return the skills useful now on known things: first "go to", then those on things at hand, last "done"."""
        known = home.things if knowledge is None else knowledge.known
        words = home.things.words
        skills = [f"go to {words(place)}" for place in destinations(home) if place in known and place != home.at]
        skills += [skill for thing in at_hand(home) if thing in known for skill in _useful_skills(home, thing)]
        return (*skills, "done")


def put_verb(home: HomeState, place: int) -> str:
    """Return PUT_IN for a container that is in LoTA-Bench's list `PUT_INTO` or is not a surface, else PUT_ON."""
    node = home.graph[place]
    inside = node.container and (node.class_name in PUT_INTO or not node.surface)
    return verbs.PUT_IN if inside else verbs.PUT_ON


def at_hand(home: HomeState) -> list[int]:
    """Return the furniture or thing at which the agent stands, and its visible content."""
    if home.at is None or home.graph[home.at].category == ROOMS or home.at in home.inventory:
        return []
    return [home.at, *home.in_view(home.at)]


def destinations(home: HomeState) -> Iterator[int]:
    """Yield rooms, furniture, and things on the floor."""
    yield from home.things.fixtures
    yield from home.loose_things()


def _resolve(home: HomeState, skill: str, words: str) -> int | None:
    """Return a node id; None for an unknown number or a part of the building. Raises SkillError for an absent class."""
    kind, _, number = words.partition(" ")
    if not home.graph.of_class(kind):
        raise unknown_skill(skill, _all_skills(home))
    thing = home.things.id(f"{kind}_{number}")
    return thing if thing in home.things else None


def _all_skills(home: HomeState) -> Iterator[str]:
    """Yield every skill for every thing, and "put" for every thing in hand and every place."""
    yield "done"
    words = home.things.words
    for thing in (*home.things.fixtures, *home.things.movables):
        yield from (f"{verb} {words(thing)}" for verb in _VERBS)
        yield from (f"put {words(item)} in {words(thing)}" for item in home.inventory)


def _go(home: HomeState, thing: int | None, words: str) -> Outcome:
    if thing is None and home.graph.of_class(words.partition(" ")[0])[0] in home.things.fixtures:
        return failed(f"there is no {words} to go to")
    if thing in home.inventory:
        return failed(f"you are holding {words}")
    if thing is None or (thing not in home.things.fixtures and home.holder(thing) is not None):
        return failed(f"{words} does not lie around, go to a room or to furniture")
    return _act(home, Action(verbs.WALK, thing))


def _unreachable(home: HomeState, thing: int | None, words: str) -> Outcome | None:
    """Return the failure for a held or unreachable thing, without revealing its place; None for a thing at hand."""
    if thing is not None and thing in home.inventory:
        return failed(f"you are holding {words}")
    if thing is not None and thing in at_hand(home):
        return None
    closed = home.at is not None and home.graph[home.at].closed
    if thing is not None and thing in home.things.fixtures:
        return failed(f"you are not at {words}")
    return failed("what you stand at is closed" if closed else f"{words} is not here")


def _act(home: HomeState, action: Action) -> Outcome:
    reason = refusal(home, action, "strict")
    if not reason and not home.act(action):
        reason = f"the simulator could not do {action.verb}"
    return failed(reason) if reason else SUCCESS


def _useful_skills(home: HomeState, thing: int) -> Iterator[str]:
    """Yield the skills that are useful now on a thing of `at_hand`."""
    node, words = home.graph[thing], home.things.words(thing)
    is_fixture, free_hand = thing in home.things.fixtures, len(home.inventory) < 2
    if node.openable and (node.container or node.switchable) and free_hand:
        doors = (("CLOSED", "open"), ("OPEN", "close"))
        yield from (f"{verb} {words}" for state, verb in doors if state in node.states)
    if thing in home.things.movables and free_hand:
        yield f"pick up {words}"
    if is_fixture and (node.container or node.surface) and not (node.closed and put_verb(home, thing) == verbs.PUT_IN):
        yield from (f"put {home.things.words(item)} in {words}" for item in home.inventory)
    if node.switchable and is_fixture and free_hand and "OPEN" not in node.states:
        turns = (("OFF", "on"), ("ON", "off"))
        yield from (f"turn {after} {words}" for before, after in turns if before in node.states)
    if home.allows_sitting and "SITTABLE" in node.properties and is_fixture and home.sitting != thing:
        yield f"sit on {words}"

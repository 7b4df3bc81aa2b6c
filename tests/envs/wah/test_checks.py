"""Preconditions: `lota` follows LoTA-Bench's table of preconditions exactly, `strict` adds some."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import product

import pytest

from envs.wah.action import Action, Rules, refusal
from envs.wah.graph import CHARACTERS, CLOSE, HANDS, INSIDE, ROOMS, SITTING, Graph, Node
from envs.wah.home import Home
from keep_agent.errors import SkillError
from tests.envs.wah.homes import action, apartment, do, home, node_id

ME, ROOM, THING, OUTER, PLACE = 1, 11, 20, 21, 22
FILLERS = (30, 31)  # things in hand
FLAGS = (True, False)
DOORS = ("OPEN", "CLOSED", "")
POWERS = ("ON", "OFF", "")


def situation(
    properties: Iterable[str] = (), states: Iterable[str] = (), close: bool = True, hands: int = 0, outer: str = ""
) -> Home:
    """Return a home: a thing, an agent with ``hands`` plates; ``outer``: state of a container around the thing."""
    traits = frozenset(filter(None, properties)), frozenset(filter(None, states))
    graph = Graph(
        (
            Node(ME, "character", CHARACTERS), Node(ROOM, "kitchen", ROOMS), Node(THING, "box", "Props", *traits),
            Node(OUTER, "cabinet", "Furniture", frozenset(("CONTAINERS", "CAN_OPEN")), frozenset((outer,))),
            Node(PLACE, "stove", "Furniture", *traits),
            *(Node(number, "plate", "Props", frozenset(("GRABBABLE",))) for number in FILLERS),
        )
    )  # fmt: skip
    for number in (ME, THING, OUTER, PLACE, *FILLERS):
        graph.link(number, INSIDE, ROOM)
    house = Home(graph)
    if outer:
        graph.link(THING, INSIDE, OUTER)
    for hand, number in zip(HANDS[:hands], FILLERS, strict=False):
        graph.link(ME, hand, number)
    for number in (THING, PLACE) if close else ():
        graph.link(number, CLOSE, ME)
        graph.link(ME, CLOSE, number)
    return house


def allowed(house: Home, verb: str, thing: int = THING, place: int = 0, rules: Rules = "lota") -> bool:
    """Return whether an action is allowed; the check must change nothing."""
    before = house.copy()
    reason = refusal(house, Action(verb, thing, place), rules)
    assert house == before
    return not reason


def may(value: str, present: bool) -> Iterator[str]:
    """Yield ``value`` if it is present."""
    return iter((value,) if present else ())


@pytest.mark.parametrize("rules", ["lota", "strict"])
@pytest.mark.parametrize(("close", "hands"), product(FLAGS, range(3)))
def test_walking_is_always_allowed(rules: Rules, close: bool, hands: int) -> None:
    assert allowed(situation(close=close, hands=hands), "walk", rules=rules)


@pytest.mark.parametrize(("grabbable", "close", "outer", "hands"), product(FLAGS, FLAGS, DOORS, range(3)))
def test_grabbing(grabbable: bool, close: bool, outer: str, hands: int) -> None:
    house = situation(may("GRABBABLE", grabbable), close=close, hands=hands, outer=outer)
    expected = grabbable and close and outer != "CLOSED" and hands < 2
    assert allowed(house, "grab") == allowed(house, "grab", rules="strict") == expected


@pytest.mark.parametrize(("openable", "door", "close", "hands"), product(FLAGS, DOORS, FLAGS, range(3)))
def test_opening_and_closing(openable: bool, door: str, close: bool, hands: int) -> None:
    house = situation(may("CAN_OPEN", openable), (door,), close, hands)
    possible = openable and close and hands < 2
    for rules in ("lota", "strict"):
        assert allowed(house, "open", rules=rules) == (possible and door == "CLOSED")
        assert allowed(house, "close", rules=rules) == (possible and door == "OPEN")


@pytest.mark.parametrize(
    ("switch", "door", "power", "close", "hands"), list(product(FLAGS, DOORS, POWERS, FLAGS, range(3)))
)
def test_switching_on_needs_a_closed_door(switch: bool, door: str, power: str, close: bool, hands: int) -> None:
    house = situation(may("HAS_SWITCH", switch), (door, power), close, hands)
    possible = switch and close and hands < 2
    assert allowed(house, "switchon") == (possible and power == "OFF" and door == "CLOSED")
    assert allowed(house, "switchon", rules="strict") == (possible and power == "OFF" and door != "OPEN"), "or no door"
    for rules in ("lota", "strict"):
        assert allowed(house, "switchoff", rules=rules) == (possible and power == "ON")


@pytest.mark.parametrize(
    ("container", "surface", "door", "close", "hands"), list(product(FLAGS, FLAGS, DOORS, FLAGS, range(3)))
)
def test_putting(container: bool, surface: bool, door: str, close: bool, hands: int) -> None:
    house = situation((*may("CONTAINERS", container), *may("SURFACES", surface)), (door,), close, hands)
    for thing in FILLERS:
        possible = close and thing in house.inventory
        assert allowed(house, "putin", thing, PLACE) == (container and possible), "even if it is closed"
        assert allowed(house, "putin", thing, PLACE, "strict") == (container and possible and door != "CLOSED")
        for rules in ("lota", "strict"):
            assert allowed(house, "putback", thing, PLACE, rules) == (surface and possible)


@pytest.mark.parametrize("rules", ["lota", "strict"])
@pytest.mark.parametrize(("sittable", "close", "sits", "hands"), product(FLAGS, FLAGS, FLAGS, range(3)))
def test_sitting_needs_no_free_hand(rules: Rules, sittable: bool, close: bool, sits: bool, hands: int) -> None:
    house = situation(may("SITTABLE", sittable), close=close, hands=hands)
    if sits:
        house.graph.link(ME, SITTING, THING)
    assert allowed(house, "sit", rules=rules) == (sittable and close and not sits)


@pytest.mark.parametrize(
    ("thing", "before", "words", "sentence"),
    [
        # the benchmark checks only the direct container
        ("pancake on plate_2", "walk kitchencabinet_1", "grab pancake_1",
         "the pancake is in the kitchen cabinet, which is closed"),
        ("plate on kitchentable_1", "walk kitchentable_1, grab apple_1", "walk apple_1", "you are holding the apple"),
        ("plate on kitchentable_1", "walk kitchentable_1, grab apple_1", "grab apple_1", "you are holding the apple"),
        ("plate on kitchentable_1", "walk kitchentable_1, grab plate_3, grab apple_1", "putback apple_1 plate_3",
         "you are holding the plate"),
    ],
)  # fmt: skip
def test_only_the_strict_rule_refuses(thing: str, before: str, words: str, sentence: str) -> None:
    house = home(apartment(thing))
    do(house, *before.split(", "))
    assert not refusal(house, action(house, words), "lota")
    assert refusal(house, action(house, words), "strict") == sentence


@pytest.mark.parametrize(
    ("before", "words", "sentence"),
    [
        ((), "grab sofa_1", "the sofa cannot be picked up"),
        ((), "grab apple_1", "the apple is not close"),
        (("walk fridge_1",), "grab apple_2", "the apple is in the fridge, which is closed"),
        (("walk bookshelf_1",), "grab toy_1", "the toy is in the box, which is closed"),
        (("walk coffeetable_1", "grab book_1", "grab slippers_1"), "grab cupcake_1", "your hands are full"),
        ((), "open sofa_1", "the sofa cannot be opened"),
        ((), "open fridge_1", "the fridge is not close"),
        (("open fridge_1",), "open fridge_1", "the fridge is already open"),
        (("grab apple_1", "grab plate_1", "walk fridge_1"), "open fridge_1", "your hands are full"),
        ((), "close kitchentable_1", "the kitchen table cannot be closed"),
        ((), "close fridge_1", "the fridge is already closed"),
        (("open fridge_1",), "close fridge_1", "the fridge is not close"),
        ((), "switchon sofa_1", "the sofa has no switch"),
        ((), "switchon tv_1", "the tv is not close"),
        (("walk tv_1", "switchon tv_1"), "switchon tv_1", "the tv is already on"),
        (("open dishwasher_1",), "switchon dishwasher_1", "the dishwasher is open, close it first"),
        ((), "switchoff sofa_1", "the sofa has no switch"),
        ((), "switchoff tv_1", "the tv is already off"),
        ((), "putin apple_1 dishwasher_1", "you are not holding the apple"),
        (("grab apple_1",), "putin apple_1 dishwasher_1", "the dishwasher is not close"),
        (("grab apple_1", "walk dishwasher_1"), "putin apple_1 dishwasher_1", "the dishwasher is closed"),
        (("grab apple_1",), "putin apple_1 sofa_1", "nothing can be put in the sofa"),
        (("grab apple_1",), "putback apple_1 fridge_1", "nothing can be put on the fridge"),
        ((), "putback apple_1 sofa_1", "you are not holding the apple"),
        (("grab apple_1",), "putback apple_1 sofa_1", "the sofa is not close"),
        ((), "sit fridge_1", "one cannot sit on the fridge"),
        ((), "sit sofa_1", "the sofa is not close"),
        (("walk sofa_1", "sit sofa_1"), "sit sofa_1", "you are sitting on the sofa"),
    ],
)
def test_messages(before: tuple[str, ...], words: str, sentence: str) -> None:
    house = home()
    do(house, *before)
    assert refusal(house, action(house, words), "strict") == sentence


def test_an_unknown_verb_is_an_error() -> None:
    house = home()
    with pytest.raises(SkillError, match="'juggle' is not a verb of this world; use one of walk, grab"):
        refusal(house, Action("juggle", node_id(house, "apple_1")), "lota")

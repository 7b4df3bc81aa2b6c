"""What may be done: LoTA-Bench's table of preconditions to the letter, and what the strict rule adds."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import product

import pytest

from envs.wah.action import Action
from envs.wah.checks import Rules, refusal
from envs.wah.graph import CHARACTERS, CLOSE, HANDS, INSIDE, ROOMS, SITTING, Graph, Node
from envs.wah.home import Home
from keep_agent.errors import SkillError
from tests.envs.wah.homes import action, add, apartment, do, home, one, put

ME, ROOM, THING, OUTER, PLACE = 1, 11, 20, 21, 22
FILLERS = (30, 31)  # what the hands are full of
BOTH = (True, False)
DOORS = ("OPEN", "CLOSED", "")
POWERS = ("ON", "OFF", "")


def situation(
    properties: Iterable[str] = (), states: Iterable[str] = (), close: bool = True, held: int = 0, outer: str = ""
) -> Home:
    """An agent and one thing, which may lie in a container that is OPEN or CLOSED; ``held`` other things are held."""
    made = frozenset(one for one in properties if one), frozenset(one for one in states if one)
    graph = Graph(
        (
            Node(ME, "character", CHARACTERS),
            Node(ROOM, "kitchen", ROOMS),
            Node(THING, "box", "Props", *made),
            Node(OUTER, "cabinet", "Furniture", frozenset(("CONTAINERS", "CAN_OPEN")), frozenset((outer,))),
            Node(PLACE, "stove", "Furniture", *made),
            *(Node(number, "plate", "Props", frozenset(("GRABBABLE",))) for number in FILLERS),
        )
    )
    for number in (ME, THING, OUTER, PLACE, *FILLERS):
        graph.link(number, INSIDE, ROOM)
    house = Home(graph)
    if outer:
        graph.link(THING, INSIDE, OUTER)
    for hand, number in zip(HANDS[:held], FILLERS, strict=False):
        graph.link(ME, hand, number)
    for number in (THING, PLACE) if close else ():
        graph.link(number, CLOSE, ME)
        graph.link(ME, CLOSE, number)
    return house


def allowed(house: Home, verb: str, thing: int = THING, place: int = 0, rules: Rules = "lota") -> bool:
    return not refusal(house, Action(verb, thing, place), rules)


def may(value: str, present: bool) -> Iterator[str]:
    """A property, if it is present."""
    return iter((value,) if present else ())


@pytest.mark.parametrize("rules", ["lota", "strict"])
@pytest.mark.parametrize(("close", "held"), product(BOTH, range(3)))
def test_walking_is_always_allowed(rules: Rules, close: bool, held: int) -> None:
    assert allowed(situation(close=close, held=held), "walk", rules=rules)


@pytest.mark.parametrize(("grabbable", "close", "outer", "held"), product(BOTH, BOTH, DOORS, range(3)))
def test_grabbing(grabbable: bool, close: bool, outer: str, held: int) -> None:
    house = situation(may("GRABBABLE", grabbable), close=close, held=held, outer=outer)
    expected = grabbable and close and outer != "CLOSED" and held < 2
    assert allowed(house, "grab") == allowed(house, "grab", rules="strict") == expected


@pytest.mark.parametrize(("openable", "door", "close", "held"), product(BOTH, DOORS, BOTH, range(3)))
def test_opening_and_closing(openable: bool, door: str, close: bool, held: int) -> None:
    house = situation(may("CAN_OPEN", openable), (door,), close, held)
    possible = openable and close and held < 2
    for rules in ("lota", "strict"):
        assert allowed(house, "open", rules=rules) == (possible and door == "CLOSED")
        assert allowed(house, "close", rules=rules) == (possible and door == "OPEN")


SWITCHES = pytest.mark.parametrize(
    ("switch", "door", "power", "close", "held"), list(product(BOTH, DOORS, POWERS, BOTH, range(3)))
)


@SWITCHES
def test_switching_on_asks_for_a_closed_door(switch: bool, door: str, power: str, close: bool, held: int) -> None:
    house = situation(may("HAS_SWITCH", switch), (door, power), close, held)
    possible = switch and close and held < 2 and power == "OFF"
    assert allowed(house, "switchon") == (possible and door == "CLOSED")
    assert allowed(house, "switchon", rules="strict") == (possible and door != "OPEN"), "or for none at all"


@SWITCHES
def test_switching_off(switch: bool, door: str, power: str, close: bool, held: int) -> None:
    house = situation(may("HAS_SWITCH", switch), (door, power), close, held)
    expected = switch and close and held < 2 and power == "ON"
    assert allowed(house, "switchoff") == allowed(house, "switchoff", rules="strict") == expected


PLACES = pytest.mark.parametrize(
    ("container", "surface", "door", "close", "held"), list(product(BOTH, BOTH, DOORS, BOTH, range(3)))
)


@PLACES
def test_putting_in(container: bool, surface: bool, door: str, close: bool, held: int) -> None:
    properties = (*may("CONTAINERS", container), *may("SURFACES", surface))
    house = situation(properties, (door,), close, held)
    for thing in FILLERS:
        expected = container and close and thing in house.inventory
        assert allowed(house, "putin", thing, PLACE) == expected, "be it closed"
        assert allowed(house, "putin", thing, PLACE, "strict") == (expected and door != "CLOSED")


@PLACES
def test_putting_on(container: bool, surface: bool, door: str, close: bool, held: int) -> None:
    properties = (*may("CONTAINERS", container), *may("SURFACES", surface))
    house = situation(properties, (door,), close, held)
    for thing in FILLERS:
        expected = surface and close and thing in house.inventory
        assert allowed(house, "putback", thing, PLACE) == expected
        assert allowed(house, "putback", thing, PLACE, "strict") == expected


@pytest.mark.parametrize("rules", ["lota", "strict"])
@pytest.mark.parametrize(("sittable", "close", "sits"), product(BOTH, BOTH, BOTH))
def test_sitting(rules: Rules, sittable: bool, close: bool, sits: bool) -> None:
    house = situation(may("SITTABLE", sittable), close=close)
    if sits:
        house.graph.link(ME, SITTING, THING)
    assert allowed(house, "sit", rules=rules) == (sittable and close and not sits)


def test_the_benchmark_looks_only_at_what_a_thing_is_directly_in() -> None:
    content = apartment()
    put(content, "pancake", "on plate_2")
    house = home(content)
    do(house, "walk kitchencabinet_1")
    assert not refusal(house, action(house, "grab pancake_1"), "lota")
    sentence = "the pancake is in the kitchen cabinet, which is closed"
    assert refusal(house, action(house, "grab pancake_1"), "strict") == sentence


def test_the_benchmark_asks_nothing_more_of_what_is_held() -> None:
    house = home()
    do(house, "walk kitchentable_1", "grab apple_1")
    for words in ("walk apple_1", "grab apple_1"):
        assert not refusal(house, action(house, words), "lota")
        assert refusal(house, action(house, words), "strict") == "you are holding the apple"


def test_the_benchmark_lets_things_be_put_on_what_is_held() -> None:
    content = apartment()
    put(content, "plate", "on kitchentable_1")
    house = home(content)
    do(house, "walk kitchentable_1", "grab plate_3", "grab apple_1")
    assert not refusal(house, action(house, "putback apple_1 plate_3"), "lota")
    assert refusal(house, action(house, "putback apple_1 plate_3"), "strict") == "you are holding the plate"


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
def test_sentences(before: tuple[str, ...], words: str, sentence: str) -> None:
    house = home()
    do(house, *before)
    assert refusal(house, action(house, words), "strict") == sentence


def test_a_check_changes_nothing() -> None:
    house = home()
    do(house, "walk kitchentable_1", "grab apple_1")
    before, at = house.graph.copy(), house.at
    for words in ("grab cutleryfork_1", "putback apple_1 kitchentable_1", "open fridge_1", "walk sofa_1"):
        refusal(house, action(house, words), "lota")
    assert (house.graph, house.at) == (before, at)


def test_a_seat_may_be_taken_with_full_hands() -> None:
    content = apartment()
    add(content, "chair", (3.0, 0.2, 3.5), "in kitchen_1")
    house = home(content)
    do(house, "walk kitchentable_1", "grab apple_1", "grab cutleryfork_1")
    assert not refusal(house, action(house, "sit chair_1"), "strict")


def test_an_unknown_verb_is_an_error() -> None:
    house = home()
    with pytest.raises(SkillError, match="'juggle' is no verb of this world; use one of walk, grab"):
        refusal(house, Action("juggle", one(house, "apple_1")), "lota")

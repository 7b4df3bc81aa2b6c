"""Goals: parsing, and LoTA-Bench's scoring."""

from __future__ import annotations

from itertools import pairwise

import pytest

from envs.wah.goals import Predicate, best_place, goal_conditions, goal_counts, goal_words, parse_goal, place_class
from envs.wah.home import Home
from keep_agent.errors import DataError
from tests.envs.wah.conftest import Trace
from tests.envs.wah.homes import apartment, do, home, node_id


def two_tables(*links: str) -> Home:
    """Return an apartment with a second, empty coffee table and things such as "apple on coffeetable_2"."""
    return home(apartment("coffeetable at 7 0.2 3 in livingroom_1", *links))


def goal(**counts: int) -> tuple[Predicate, ...]:
    return parse_goal(counts.items())


SNACK = goal(on_apple_coffeetable=1, on_plate_coffeetable=1)


def test_every_kind_of_predicate_is_parsed() -> None:
    """Predicates of switches and seats have the count one; class names of the older simulator are replaced."""
    assert goal(inside_plate_stove=2, turnOn_stove=3, holds_book=1, sit_sofa=2, on_pie_stove=3) == (
        Predicate("inside", "plate", "stove", 2), Predicate("turnOn", "", "stove", 1),
        Predicate("holds", "book", "", 1), Predicate("sit", "", "sofa", 1), Predicate("on", "pie", "stove", 3),
    )  # fmt: skip
    assert goal(inside_wine_kitchencabinets=1) == goal(inside_wine_kitchencabinet=1)


def test_a_goal_becomes_words_in_a_fixed_order() -> None:
    machine_goal = goal(inside_plate_dishwasher=2, inside_cutleryfork_dishwasher=1, turnOn_dishwasher=1)
    assert goal_words(machine_goal) == "find plate find plate find cutleryfork put dishwasher turn dishwasher"
    assert goal_words(goal(holds_book=1, sit_sofa=1)) == "find book sit sofa"


def test_a_goal_is_about_one_place() -> None:
    with pytest.raises(DataError, match="one place, not coffeetable and microwave"):
        goal(turnOn_microwave=1, on_apple_coffeetable=1)
    assert place_class(goal(sit_sofa=1, on_apple_coffeetable=1)) == "coffeetable"
    assert place_class(goal(holds_book=1, sit_sofa=1)) == "sofa" and place_class(goal(holds_book=1)) == ""
    assert place_class(goal(turnOn_tv=1)) == "tv"


def test_predicates_with_count_zero_are_left_out() -> None:
    assert goal(on_apple_sofa=0, on_pie_sofa=2) == goal(on_pie_sofa=2)
    for counts in ({}, {"on_apple_sofa": 0}):
        with pytest.raises(DataError, match="a goal without predicates cannot be reached"):
            goal(**counts)


@pytest.mark.parametrize(
    ("text", "count", "message"),
    [
        ("near_apple_sofa", 1, "goal 'near_apple_sofa' is not a predicate; use on_CLASS_PLACE, inside_CLASS_PLACE"),
        ("on_apple", 1, "is not a predicate"), ("on_apple_on_sofa", 1, "is not a predicate"),
        ("turnOn_tv_on", 1, "is not a predicate"), ("", 1, "goal '' is not a predicate"),
        ("on_apple_sofa", -1, "goal 'on_apple_sofa' has the count -1; give a whole number"),
        ("on_apple_sofa", 1.5, "has the count 1.5"), ("on_apple_sofa", "1", "has the count '1'"),
    ],
)  # fmt: skip
def test_invalid_goals_are_errors(text: str, count: int, message: str) -> None:
    with pytest.raises(DataError, match=message):
        parse_goal([(text, count)])


ON_TWO = ("apple on coffeetable_1", "plate on coffeetable_2")
APPLES = ("apple on coffeetable_1", "apple on coffeetable_1")
WASHED = ("dishwasher at 0.4 0.4 3 in kitchen_1", "plate in dishwasher_1")
WASH = goal(inside_plate_dishwasher=1, turnOn_dishwasher=1)
# By behaviour: things on two coffee tables, actions, goal, and conditions met and required.
CONDITIONS: dict[str, tuple[tuple[str, ...], str, tuple[Predicate, ...], tuple[int, int]]] = {
    "all predicates must hold at one place": (ON_TWO, "", SNACK, (1, 2)),
    "both hold there": (ON_TWO, "walk coffeetable_2, grab plate_3, putback plate_3 coffeetable_1", SNACK, (2, 2)),
    "one of one": (APPLES, "", goal(on_apple_coffeetable=1), (1, 1)),
    "two of two": (APPLES, "", goal(on_apple_coffeetable=2), (2, 2)),
    "two of three": (APPLES, "", goal(on_apple_coffeetable=3), (2, 3)),
    "inside": ((), "", goal(inside_juice_fridge=1), (1, 1)),
    "inside is not on": ((), "", goal(on_juice_fridge=1), (0, 1)),
    "on is not inside": ((), "", goal(inside_apple_kitchentable=1), (0, 1)),
    "on a plate": (("plate on coffeetable_1", "pancake on plate_3"), "", goal(on_pancake_coffeetable=1), (0, 1)),
    "inside a box": ((), "", goal(inside_toy_bookshelf=1), (0, 1)),
    "on the table": ((), "", goal(on_cupcake_coffeetable=1), (1, 1)),
    "in hand": ((), "walk coffeetable_1, grab cupcake_1", goal(on_cupcake_coffeetable=1), (0, 1)),
    "another is on": (WASHED, "switchon dishwasher_2", WASH, (1, 2)),
    "the same place is on": (WASHED, "switchon dishwasher_2, switchon dishwasher_1", WASH, (2, 2)),
    "off": ((), "", goal(turnOn_tv=1), (0, 1)),
    "no such place": ((), "", goal(on_apple_bed=1, turnOn_bed=1), (0, 2)),
}


@pytest.mark.parametrize("behaviour", CONDITIONS)
def test_conditions(behaviour: str) -> None:
    things, steps, conditions, expected = CONDITIONS[behaviour]
    house = two_tables(*things)
    do(house, *filter(None, steps.split(", ")))
    assert goal_conditions(house, conditions) == expected


@pytest.mark.parametrize(
    ("things", "conditions", "best", "counts"),
    [
        (("apple on coffeetable_2", *ON_TWO), SNACK, "coffeetable_2", (1, 1)),
        # the largest share, not the largest count
        ((*APPLES, "plate on coffeetable_2"), goal(on_apple_coffeetable=4, on_plate_coffeetable=1), "coffeetable_2",
         (0, 1)),
        # the first of several
        (("plate on coffeetable_2", "apple on coffeetable_1"), SNACK, "coffeetable_1", (1, 0)),
        ((), goal(on_toy_coffeetable=1), "coffeetable_1", (0,)),
        ((), goal(on_apple_bed=1), "", (0,)),
    ],
)  # fmt: skip
def test_the_best_place_counts(
    things: tuple[str, ...], conditions: tuple[Predicate, ...], best: str, counts: tuple[int, ...]
) -> None:
    house = two_tables(*things)
    assert best_place(house, conditions) == (node_id(house, best) if best else None)
    assert goal_counts(house, conditions) == counts


def test_reading_needs_a_book_in_hand_and_a_seat() -> None:
    house = home()
    conditions = goal(holds_book=1, sit_sofa=1, on_cupcake_coffeetable=1)
    assert goal_counts(house, conditions) == (0, 0, 1)
    do(house, "walk coffeetable_1", "grab slippers_1", "grab book_1")
    assert goal_counts(house, conditions) == (1, 0, 1), "either hand counts"
    do(house, "walk sofa_1", "sit sofa_1")
    assert goal_conditions(house, conditions) == (3, 3)
    do(house, "walk kitchen_1")
    assert goal_counts(house, conditions) == (1, 0, 1)


def test_the_simulators_trace_ends_with_its_goal_reached(trace: Trace) -> None:
    conditions = parse_goal(trace.goal)
    met = [goal_conditions(Home(graph.copy(), None), conditions) for graph in trace.graphs]
    assert met[0] == (0, 5) and met[-1] == (5, 5)
    assert all(before <= after for before, after in pairwise(met))

"""Goals: how they are written, and how LoTA-Bench scores them."""

from __future__ import annotations

from itertools import pairwise

import pytest

from envs.wah.goals import Predicate, asked_for, best_place, goal_conditions, goal_counts, parse_goal, place_class
from envs.wah.home import Home
from keep_agent.errors import DataError
from tests.envs.wah.conftest import Trace
from tests.envs.wah.homes import add, apartment, do, home, one, put


def two_tables(*links: str) -> Home:
    """An apartment with a second, empty coffee table, and things such as "apple on coffeetable_2"."""
    content = apartment()
    add(content, "coffeetable", (7.0, 0.2, 3.0), "in livingroom_1")
    for link in links:
        kind, _, rest = link.partition(" ")
        put(content, kind, rest)
    return home(content)


def goal(**counts: int) -> tuple[Predicate, ...]:
    return parse_goal(counts.items())


SNACK = goal(on_apple_coffeetable=1, on_plate_coffeetable=1)


def test_a_goal_is_read_part_by_part() -> None:
    counts = {
        "inside_plate_dishwasher": 2,
        "turnOn_dishwasher": 1,
        "holds_book": 1,
        "sit_sofa": 1,
        "on_pie_dishwasher": 3,
    }
    parsed = goal(**counts)
    assert parsed == (
        Predicate("inside", "plate", "dishwasher", 2),
        Predicate("turnOn", "", "dishwasher", 1),
        Predicate("holds", "book", "", 1),
        Predicate("sit", "", "sofa", 1),
        Predicate("on", "pie", "dishwasher", 3),
    )


def test_names_of_the_older_simulator_are_those_of_graphs_that_were_read() -> None:
    assert goal(inside_wine_kitchencabinets=1) == goal(inside_wine_kitchencabinet=1)


def test_a_goal_is_told_in_words_in_the_same_order() -> None:
    loaded = goal(inside_plate_dishwasher=2, inside_cutleryfork_dishwasher=1, turnOn_dishwasher=1)
    assert asked_for(loaded) == "find plate find plate find cutleryfork put dishwasher turn dishwasher"
    assert asked_for(goal(holds_book=1, sit_sofa=1)) == "find book sit sofa"


def test_a_goal_is_about_one_place() -> None:
    with pytest.raises(DataError, match="one place, not coffeetable and microwave"):
        goal(turnOn_microwave=1, on_apple_coffeetable=1)
    assert place_class(goal(sit_sofa=1, on_apple_coffeetable=1)) == "coffeetable"
    assert place_class(goal(holds_book=1, sit_sofa=1)) == "sofa" and place_class(goal(holds_book=1)) == ""


def test_what_is_asked_zero_times_is_left_out() -> None:
    assert goal(on_apple_sofa=0, on_pie_sofa=2) == goal(on_pie_sofa=2)
    for nothing in ({}, {"on_apple_sofa": 0}):
        with pytest.raises(DataError, match="a goal without predicates cannot be reached"):
            goal(**nothing)


def test_a_switch_and_a_seat_are_asked_once() -> None:
    assert [one.count for one in goal(turnOn_tv=3, sit_sofa=2)] == [1, 1]


@pytest.mark.parametrize(
    ("text", "count", "message"),
    [
        ("near_apple_sofa", 1, "goal 'near_apple_sofa' is no predicate; use on_CLASS_PLACE, inside_CLASS_PLACE"),
        ("on_apple", 1, "is no predicate"),
        ("on_apple_on_sofa", 1, "is no predicate"),
        ("turnOn_tv_on", 1, "is no predicate"),
        ("", 1, "goal '' is no predicate"),
        ("on_apple_sofa", -1, "goal 'on_apple_sofa' is asked -1 times; give a whole number"),
        ("on_apple_sofa", 1.5, "is asked 1.5 times"),
        ("on_apple_sofa", "1", "is asked '1' times"),
    ],
)
def test_what_is_no_goal_is_refused(text: str, count: int, message: str) -> None:
    with pytest.raises(DataError, match=message):
        parse_goal([(text, count)])


def test_one_place_has_to_satisfy_everything() -> None:
    house = two_tables("apple on coffeetable_1", "plate on coffeetable_2")
    assert goal_conditions(house, SNACK) == (1, 2)
    do(house, "walk coffeetable_2", "grab plate_3", "putback plate_3 coffeetable_1")
    assert goal_conditions(house, SNACK) == (2, 2)


def test_the_place_that_does_best_counts() -> None:
    house = two_tables("apple on coffeetable_2", "plate on coffeetable_2", "apple on coffeetable_1")
    assert best_place(house, SNACK) == one(house, "coffeetable_2")
    assert goal_counts(house, SNACK) == (1, 1)


def test_best_is_the_largest_share_not_the_largest_count() -> None:
    house = two_tables("apple on coffeetable_1", "apple on coffeetable_1", "plate on coffeetable_2")
    wanted = goal(on_apple_coffeetable=4, on_plate_coffeetable=1)
    assert best_place(house, wanted) == one(house, "coffeetable_2")
    assert goal_conditions(house, wanted) == (1, 5)


def test_of_equals_the_first_counts() -> None:
    house = two_tables("plate on coffeetable_2", "apple on coffeetable_1")
    assert best_place(house, SNACK) == one(house, "coffeetable_1")
    assert goal_counts(house, SNACK) == (1, 0)
    assert best_place(two_tables(), goal(on_toy_coffeetable=1)) == one(house, "coffeetable_1"), "nothing lies on either"


@pytest.mark.parametrize(("asked", "met"), [(1, 1), (2, 2), (3, 2)])
def test_no_more_counts_than_is_asked(asked: int, met: int) -> None:
    house = two_tables("apple on coffeetable_1", "apple on coffeetable_1")
    assert goal_conditions(house, goal(on_apple_coffeetable=asked)) == (met, asked)


def test_on_and_inside_are_two_things() -> None:
    house = home()
    assert goal_conditions(house, goal(inside_juice_fridge=1)) == (1, 1)
    assert goal_conditions(house, goal(on_juice_fridge=1)) == (0, 1)
    assert goal_conditions(house, goal(inside_apple_kitchentable=1)) == (0, 1)


def test_only_what_is_directly_there_counts() -> None:
    house = two_tables("plate on coffeetable_1", "pancake on plate_3")
    assert goal_conditions(house, goal(on_pancake_coffeetable=1)) == (0, 1)
    assert goal_conditions(house, goal(inside_toy_bookshelf=1)) == (0, 1)


def test_what_is_held_lies_nowhere() -> None:
    house = home()
    wanted = goal(on_cupcake_coffeetable=1)
    assert goal_conditions(house, wanted) == (1, 1)
    do(house, "walk coffeetable_1", "grab cupcake_1")
    assert goal_conditions(house, wanted) == (0, 1)


def test_the_place_itself_is_turned_on() -> None:
    content = apartment()
    add(content, "dishwasher", (0.4, 0.4, 3.0), "in kitchen_1")
    put(content, "plate", "in dishwasher_1")
    house = home(content)
    wanted = goal(inside_plate_dishwasher=1, turnOn_dishwasher=1)
    do(house, "switchon dishwasher_2")
    assert goal_conditions(house, wanted) == (1, 2)
    do(house, "switchon dishwasher_1")
    assert goal_conditions(house, wanted) == (2, 2)
    assert goal_conditions(house, goal(turnOn_tv=1)) == (0, 1)


def test_reading_a_book_is_about_the_agent_and_a_table() -> None:
    house = home()
    wanted = goal(holds_book=1, sit_sofa=1, on_cupcake_coffeetable=1)
    assert goal_counts(house, wanted) == (0, 0, 1)
    do(house, "walk coffeetable_1", "grab slippers_1", "grab book_1")
    assert goal_counts(house, wanted) == (1, 0, 1), "the left hand does as well"
    do(house, "walk sofa_1", "sit sofa_1")
    assert goal_conditions(house, wanted) == (3, 3)
    do(house, "walk kitchen_1")
    assert goal_counts(house, wanted) == (1, 0, 1)


def test_the_place_is_that_of_the_first_relation() -> None:
    assert place_class(goal(sit_sofa=1, on_pie_coffeetable=1)) == "coffeetable"
    assert place_class(goal(turnOn_tv=1)) == "tv"
    assert place_class(goal(holds_book=1)) == ""


def test_without_the_place_nothing_is_met() -> None:
    house = home()
    wanted = goal(on_apple_bed=1, turnOn_bed=1)
    assert best_place(house, wanted) is None
    assert goal_conditions(house, wanted) == (0, 2)


def test_the_simulators_record_ends_with_its_goal_reached(trace: Trace) -> None:
    wanted = parse_goal(trace.goal)
    met = [goal_conditions(Home(graph.copy(), None), wanted) for graph in trace.graphs]
    assert met[0] == (0, 5) and met[-1] == (5, 5)
    assert all(before <= after for before, after in pairwise(met))

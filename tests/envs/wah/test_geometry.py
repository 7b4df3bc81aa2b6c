"""Who is CLOSE to whom, by hand and on graphs of the simulator, and where one stands."""

from __future__ import annotations

import pytest

from envs.wah.geometry import ARM, BODY, MARGIN, Boxes, standing_point
from envs.wah.graph import CHARACTERS, CLOSE, ROOMS, Box, Graph, Node
from tests.envs.wah.conftest import Trace

THING = 20


def close(body: Box, box: Box | None, kind: str = "plate", category: str = "Props") -> bool:
    """Whether a thing with this box is close to who has this body."""
    graph = Graph([Node(THING, kind, category, box=box)])
    return Boxes(graph).close_to(body) == [THING]


def cube(x: float, z: float, size: float = 0.0, height: float = 0.5) -> Box:
    return Box((x, height, z), (size, 1.0, size))


POINT = cube(0.0, 0.0)


@pytest.mark.parametrize(("metres", "found"), [(1.29, True), (1.31, False)])
def test_close_is_within_an_arm_of_the_nearest_side(metres: float, found: bool) -> None:
    assert close(POINT, cube(metres + 0.4, 0.0, size=0.8)) is found
    assert close(POINT, cube(0.0, -metres - 0.4, size=0.8)) is found


@pytest.mark.parametrize(("metres", "found"), [(1.29, True), (1.31, False)])
def test_the_body_has_sides_too(metres: float, found: bool) -> None:
    assert close(cube(0.0, 0.0, size=1.0), cube(metres + 0.5, 0.0)) is found


@pytest.mark.parametrize(("metres", "found"), [(0.91, True), (0.93, False)])
def test_corners_are_measured_across(metres: float, found: bool) -> None:
    assert close(POINT, cube(metres + 0.2, metres + 0.2, size=0.4)) is found


def test_height_does_not_matter() -> None:
    assert close(POINT, cube(1.0, 0.0, height=40.0))


@pytest.mark.parametrize(("metres", "found"), [(4.9, True), (5.1, False)])
def test_the_middle_of_a_long_thing_must_be_near(metres: float, found: bool) -> None:
    assert close(POINT, cube(metres, 0.0, size=2 * metres)) is found


@pytest.mark.parametrize(
    ("kind", "category"),
    [
        *((kind, "Decor") for kind in ("curtains", "floor", "wall", "ceiling", "ceilinglamp", "walllamp", "doorjamb")),
        ("kitchen", ROOMS),
        ("door", "Doors"),
        ("gate", "Doors"),
        ("character", CHARACTERS),
    ],
)
def test_parts_of_the_building_are_never_close(kind: str, category: str) -> None:
    assert not close(POINT, cube(0.5, 0.0), kind, category)


def test_a_thing_without_a_box_is_never_close() -> None:
    assert not close(POINT, None)
    assert Boxes(Graph()).close_to(POINT) == []


def test_a_thing_that_moved_is_where_it_went() -> None:
    boxes = Boxes(Graph([Node(THING, "plate", "Props", box=cube(9.0, 0.0)), Node(30, "plate", "Props")]))
    before = boxes.copy()
    boxes.move(THING, (1.0, 0.0, 0.0))
    boxes.move(30, (1.0, 0.0, 0.0))
    assert boxes.close_to(POINT) == [THING]
    assert before.close_to(POINT) == [], "a copy stays as it was"


def test_close_as_the_simulator_says_it_is(trace: Trace) -> None:
    found = extra = missed = 0
    for graph in trace.graphs:
        (me,) = graph.of_class("character")
        said, ours = set(graph.sources(me, CLOSE)), set(Boxes(graph).close_to(graph[me].box))
        assert said == graph.targets(me, CLOSE)
        found, extra, missed = found + len(said & ours), extra + len(ours - said), missed + len(said - ours)
    assert found / (found + missed) >= 0.995
    assert found / (found + extra) >= 0.99
    assert found > 1000


ROOM = Box((3.0, 1.4, 3.0), (6.0, 2.8, 6.0))


@pytest.mark.parametrize(
    ("middle", "size", "spot"),
    [
        ((0.4, 0.9, 3.0), (0.8, 1.8, 0.8), (0.8 + ARM, 0.0, 3.0)),  # at the left wall
        ((5.6, 0.9, 3.0), (0.8, 1.8, 0.8), (5.2 - ARM, 0.0, 3.0)),  # at the right wall
        ((3.0, 0.9, 0.4), (2.0, 1.8, 0.8), (3.0, 0.0, 0.8 + ARM)),  # at the near wall
        ((1.0, 0.9, 0.4), (4.0, 1.8, 0.8), (1.0, 0.0, 0.8 + ARM)),  # a long one, not through its end
        ((3.0, 0.4, 3.0), (1.0, 0.8, 1.0), (3.0, 0.0, 3.5 + ARM)),  # in the very middle
    ],
)
def test_one_stands_at_the_side_that_looks_into_the_room(
    middle: tuple[float, float, float], size: tuple[float, float, float], spot: tuple[float, float, float]
) -> None:
    assert standing_point(Box(middle, size), ROOM) == pytest.approx(spot)


def test_one_stands_within_the_walls() -> None:
    assert standing_point(Box((5.99, 1.0, 5.99), (0.1, 0.1, 0.1)), ROOM)[0] == 6.0 - MARGIN
    narrow = Box((0.0, 1.0, 0.0), (0.2, 2.0, 0.2))
    x, _, z = standing_point(Box((0.0, 1.0, 0.0), (5.0, 1.0, 5.0)), narrow)
    assert (x, z) == pytest.approx((0.2, 0.2)), "a room narrower than the margins"


def test_without_a_room_one_stands_before_a_thing_and_close_to_it() -> None:
    target = Box((1.0, 0.4, 2.0), (1.0, 0.8, 1.0))
    spot = standing_point(target, None)
    assert spot == pytest.approx((1.0, 0.0, 1.5 - ARM))
    assert close(Box(spot, BODY), target)

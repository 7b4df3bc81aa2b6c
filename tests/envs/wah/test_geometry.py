"""Closeness, computed by hand and on graphs of the simulator, and standing points."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from envs.wah.geometry import ARM_LENGTH, BODY, MARGIN, Boxes, standing_point
from envs.wah.graph import CHARACTERS, CLOSE, ROOMS, Box, Graph, Node
from tests.envs.wah.conftest import Trace

THING = 20


def close(body: Box, box: Box | None, kind: str = "plate", category: str = "Props") -> bool:
    """Return whether a thing with a box is close to a character with a body."""
    graph = Graph([Node(THING, kind, category, box=box)])
    return Boxes(graph).close_to(body) == [THING]


def cube(x: float, z: float, size: float = 0.0, height: float = 0.5) -> Box:
    return Box((x, height, z), (size, 1.0, size))


POINT = cube(0.0, 0.0)


# By rule: the limit in metres, and a body and a box at a distance.
LIMITS: dict[str, tuple[float, Callable[[float], tuple[Box, Box]]]] = {
    "to the nearest side": (1.3, lambda metres: (POINT, cube(metres + 0.4, 0.0, size=0.8))),
    "to the side on the other axis": (1.3, lambda metres: (POINT, cube(0.0, -metres - 0.4, size=0.8))),
    "from the side of the body": (1.3, lambda metres: (cube(0.0, 0.0, size=1.0), cube(metres + 0.5, 0.0))),
    "diagonally to a corner": (0.92, lambda metres: (POINT, cube(metres + 0.2, metres + 0.2, size=0.4))),
    "at any height": (1.3, lambda metres: (POINT, cube(metres, 0.0, height=40.0))),
    "to the middle of a long thing": (5.0, lambda metres: (POINT, cube(metres, 0.0, size=2 * metres))),
}


@pytest.mark.parametrize("rule", LIMITS)
def test_closeness_is_measured(rule: str) -> None:
    limit, boxes = LIMITS[rule]
    assert close(*boxes(limit - 0.01)) and not close(*boxes(limit + 0.01))


@pytest.mark.parametrize(
    ("kind", "category"),
    [
        *((kind, "Decor") for kind in ("curtains", "floor", "wall", "ceiling", "ceilinglamp", "walllamp", "doorjamb")),
        ("kitchen", ROOMS), ("door", "Doors"), ("gate", "Doors"), ("character", CHARACTERS),
    ],
)  # fmt: skip
def test_parts_of_the_building_are_never_close(kind: str, category: str) -> None:
    assert not close(POINT, cube(0.5, 0.0), kind, category)


def test_a_thing_without_a_box_is_never_close() -> None:
    assert not close(POINT, None)
    assert Boxes(Graph()).close_to(POINT) == []


def test_a_moved_thing_is_close_at_its_new_place() -> None:
    boxes = Boxes(Graph([Node(THING, "plate", "Props", box=cube(9.0, 0.0)), Node(30, "plate", "Props")]))
    before = boxes.copy()
    boxes.move(THING, (1.0, 0.0, 0.0))
    boxes.move(30, (1.0, 0.0, 0.0))
    assert boxes.close_to(POINT) == [THING]
    assert before.close_to(POINT) == [], "a copy is independent"


def test_closeness_agrees_with_the_simulator(trace: Trace) -> None:
    common = extra = absent = 0
    for graph in trace.graphs:
        (agent,) = graph.of_class("character")
        expected, computed = set(graph.sources(agent, CLOSE)), set(Boxes(graph).close_to(graph[agent].box))
        assert expected == graph.targets(agent, CLOSE)
        common += len(expected & computed)
        extra, absent = extra + len(computed - expected), absent + len(expected - computed)
    assert common / (common + absent) >= 0.995
    assert common / (common + extra) >= 0.99
    assert common > 1000


ROOM = Box((3.0, 1.4, 3.0), (6.0, 2.8, 6.0))


@pytest.mark.parametrize(
    ("thing", "room", "spot"),
    [
        (Box((0.4, 0.9, 3.0), (0.8, 1.8, 0.8)), ROOM, (0.8 + ARM_LENGTH, 3.0)),  # at the left wall
        (Box((5.6, 0.9, 3.0), (0.8, 1.8, 0.8)), ROOM, (5.2 - ARM_LENGTH, 3.0)),  # at the right wall
        (Box((3.0, 0.9, 0.4), (2.0, 1.8, 0.8)), ROOM, (3.0, 0.8 + ARM_LENGTH)),  # at the near wall
        (Box((1.0, 0.9, 0.4), (4.0, 1.8, 0.8)), ROOM, (1.0, 0.8 + ARM_LENGTH)),  # a long one, not through its end
        (Box((3.0, 0.4, 3.0), (1.0, 0.8, 1.0)), ROOM, (3.0, 3.5 + ARM_LENGTH)),  # in the middle of the room
        (Box((1.0, 0.4, 2.0), (1.0, 0.8, 1.0)), None, (1.0, 1.5 - ARM_LENGTH)),  # without a room: in front of the thing
    ],
)
def test_the_standing_point_is_at_the_side_that_faces_the_room(
    thing: Box, room: Box | None, spot: tuple[float, float]
) -> None:
    point = standing_point(thing, room)
    assert point == pytest.approx((spot[0], 0.0, spot[1]))
    assert close(Box(point, BODY), thing)


def test_the_standing_point_is_within_the_walls() -> None:
    assert standing_point(Box((5.99, 1.0, 5.99), (0.1, 0.1, 0.1)), ROOM)[0] == 6.0 - MARGIN
    narrow = Box((0.0, 1.0, 0.0), (0.2, 2.0, 0.2))
    x, _, z = standing_point(Box((0.0, 1.0, 0.0), (5.0, 1.0, 5.0)), narrow)
    assert (x, z) == pytest.approx((0.2, 0.2)), "a room narrower than the margins"

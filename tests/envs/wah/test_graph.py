"""Graph: relations in both directions, independent copies, and places of things."""

from __future__ import annotations

import pytest

from envs.wah.data.formats import read_graph
from envs.wah.graph import BETWEEN, HOLDS_LH, HOLDS_RH, INSIDE, ON, ROOMS, Box, Graph, Node
from keep_agent.errors import SkillError
from tests.envs.wah.homes import apartment

Edge = tuple[int, str, int]
KITCHEN, TABLE, BOX, PLATE, APPLE, AGENT, BEDROOM = range(11, 18)


@pytest.fixture
def graph() -> Graph:
    """Return an apple, a plate, a box, a table, a kitchen and a character without edges."""
    classes = ("kitchen", "table", "box", "plate", "apple", "character")
    return Graph(
        Node(number, kind, ROOMS if kind == "kitchen" else "Props") for number, kind in enumerate(classes, KITCHEN)
    )


def test_an_edge_is_indexed_from_both_ends(graph: Graph) -> None:
    graph.link(PLATE, ON, TABLE)
    graph.link(PLATE, ON, TABLE)
    assert graph.linked(PLATE, ON, TABLE) and not graph.linked(TABLE, ON, PLATE)
    assert (graph.targets(PLATE, ON), graph.sources(TABLE, ON)) == ({TABLE}, {PLATE})
    assert list(graph.edges()) == [(PLATE, ON, TABLE)]
    assert graph.targets(PLATE, INSIDE) == graph.sources(PLATE, ON) == set()


def test_detaching_removes_all_edges_of_a_node_or_those_of_some_relations(graph: Graph) -> None:
    for edge in ((BOX, ON, TABLE), (PLATE, INSIDE, BOX), (PLATE, ON, TABLE), (TABLE, INSIDE, KITCHEN)):
        graph.link(*edge)
    graph.detach(BOX)
    assert set(graph.edges()) == {(PLATE, ON, TABLE), (TABLE, INSIDE, KITCHEN)}
    assert graph.sources(TABLE, ON) == {PLATE} and graph.targets(PLATE, INSIDE) == set()
    graph.link(PLATE, INSIDE, KITCHEN)
    graph.detach(PLATE, (ON,))
    graph.detach(APPLE, (ON,))
    assert list(graph.edges()) == [(TABLE, INSIDE, KITCHEN), (PLATE, INSIDE, KITCHEN)]


def test_a_copy_is_equal_and_independent(graph: Graph) -> None:
    graph.link(PLATE, ON, TABLE)
    graph.link(APPLE, ON, PLATE)
    graph.detach(APPLE)
    copy = graph.copy()
    assert copy == graph
    copy.link(APPLE, ON, TABLE)
    assert copy != graph and graph.sources(TABLE, ON) == {PLATE}
    copy.detach(APPLE)
    copy.change(PLATE, states=frozenset(("DIRTY",)))
    copy.add(Node(99, "plate", "Props"))
    assert graph[PLATE].states == frozenset() and graph.of_class("plate") == (PLATE,)
    assert copy != graph and copy.of_class("plate") == (PLATE, 99)


def test_equality_ignores_the_order_of_nodes_and_edges(graph: Graph) -> None:
    mirror = Graph(reversed(graph.nodes.values()))
    for target, links in ((graph, (PLATE, APPLE)), (mirror, (APPLE, PLATE))):
        for thing in links:
            target.link(thing, ON, TABLE)
    assert graph == mirror
    assert graph != "a graph"


def test_classes_keep_the_order_of_their_nodes(graph: Graph) -> None:
    graph.add(Node(40, "plate", "Props"))
    graph.add(Node(30, "plate", "Props"))
    assert graph.of_class("plate") == (PLATE, 40, 30)
    assert graph.of_class("sofa") == ()
    assert graph.classes == ("kitchen", "table", "box", "plate", "apple", "character")


def test_the_room_is_found_through_holders(graph: Graph) -> None:
    for edge in ((APPLE, ON, PLATE), (PLATE, INSIDE, BOX), (BOX, ON, TABLE), (TABLE, INSIDE, KITCHEN)):
        assert graph.room(APPLE) is None
        graph.link(*edge)
    assert [graph.room(node) for node in (APPLE, PLATE, BOX, TABLE, KITCHEN)] == [KITCHEN] * 5


IN_HAND = ((AGENT, HOLDS_RH, PLATE), (APPLE, ON, PLATE))


@pytest.mark.parametrize(
    ("edges", "room"),
    [
        (IN_HAND, None),
        ((*IN_HAND, (AGENT, INSIDE, KITCHEN)), KITCHEN),  # the agent's room
        (((AGENT, HOLDS_LH, APPLE), (AGENT, INSIDE, KITCHEN)), KITCHEN),
        (((APPLE, INSIDE, BOX), (BOX, INSIDE, KITCHEN), (APPLE, INSIDE, BEDROOM)), BEDROOM),  # a direct edge first
        (((APPLE, INSIDE, BOX), (BOX, INSIDE, APPLE)), None),  # a cycle
    ],
)
def test_the_room_of_the_apple(graph: Graph, edges: tuple[Edge, ...], room: int | None) -> None:
    graph.add(Node(BEDROOM, "bedroom", ROOMS))
    for edge in edges:
        graph.link(*edge)
    assert graph.room(APPLE) == room


def test_containers_are_direct_and_without_rooms(graph: Graph) -> None:
    graph.link(APPLE, INSIDE, BOX)
    graph.link(APPLE, INSIDE, KITCHEN)
    graph.link(BOX, INSIDE, TABLE)
    assert graph.containers(APPLE) == [BOX]
    assert graph.containers(PLATE) == []


def test_edges_come_in_a_fixed_order() -> None:
    edges = list(read_graph(apartment()).edges())
    order = [INSIDE, ON, BETWEEN]
    assert edges == sorted(edges, key=lambda edge: (order.index(edge[1]), edge[0], edge[2]))


def test_an_unknown_node_is_an_error(graph: Graph) -> None:
    with pytest.raises(SkillError, match="there is no node 77 in this graph of 6 nodes"):
        graph[77]


def test_a_nodes_position_is_the_simulators_or_the_middle_of_its_box() -> None:
    box = Box((1.0, 2.0, 3.0), (0.5, 1.0, 0.5))
    assert Node(1, "cup", "Props").position == (0.0, 0.0, 0.0)
    assert Node(1, "cup", "Props", box=box).position == (1.0, 2.0, 3.0)
    assert Node(1, "cup", "Props", box=box, transform={"position": [4, 5, 6]}).position == (4, 5, 6)
    assert (box.top, box.at((0.0, 0.0, 0.0))) == (2.5, Box((0.0, 0.0, 0.0), box.size))

"""The graph: relations in both directions, independent copies, and where things are."""

from __future__ import annotations

import pytest

from envs.wah.data.formats import read_graph
from envs.wah.graph import BETWEEN, HOLDS_LH, HOLDS_RH, INSIDE, ON, ROOMS, Box, Graph, Node
from keep_agent.errors import SkillError
from tests.envs.wah.homes import apartment

KITCHEN, TABLE, BOX, PLATE, APPLE, AGENT = range(11, 17)


@pytest.fixture
def graph() -> Graph:
    """An apple on a plate in a box on a table in a kitchen; nobody has linked them yet."""
    classes = ("kitchen", "table", "box", "plate", "apple", "character")
    return Graph(
        Node(number, kind, ROOMS if kind == "kitchen" else "Props") for number, kind in enumerate(classes, KITCHEN)
    )


def test_a_link_is_seen_from_both_ends(graph: Graph) -> None:
    graph.link(PLATE, ON, TABLE)
    graph.link(PLATE, ON, TABLE)
    assert graph.linked(PLATE, ON, TABLE) and not graph.linked(TABLE, ON, PLATE)
    assert (graph.targets(PLATE, ON), graph.sources(TABLE, ON)) == ({TABLE}, {PLATE})
    assert list(graph.edges()) == [(PLATE, ON, TABLE)]
    assert graph.targets(PLATE, INSIDE) == graph.sources(PLATE, ON) == set()


def test_unlinking_takes_one_edge_and_forgives_absent_ones(graph: Graph) -> None:
    graph.link(PLATE, ON, TABLE)
    graph.link(APPLE, ON, TABLE)
    graph.unlink(PLATE, ON, TABLE)
    graph.unlink(PLATE, ON, TABLE)
    graph.unlink(APPLE, INSIDE, TABLE)
    assert list(graph.edges()) == [(APPLE, ON, TABLE)]
    assert graph.sources(TABLE, ON) == {APPLE}


def test_detaching_removes_what_leads_to_and_from_a_node(graph: Graph) -> None:
    graph.link(BOX, ON, TABLE)
    graph.link(PLATE, INSIDE, BOX)
    graph.link(PLATE, ON, TABLE)
    graph.link(TABLE, INSIDE, KITCHEN)
    graph.detach(BOX)
    assert set(graph.edges()) == {(PLATE, ON, TABLE), (TABLE, INSIDE, KITCHEN)}
    assert graph.sources(TABLE, ON) == {PLATE} and graph.targets(PLATE, INSIDE) == set()


def test_detaching_may_be_limited_to_some_relations(graph: Graph) -> None:
    graph.link(PLATE, ON, TABLE)
    graph.link(PLATE, INSIDE, KITCHEN)
    graph.detach(PLATE, (ON,))
    graph.detach(APPLE, (ON,))
    assert list(graph.edges()) == [(PLATE, INSIDE, KITCHEN)]


def test_a_copy_is_equal_until_one_of_them_changes(graph: Graph) -> None:
    graph.link(PLATE, ON, TABLE)
    graph.link(APPLE, ON, PLATE)
    graph.unlink(APPLE, ON, PLATE)
    other = graph.copy()
    assert other == graph
    other.link(APPLE, ON, TABLE)
    assert other != graph and graph.sources(TABLE, ON) == {PLATE}
    other.unlink(APPLE, ON, TABLE)
    other.change(PLATE, states=frozenset(("DIRTY",)))
    other.add(Node(99, "plate", "Props"))
    assert graph[PLATE].states == frozenset() and graph.of_class("plate") == (PLATE,)
    assert other != graph and other.of_class("plate") == (PLATE, 99)


def test_graphs_with_the_same_nodes_and_edges_are_equal_however_they_were_made(graph: Graph) -> None:
    other = Graph(reversed(graph.nodes.values()))
    for one, links in ((graph, (PLATE, APPLE)), (other, (APPLE, PLATE))):
        for thing in links:
            one.link(thing, ON, TABLE)
    assert graph == other
    assert graph != "a graph"


def test_classes_keep_the_order_of_their_nodes(graph: Graph) -> None:
    graph.add(Node(40, "plate", "Props"))
    graph.add(Node(30, "plate", "Props"))
    assert graph.of_class("plate") == (PLATE, 40, 30)
    assert graph.of_class("sofa") == ()
    assert graph.classes == ("kitchen", "table", "box", "plate", "apple", "character")


def test_the_room_is_found_through_holders(graph: Graph) -> None:
    for source, relation, target in (
        (APPLE, ON, PLATE),
        (PLATE, INSIDE, BOX),
        (BOX, ON, TABLE),
        (TABLE, INSIDE, KITCHEN),
    ):
        assert graph.room(APPLE) is None
        graph.link(source, relation, target)
    assert [graph.room(one) for one in (APPLE, PLATE, BOX, TABLE, KITCHEN)] == [KITCHEN] * 5


@pytest.mark.parametrize("hand", [HOLDS_RH, HOLDS_LH])
def test_the_room_of_what_is_held_is_the_holders(graph: Graph, hand: str) -> None:
    graph.link(AGENT, hand, PLATE)
    graph.link(APPLE, ON, PLATE)
    assert graph.room(APPLE) is None
    graph.link(AGENT, INSIDE, KITCHEN)
    assert graph.room(PLATE) == graph.room(APPLE) == KITCHEN


def test_an_edge_to_a_room_goes_before_the_long_way(graph: Graph) -> None:
    graph.add(Node(20, "bedroom", ROOMS))
    graph.link(APPLE, INSIDE, BOX)
    graph.link(BOX, INSIDE, KITCHEN)
    assert graph.room(APPLE) == KITCHEN
    graph.link(APPLE, INSIDE, 20)
    assert graph.room(APPLE) == 20


def test_things_that_hold_each_other_are_in_no_room(graph: Graph) -> None:
    graph.link(APPLE, INSIDE, BOX)
    graph.link(BOX, INSIDE, APPLE)
    assert graph.room(APPLE) is None


def test_containers_are_what_a_thing_is_directly_in_without_rooms(graph: Graph) -> None:
    graph.link(APPLE, INSIDE, BOX)
    graph.link(APPLE, INSIDE, KITCHEN)
    graph.link(BOX, INSIDE, TABLE)
    assert graph.containers(APPLE) == [BOX]
    assert graph.containers(PLATE) == []


def test_edges_come_in_a_fixed_order() -> None:
    found = list(read_graph(apartment()).edges())
    order = [INSIDE, ON, BETWEEN]
    assert found == sorted(found, key=lambda edge: (order.index(edge[1]), edge[0], edge[2]))


def test_an_unknown_node_is_an_error(graph: Graph) -> None:
    with pytest.raises(SkillError, match="there is no node 77 in this graph of 6 nodes"):
        graph[77]


def test_a_nodes_position_is_the_simulators_or_the_middle_of_its_box() -> None:
    box = Box((1.0, 2.0, 3.0), (0.5, 1.0, 0.5))
    assert Node(1, "cup", "Props").position == (0.0, 0.0, 0.0)
    assert Node(1, "cup", "Props", box=box).position == (1.0, 2.0, 3.0)
    assert Node(1, "cup", "Props", box=box, transform={"position": [4, 5, 6]}).position == (4, 5, 6)
    assert (box.top, box.at((0.0, 0.0, 0.0))) == (2.5, Box((0.0, 0.0, 0.0), box.size))

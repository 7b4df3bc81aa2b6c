"""VirtualHome's graph JSON: lossless reading and writing, and errors that name the place of a fault."""

from __future__ import annotations

import gzip
import json
from collections.abc import Callable
from pathlib import Path

import pytest

from envs.wah.data.formats import read_graph, room_distances, to_networkx, write_graph
from envs.wah.graph import BETWEEN, CLOSE, INSIDE, ON, ROOMS, Graph
from envs.wah.home import Home
from keep_agent.errors import DataError
from tests.envs.wah.homes import GraphJson, add, apartment, join, row


def check_round_trip(graph: Graph) -> None:
    output = write_graph(graph)
    copy = read_graph(json.loads(json.dumps(output)))
    assert copy == graph and write_graph(copy) == output


def test_a_graph_survives_a_round_trip() -> None:
    check_round_trip(read_graph(apartment(agent_in="kitchen_1")))


def test_every_field_of_a_node_is_preserved() -> None:
    content = apartment()
    transform = {"position": [0.4, 0.0, 1.0], "rotation": [0.0, 0.0, 0.0, 1.0], "scale": [1.0, 1.0, 1.0]}
    row(content, "fridge_1")["obj_transform"] = transform
    node = read_graph(content)[row(content, "fridge_1")["id"]]
    assert (node.class_name, node.category, node.prefab) == ("fridge", "Appliances", "fridge_a")
    assert node.openable and node.container and node.switchable and node.closed
    assert not node.surface and not node.grabbable
    assert node.position == (0.4, 0.0, 1.0)
    output = next(row for row in write_graph(read_graph(content))["nodes"] if row["id"] == node.id)
    assert output == row(content, "fridge_1")


def test_every_shared_graph_survives_a_round_trip(wah_data: Callable[[str], Path]) -> None:
    for path in (path for folder in ("apartments", "episodes") for path in wah_data(folder).glob("*.json.gz")):
        content = json.loads(gzip.decompress(path.read_bytes()))
        graph = read_graph(content.get("init_graph", content), str(path))
        check_round_trip(graph)
        assert all(graph.room(node) is not None for node in graph.nodes if graph[node].category != "Characters"), path
        assert Home(graph).room is not None, path


def test_only_the_agents_close_edges_are_read_and_no_facing_edges() -> None:
    content = apartment(agent_in="kitchen_1")
    fridge, table = row(content, "fridge_1")["id"], row(content, "kitchentable_1")["id"]
    for relation in (CLOSE, "FACING"):
        join(content, fridge, relation, table)
        join(content, 1, relation, fridge)
        join(content, fridge, relation, 1)
    graph = read_graph(content)
    close = {(a, b) for a, relation, b in graph.edges() if relation == CLOSE}
    assert close == {(1, fridge), (fridge, 1)}
    assert {relation for _, relation, _ in graph.edges()} == {INSIDE, ON, BETWEEN, CLOSE}


def test_older_class_names_are_replaced() -> None:
    content = apartment()
    row(content, "kitchencabinet_1")["class_name"] = "kitchencabinets"
    row(content, "fridge_1")["class_name"] = "Fridge"
    graph = read_graph(content)
    assert len(graph.of_class("kitchencabinet")) == 2
    assert len(graph.of_class("fridge")) == 1 and not graph.of_class("kitchencabinets")


def test_nodes_are_sorted_by_id_and_optional_fields_may_be_absent() -> None:
    content = apartment()
    content["nodes"].reverse()
    for field in ("bounding_box", "properties", "states", "prefab_name"):
        del row(content, "sofa_1")[field]
    row(content, "tv_1")["bounding_box"] = None
    graph = read_graph(content)
    assert list(graph.nodes) == sorted(graph.nodes)
    assert graph[row(content, "sofa_1")["id"]].properties == frozenset()
    assert graph[row(content, "tv_1")["id"]].box is None


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda graph: graph.pop("nodes"), r"task 3 is not a VirtualHome graph \(KeyError\('nodes'\)\)"),
        (lambda graph: graph.pop("edges"), r"task 3 is not a VirtualHome graph \(KeyError\('edges'\)\)"),
        (lambda graph: graph.update(nodes=None), "task 3 is not a VirtualHome graph"),
        (lambda graph: row(graph, "sofa_1").pop("id"), "'id'"),
        (lambda graph: row(graph, "sofa_1").pop("class_name"), "'class_name'"),
        (lambda graph: row(graph, "sofa_1").pop("category"), "'category'"),
        (lambda graph: row(graph, "sofa_1").update(id="sofa"), "task 3 is not a VirtualHome graph"),
        (lambda graph: row(graph, "sofa_1").update(id=True), "task 3.*id True is not a whole number"),
        (lambda graph: row(graph, "sofa_1").update(id=1e6), "id 1000000.0 is not a whole number"),
        (lambda graph: row(graph, "sofa_1")["bounding_box"].update(size=[1, True, 1]), "True is not a finite number"),
        (lambda graph: row(graph, "sofa_1")["bounding_box"].update(center=[0, float("nan"), 0]), "nan is not a finite"),
        (lambda graph: row(graph, "sofa_1")["bounding_box"].update(size=[1.0, 2.0]), "export environment_graph again"),
        (lambda graph: row(graph, "sofa_1").update(bounding_box={"center": [0, 0, 0]}), "'size'"),
        (lambda graph: row(graph, "sofa_1").update(states="CLOSED"), "'CLOSED' is not a list of words"),
        (lambda graph: row(graph, "sofa_1").update(properties=[1]), "is not a list of words"),
        (lambda graph: row(graph, "sofa_1").update(obj_transform=[1.0, 2.0, 3.0]), "task 3 is not a VirtualHome graph"),
        (lambda graph: row(graph, "sofa_1").update(obj_transform={"position": [1.0, float("nan"), 3.0]}), "finite"),
        (lambda graph: row(graph, "sofa_1").update(obj_transform={"position": ["1", "2", "3"]}), "finite"),
        (lambda graph: row(graph, "sofa_1").update(obj_transform={"position": [1.0, 2.0]}), "not a VirtualHome graph"),
        (lambda graph: graph["edges"][0].pop("to_id"), "'to_id'"),
        (lambda graph: graph["edges"][0].update(from_id=[11]), "task 3 is not a VirtualHome graph"),
        (lambda graph: row(graph, "sofa_1").update(id=row(graph, "tv_1")["id"]), "task 3 has 26 nodes but 25 ids"),
        (lambda graph: join(graph, 12, ON, 999), "task 3 has an edge 12 ON 999 to a node that it lacks"),
        (lambda graph: join(graph, 999, "FACING", 12), "task 3 has an edge 999 FACING 12 to a node that it lacks"),
    ],
)
def test_invalid_graphs_are_errors_that_name_the_place(change: Callable[[GraphJson], object], message: str) -> None:
    content = apartment()
    change(content)
    with pytest.raises(DataError, match=message):
        read_graph(content, "task 3")


def test_networkx_gets_every_node_and_every_edge() -> None:
    graph = read_graph(apartment(agent_in="kitchen_1"))
    graph.link(1, CLOSE, 12)
    converted = to_networkx(graph)
    assert set(converted.edges(keys=True)) == {(a, b, relation) for a, relation, b in graph.edges()}
    assert set(converted.nodes) == set(graph.nodes)
    fridge = graph.of_class("fridge")[0]
    assert converted.nodes[fridge]["class_name"] == "fridge" and converted.nodes[fridge]["states"] == ["CLOSED"]


def test_room_distances_follow_the_doors() -> None:
    content = apartment()
    bedroom, bathroom = add(content, "bedroom", (9.2, 1.4, 9.2)), add(content, "bathroom", (3.0, 1.4, 9.2))
    add(content, "door", (9.2, 1.05, 6.1), "between livingroom_1", "between bedroom_1")
    graph = read_graph(content)
    kitchen, livingroom = (graph.of_class(kind)[0] for kind in ("kitchen", "livingroom"))
    metres = room_distances(graph)
    assert metres[kitchen][kitchen] == 0.0
    assert metres[kitchen][livingroom] == metres[livingroom][kitchen] == pytest.approx(6.2)
    assert metres[kitchen][bedroom] == pytest.approx(12.4), "through the living room"
    assert metres[kitchen][bathroom] == pytest.approx(6.2), "no door: a straight line"
    assert set(metres) == {node.id for node in graph.nodes.values() if node.category == ROOMS}

"""VirtualHome's graph JSON: read and written without loss, refused with the place of the fault."""

from __future__ import annotations

import gzip
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from envs.wah.data.formats import read_graph, room_distances, to_networkx, write_graph
from envs.wah.graph import BETWEEN, CLOSE, INSIDE, ON, ROOMS
from envs.wah.home import Home
from keep_agent.errors import DataError
from tests.envs.wah.homes import GraphJson, add, apartment, join, row


def _through_json(content: Any) -> Any:
    return json.loads(json.dumps(content))


def _load(path: Path) -> GraphJson:
    content = json.loads(gzip.decompress(path.read_bytes()))
    return content.get("init_graph", content)


def test_what_is_written_reads_back_the_same() -> None:
    graph = read_graph(apartment(agent_in="kitchen_1"))
    written = write_graph(graph)
    back = read_graph(_through_json(written))
    assert back == graph and write_graph(back) == written


def test_every_field_of_a_node_is_kept() -> None:
    content = apartment()
    transform = {"position": [0.4, 0.0, 1.0], "rotation": [0.0, 0.0, 0.0, 1.0], "scale": [1.0, 1.0, 1.0]}
    row(content, "fridge_1")["obj_transform"] = transform
    node = read_graph(content)[row(content, "fridge_1")["id"]]
    assert (node.class_name, node.category, node.prefab) == ("fridge", "Appliances", "fridge_a")
    assert node.openable and node.container and node.switchable and node.closed
    assert not node.surface and not node.grabbable
    assert node.position == (0.4, 0.0, 1.0)
    written = next(one for one in write_graph(read_graph(content))["nodes"] if one["id"] == node.id)
    assert written == row(content, "fridge_1")


def test_every_shared_graph_survives_a_round_trip(data_root: Path) -> None:
    files = [path for folder in ("apartments", "episodes") for path in (data_root / "wah" / folder).glob("*.json.gz")]
    if not files:
        pytest.skip(f"needs graphs in {data_root}/wah/apartments: KEEP_AGENT_DATA names a folder without them")
    for path in files:
        graph = read_graph(_load(path), str(path))
        written = write_graph(graph)
        back = read_graph(_through_json(written))
        assert back == graph and write_graph(back) == written, path
        assert all(graph.room(one) is not None for one in graph.nodes if graph[one].category != "Characters"), path
        assert Home(graph).room is not None, path


def test_only_the_agents_closeness_is_kept_and_facing_is_not() -> None:
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


def test_older_names_are_todays() -> None:
    content = apartment()
    row(content, "kitchencabinet_1")["class_name"] = "kitchencabinets"
    row(content, "fridge_1")["class_name"] = "Fridge"
    graph = read_graph(content)
    assert len(graph.of_class("kitchencabinet")) == 2
    assert len(graph.of_class("fridge")) == 1 and not graph.of_class("kitchencabinets")


def test_nodes_are_read_by_id_and_may_lack_what_is_not_needed() -> None:
    content = apartment()
    content["nodes"].reverse()
    for field in ("bounding_box", "properties", "states", "prefab_name"):
        del row(content, "sofa_1")[field]
    row(content, "tv_1")["bounding_box"] = None
    graph = read_graph(content)
    assert list(graph.nodes) == sorted(graph.nodes)
    assert graph[row(content, "sofa_1")["id"]].properties == frozenset()
    assert graph[row(content, "tv_1")["id"]].box is None


def _broken(change: Callable[[GraphJson], object]) -> GraphJson:
    content = apartment()
    change(content)
    return content


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda graph: graph.pop("nodes"), r"task 3 is no VirtualHome graph \(KeyError\('nodes'\)\)"),
        (lambda graph: graph.pop("edges"), r"task 3 is no VirtualHome graph \(KeyError\('edges'\)\)"),
        (lambda graph: graph.update(nodes=None), "task 3 is no VirtualHome graph"),
        (lambda graph: row(graph, "sofa_1").pop("id"), "'id'"),
        (lambda graph: row(graph, "sofa_1").pop("class_name"), "'class_name'"),
        (lambda graph: row(graph, "sofa_1").pop("category"), "'category'"),
        (lambda graph: row(graph, "sofa_1").update(id="sofa"), "task 3 is no VirtualHome graph"),
        (lambda graph: row(graph, "sofa_1")["bounding_box"].update(size=[1.0, 2.0]), "export environment_graph anew"),
        (lambda graph: row(graph, "sofa_1").update(bounding_box={"center": [0, 0, 0]}), "'size'"),
        (lambda graph: row(graph, "sofa_1").update(states="CLOSED"), "'CLOSED' is no list of words"),
        (lambda graph: row(graph, "sofa_1").update(properties=[1]), "is no list of words"),
        (lambda graph: row(graph, "sofa_1").update(obj_transform=[1.0, 2.0, 3.0]), "task 3 is no VirtualHome graph"),
        (lambda graph: row(graph, "sofa_1").update(obj_transform={"position": [1.0, float("nan"), 3.0]}), "finite"),
        (lambda graph: row(graph, "sofa_1").update(obj_transform={"position": ["1", "2", "3"]}), "finite"),
        (lambda graph: row(graph, "sofa_1").update(obj_transform={"position": [1.0, 2.0]}), "task 3 is no VirtualHome"),
        (lambda graph: graph["edges"][0].pop("to_id"), "'to_id'"),
        (lambda graph: graph["edges"][0].update(from_id=[11]), "task 3 is no VirtualHome graph"),
        (lambda graph: row(graph, "sofa_1").update(id=row(graph, "tv_1")["id"]), "task 3 has 26 nodes but 25 ids"),
        (lambda graph: join(graph, 12, ON, 999), "task 3 has an edge 12 ON 999 to a node that it lacks"),
        (lambda graph: join(graph, 999, "FACING", 12), "task 3 has an edge 999 FACING 12 to a node that it lacks"),
    ],
)
def test_what_is_no_graph_is_refused_with_its_place(change: Callable[[GraphJson], object], message: str) -> None:
    with pytest.raises(DataError, match=message):
        read_graph(_broken(change), "task 3")


def test_networkx_gets_every_node_and_every_edge() -> None:
    graph = read_graph(apartment(agent_in="kitchen_1"))
    graph.link(1, CLOSE, 12)
    drawn = to_networkx(graph)
    assert set(drawn.edges(keys=True)) == {(a, b, relation) for a, relation, b in graph.edges()}
    assert set(drawn.nodes) == set(graph.nodes)
    fridge = graph.of_class("fridge")[0]
    assert drawn.nodes[fridge]["class_name"] == "fridge" and drawn.nodes[fridge]["states"] == ["CLOSED"]


def test_rooms_are_apart_as_far_as_one_walks() -> None:
    content = apartment()
    bedroom, bathroom = add(content, "bedroom", (9.2, 1.4, 9.2)), add(content, "bathroom", (3.0, 1.4, 9.2))
    add(content, "door", (9.2, 1.05, 6.1), "between livingroom_1", "between bedroom_1")
    graph = read_graph(content)
    kitchen, livingroom = (graph.of_class(kind)[0] for kind in ("kitchen", "livingroom"))
    apart = room_distances(graph)
    assert apart[kitchen][kitchen] == 0.0
    assert apart[kitchen][livingroom] == apart[livingroom][kitchen] == pytest.approx(6.2)
    assert apart[kitchen][bedroom] == pytest.approx(12.4), "through the living room"
    assert apart[kitchen][bathroom] == pytest.approx(6.2), "no door: straight"
    assert set(apart) == {node.id for node in graph.nodes.values() if node.category == ROOMS}

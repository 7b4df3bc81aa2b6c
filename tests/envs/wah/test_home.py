"""Household: effects of actions by the simulator's rules, and queries."""

from __future__ import annotations

from collections import Counter
from itertools import pairwise

import pytest

from envs.wah.action import Action
from envs.wah.graph import CLOSE, HANDS, INSIDE, ON, Graph, Node
from envs.wah.home import Home
from envs.wah.state import SkillHistory
from keep_agent.errors import ConfigError, DataError, SkillError
from tests.envs.wah.conftest import Trace
from tests.envs.wah.homes import action, add, apartment, close, do, home, node_id, place, row, states


@pytest.fixture
def house() -> Home:
    return home()


def room_of(house: Home) -> str:
    """Return the class of the agent's room."""
    assert house.room == house.graph.room(house.agent)
    return "" if house.room is None else house.graph[house.room].class_name


@pytest.mark.parametrize(("room", "middle"), [("kitchen", (3.0, 0.0, 3.0)), ("livingroom", (9.2, 0.0, 3.0))])
def test_the_agent_starts_in_the_middle_of_its_start_room(room: str, middle: tuple[float, float, float]) -> None:
    house = home(room=room)
    assert (room_of(house), house.at, house.inventory) == (room, None, ())
    assert house.graph[house.agent].position == middle
    assert place(house, "character_1") == {f"INSIDE {room}_1"}


def test_the_default_start_room_is_that_of_the_graphs_character_or_the_first() -> None:
    assert room_of(home(room=None)) == "kitchen"
    house = home(apartment(agent_in="livingroom_1"), room=None)
    assert room_of(house) == "livingroom"
    assert house.graph[house.agent].position == (10.2, 0.85, 3.0)
    assert close(house) == {"slippers_1"}
    do(house, "walk coffeetable_1", "grab cupcake_1")
    assert place(house, "cupcake_1") == {"INSIDE livingroom_1", "character_1 HOLDS_RH"}
    house = home(apartment(agent_in="livingroom_1"), room="kitchen")
    assert room_of(house) == "kitchen" and place(house, "character_1") == {"INSIDE kitchen_1"}


def test_a_new_character_gets_a_free_id() -> None:
    assert home().agent == 1
    content = apartment()
    add(content, "apple", (0.0, 0.0, 0.0), "in kitchen_1", number=1)
    house = home(content)
    assert house.agent not in {node["id"] for node in content["nodes"]}
    assert house.graph[1].class_name == "apple"


def test_a_missing_start_room_is_an_error() -> None:
    with pytest.raises(DataError, match="a graph of 1 nodes has no room to start in"):
        Home(Graph([Node(11, "sofa", "Furniture")]))
    with pytest.raises(ConfigError, match="'attic' is not in this apartment; choose one of kitchen, livingroom"):
        home(room="attic")


@pytest.mark.parametrize(
    ("target", "at", "room"),
    [
        ("sofa_1", "sofa_1", "livingroom"), ("apple_1", "kitchentable_1", "kitchen"),
        ("toy_1", "bookshelf_1", "livingroom"), ("slippers_1", "slippers_1", "livingroom"),
        ("livingroom_1", "livingroom_1", "livingroom"),
    ],
)  # fmt: skip
def test_walking_leads_to_the_furniture_that_holds_a_thing(house: Home, target: str, at: str, room: str) -> None:
    do(house, f"walk {target}")
    assert house.at == node_id(house, at) and room_of(house) == room
    assert place(house, "character_1") == {f"INSIDE {room}_1"}


def test_the_agent_is_close_to_its_place_and_all_its_content_and_through_walls() -> None:
    content = apartment()
    row(content, "box_1")["bounding_box"]["center"][0] -= 4.0  # at the other end of a long shelf
    house = home(content)
    assert close(house) == set()
    for target, things in {
        "bookshelf_1": {"box_1", "toy_1"},
        "fridge_1": {"apple_2", "juice_1", "kitchencounter_1"},
        "kitchencabinet_2": {"waterglass_1", "tv_1"},
    }.items():
        do(house, f"walk {target}")
        assert close(house) == {target} | things
    do(house, "walk livingroom_1")
    assert close(house) == {"slippers_1"}


# By behaviour: things added to the apartment, actions, and relations afterwards.
EFFECTS = {
    "a grabbed thing loses its edges to the floor": (
        (), "walk slippers_1, grab slippers_1", {"slippers_1": "INSIDE livingroom_1, character_1 HOLDS_RH"}
    ),
    "walking moves the inventory": (
        (), "walk fridge_1, grab apple_2, grab juice_1, walk sofa_1",
        {f"{thing}_{number}": f"INSIDE livingroom_1, character_1 {hand}"
         for thing, number, hand in (("apple", 2, "HOLDS_RH"), ("juice", 1, "HOLDS_LH"))},
    ),
    "walking to a thing in no room keeps the room": (
        ("window at 3 1.5 0",), "walk kitchentable_1, grab apple_1, walk window_1",
        {"apple_1": "INSIDE kitchen_1, character_1 HOLDS_RH"},
    ),
    "the free hand is filled": (
        (), "walk kitchentable_1, grab apple_1, grab cutleryfork_1, putback apple_1 kitchentable_1, grab apple_1",
        {"apple_1": "INSIDE kitchen_1, character_1 HOLDS_RH", "cutleryfork_1": "INSIDE kitchen_1, character_1 HOLDS_LH"}
    ),
    "the content of a grabbed box stays in the room": (
        (), "walk bookshelf_1, grab box_1", {"toy_1": "INSIDE livingroom_1"}
    ),
    "the content of a grabbed plate stays in the room": (
        ("pancake on plate_1",), "walk kitchencounter_1, grab plate_1", {"pancake_1": "INSIDE kitchen_1"}
    ),
    "a thing put into a box": (
        (), "walk coffeetable_1, grab cupcake_1, walk bookshelf_1, putin cupcake_1 box_1", {"cupcake_1": "INSIDE box_1"}
    ),
    "a thing put into a box stays in the room when the box is grabbed": (
        (), "walk coffeetable_1, grab cupcake_1, walk bookshelf_1, putin cupcake_1 box_1, grab box_1, walk kitchen_1",
        {"cupcake_1": "INSIDE livingroom_1"},
    ),
    "walking ends sitting": (
        (), "walk sofa_1, sit sofa_1, walk coffeetable_1", {"character_1": "INSIDE livingroom_1"}
    ),
    "the agent sits on one seat at a time": (
        ("chair in livingroom_1",), "walk sofa_1, sit sofa_1, sit chair_1",
        {"sofa_1": "INSIDE livingroom_1", "character_1": "INSIDE livingroom_1, SITTING chair_1"},
    ),
}  # fmt: skip


@pytest.mark.parametrize("behaviour", EFFECTS)
def test_relations_after_actions(behaviour: str) -> None:
    things, steps, relations = EFFECTS[behaviour]
    house = home(apartment(*things))
    do(house, *steps.split(", "))
    assert {name: place(house, name) for name in relations} == {name: {*r.split(", ")} for name, r in relations.items()}
    for thing in house.inventory:
        assert house.graph[thing].position == house.graph[house.agent].box.center
        assert house.graph.linked(house.agent, CLOSE, thing) and house.graph.room(thing) == house.room


def test_a_put_thing_is_moved(house: Home) -> None:
    do(house, "walk kitchentable_1", "grab apple_1", "walk dishwasher_1", "putin apple_1 dishwasher_1")
    assert house.graph.room(node_id(house, "apple_1")) == node_id(house, "kitchen_1")
    assert house.graph[node_id(house, "apple_1")].position == house.graph[node_id(house, "dishwasher_1")].position
    assert house.inventory == () and "apple_1" in close(house)
    do(house, "grab apple_1", "walk sofa_1", "putback apple_1 sofa_1")
    sofa, apple = (house.graph[node_id(house, name)].box for name in ("sofa_1", "apple_1"))
    assert apple.center == (sofa.center[0], pytest.approx(sofa.top + apple.size[1] / 2), sofa.center[2])


@pytest.mark.parametrize(
    ("before", "words"),
    [
        ((), "putback apple_1 sofa_1"),  # not in hand
        (("grab plate_3", "grab apple_1"), "putback apple_1 plate_3"),  # on a thing in hand
        (("grab plate_3", "grab apple_1"), "putback plate_3 plate_3"),
        (("grab apple_1",), "grab apple_1"),  # in hand
        (("grab cutleryfork_1", "grab apple_1"), "grab plate_1"),  # both hands are full
        *(((), f"{verb} fridge_1") for verb in ("close", "switchon")),  # closed and on already
        *(((), words) for words in ("switchoff tv_1", "open sofa_1", "switchon sofa_1", "open tv_1")),
    ],
)
def test_an_impossible_action_has_no_effect(before: tuple[str, ...], words: str) -> None:
    house = home(apartment("plate on kitchentable_1"))
    do(house, "walk kitchentable_1", *before)
    graph = house.graph.copy()
    assert not house.act(action(house, words))
    assert house.graph == graph


def test_doors_and_switches(house: Home) -> None:
    assert states(house, "dishwasher_1") == {"CLOSED", "OFF"}
    for words in ("open OPEN OFF", "switchon OPEN ON", "close CLOSED ON", "switchoff CLOSED OFF"):
        verb, *after = words.split()
        do(house, f"{verb} dishwasher_1")
        assert states(house, "dishwasher_1") == {*after}


def test_an_unknown_verb_is_an_error(house: Home) -> None:
    with pytest.raises(SkillError, match="'juggle' is not a verb"):
        house.act(Action("juggle", node_id(house, "apple_1")))


def test_copies_are_independent(house: Home) -> None:
    do(house, "walk kitchentable_1", "grab apple_1")
    copy, before = house.copy(), house.graph.copy()
    do(copy, "walk sofa_1", "putback apple_1 sofa_1", "sit sofa_1")
    assert house.graph == before and house.at == node_id(house, "kitchentable_1") and house.sitting is None
    do(house, "walk coffeetable_1")
    assert "apple_1" in close(house), "still in this agent's hand"
    do(copy, "walk coffeetable_1")
    assert "apple_1" not in close(copy)


def test_a_new_task_resets_the_focus_only(house: Home) -> None:
    do(house, "walk kitchentable_1", "grab apple_1")
    house.history = SkillHistory("apple", node_id(house, "apple_1"), put_down=frozenset((node_id(house, "apple_1"),)))
    before = house.graph.copy()
    house.begin_task()
    assert house.history == SkillHistory()
    assert house.graph == before and house.at == node_id(house, "kitchentable_1")


@pytest.mark.parametrize(
    ("before", "words", "changed"),
    [
        ((), "walk fridge_1", {"character_1"}),
        (("walk fridge_1",), "open fridge_1", {"fridge_1"}),
        (("walk bookshelf_1",), "grab box_1", {"box_1", "toy_1", "character_1"}),
        (("grab apple_1",), "putin apple_1 fridge_1", {"apple_1", "fridge_1", "character_1"}),
        (("walk sofa_1",), "sit sofa_1", {"character_1"}),
    ],
)
def test_changed_collects_the_nodes_that_an_action_touches(
    house: Home, before: tuple[str, ...], words: str, changed: set[str]
) -> None:
    assert house.changed == set(house.graph.nodes), "all nodes at the start"
    do(house, *before)
    house.changed = set()
    do(house, words)
    assert house.changed == {node_id(house, name) for name in changed}


def test_holders_contents_and_fixtures(house: Home) -> None:
    toy, box, shelf = (node_id(house, name) for name in ("toy_1", "box_1", "bookshelf_1"))
    assert list(house.holders(toy)) == [box, shelf]
    assert house.contents(shelf) == [box] and house.all_contents(shelf) == [box, toy]
    assert house.fixture_of(toy) == shelf and house.fixture_of(shelf) == shelf
    assert house.holder(node_id(house, "slippers_1")) is None, "the floor is no holder"
    assert house.holder(shelf) is None


def test_the_outermost_closed_container_hides_a_thing() -> None:
    house = home(apartment("book in box_1"))
    toy, box, shelf = (node_id(house, name) for name in ("toy_1", "box_1", "bookshelf_1"))
    assert house.hidden_in(toy) == box and house.hidden_in(box) is None
    assert house.hidden_in(node_id(house, "apple_2")) == node_id(house, "fridge_1")
    do(house, "open box_1")
    assert house.hidden_in(toy) is None
    house.graph.change(shelf, states=frozenset(("CLOSED",)))
    house.graph.change(box, states=frozenset(("CLOSED",)))
    assert house.hidden_in(toy) == shelf, "the outermost container"


def test_a_box_in_a_cupboard_hides_a_thing_inside_both() -> None:
    """In the simulator's graphs, the content of the box is INSIDE the cupboard too."""
    house = home(apartment("pie in bookshelf_1"))
    pie, box, shelf = (node_id(house, name) for name in ("pie_1", "box_1", "bookshelf_1"))
    house.graph.link(pie, "INSIDE", box)
    assert house.graph.containers(pie) == sorted((shelf, box))
    assert house.holder(pie) == house.hidden_in(pie) == box and list(house.holders(pie)) == [box, shelf]
    do(house, "open box_1")
    assert house.hidden_in(pie) is None and house.fixture_of(pie) == shelf


def test_a_thing_on_a_closed_cabinet_is_visible() -> None:
    house = home(apartment("cabinet at 7 0.45 3 in livingroom_1", "juice on cabinet_1"))
    assert house.graph[node_id(house, "cabinet_1")].closed
    assert house.hidden_in(node_id(house, "juice_2")) is None


def test_distance_includes_height() -> None:
    house = home(room="livingroom")
    position = house.graph[node_id(house, "slippers_1")].position
    assert house.distance(node_id(house, "slippers_1")) == pytest.approx(position[1])
    assert house.distance(node_id(house, "kitchen_1")) == pytest.approx((6.2**2 + 1.4**2) ** 0.5)


def test_script_lines() -> None:
    assert Action("walk", 104).line("fridge") == "<char0> [walk] <fridge> (104)"
    assert Action("putin", 380, 104).line("apple", "fridge") == "<char0> [putin] <apple> (380) <fridge> (104)"


def hand_of(graph: Graph) -> dict[int, str]:
    """Return the things in the character's hands, with the hand."""
    return {thing: hand for hand in HANDS for thing in graph.targets(graph.of_class("character")[0], hand)}


def links(graph: Graph, thing: int) -> set[tuple[str, int]]:
    return {(relation, place) for relation in (INSIDE, ON) for place in graph.targets(thing, relation)}


def test_edges_after_grabbing_and_putting_agree_with_the_simulator(trace: Trace) -> None:
    counts = Counter[str]()
    for before, after in pairwise(trace.graphs):
        hands, hands_after = hand_of(before), hand_of(after)
        for thing in hands.keys() ^ hands_after.keys():
            house, table = Home(before.copy(), None), next(iter(after.targets(thing, ON)), 0)
            assert house.act(Action("grab", thing) if thing in hands_after else Action("putback", thing, table))
            assert links(house.graph, thing) == links(after, thing)
            assert hand_of(house.graph).get(thing) == hands_after.get(thing)
            counts["grab" if thing in hands_after else "put"] += 1
    assert min(counts["grab"], counts["put"]) >= 4

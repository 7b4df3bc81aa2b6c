"""Household: effects of actions by the simulator's rules, and queries."""

from __future__ import annotations

from itertools import pairwise

import pytest

from envs.wah.action import Action, parse_line
from envs.wah.graph import HANDS, INSIDE, ON, Graph, Node
from envs.wah.home import Home
from envs.wah.state import Focus
from keep_agent.errors import ConfigError, DataError, SkillError
from tests.envs.wah.conftest import Trace
from tests.envs.wah.homes import action, add, apartment, close, do, home, node_id, place, put, row, states


@pytest.fixture
def house() -> Home:
    return home()


def room_of(house: Home) -> str:
    """Return the class of the agent's room."""
    assert house.room == house.graph.room(house.agent)
    return "" if house.room is None else house.graph[house.room].class_name


# start


def test_the_agent_starts_in_the_middle_of_its_start_room() -> None:
    for room, middle in (("kitchen", (3.0, 0.0, 3.0)), ("livingroom", (9.2, 0.0, 3.0))):
        house = home(room=room)
        assert (room_of(house), house.at, house.inventory) == (room, None, ())
        assert house.graph[house.agent].position == middle
        assert place(house, "character_1") == {f"INSIDE {room}_1"}


def test_the_default_start_room_is_the_first() -> None:
    assert room_of(home(room=None)) == "kitchen"


def test_the_graphs_own_character_stays_where_it_is() -> None:
    house = home(apartment(agent_in="livingroom_1"), room=None)
    assert room_of(house) == "livingroom"
    assert house.graph[house.agent].position == (10.2, 0.85, 3.0)
    assert close(house) == {"slippers_1"}
    do(house, "walk coffeetable_1", "grab cupcake_1")
    assert place(house, "cupcake_1") == {"INSIDE livingroom_1", "character_1 HOLDS_RH"}


def test_a_start_room_moves_the_graphs_own_character() -> None:
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


# walking


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


def test_the_agent_is_close_to_its_place_and_all_its_content() -> None:
    content = apartment()
    far = row(content, "box_1")["bounding_box"]["center"]
    far[0] -= 4.0  # at the other end of a long shelf
    house = home(content)
    assert close(house) == set()
    do(house, "walk bookshelf_1")
    assert close(house) == {"bookshelf_1", "box_1", "toy_1"}
    do(house, "walk fridge_1")
    assert close(house) == {"fridge_1", "apple_2", "juice_1", "kitchencounter_1"}
    do(house, "walk livingroom_1")
    assert close(house) == {"slippers_1"}


def test_closeness_ignores_walls(house: Home) -> None:
    do(house, "walk kitchencabinet_2")
    assert close(house) == {"kitchencabinet_2", "waterglass_1", "tv_1"}


def test_walking_moves_the_inventory(house: Home) -> None:
    do(house, "walk fridge_1", "grab apple_2", "grab juice_1", "walk sofa_1")
    for thing, hand in (("apple_2", "HOLDS_RH"), ("juice_1", "HOLDS_LH")):
        assert place(house, thing) == {"INSIDE livingroom_1", f"character_1 {hand}"}
        assert house.graph[node_id(house, thing)].position == house.graph[house.agent].box.center
    assert close(house) == {"sofa_1", "slippers_1", "apple_2", "juice_1"}


def test_walking_to_a_thing_in_no_room_keeps_the_room() -> None:
    content = apartment()
    add(content, "window", (3.0, 1.5, 0.0))
    house = home(content)
    do(house, "walk kitchentable_1", "grab apple_1", "walk window_1")
    assert room_of(house) == "kitchen" and place(house, "apple_1") == {"INSIDE kitchen_1", "character_1 HOLDS_RH"}


# grabbing


@pytest.mark.parametrize(
    ("furniture", "thing"), [("fridge_1", "apple_2"), ("kitchentable_1", "apple_1"), ("slippers_1", "slippers_1")]
)
def test_a_grabbed_thing_loses_its_other_edges(house: Home, furniture: str, thing: str) -> None:
    do(house, f"walk {furniture}", f"grab {thing}")
    assert place(house, thing) == {f"INSIDE {room_of(house)}_1", "character_1 HOLDS_RH"}
    assert house.inventory == (node_id(house, thing),) and thing in close(house)
    assert house.graph[node_id(house, thing)].position == house.graph[house.agent].box.center


def test_the_right_hand_is_filled_first_then_the_left(house: Home) -> None:
    do(house, "walk kitchentable_1", "grab cutleryfork_1", "grab apple_1")
    assert house.inventory == (node_id(house, "cutleryfork_1"), node_id(house, "apple_1"))
    assert "character_1 HOLDS_LH" in place(house, "apple_1")
    before = house.graph.copy()
    assert not house.act(action(house, "grab plate_1")), "both hands are full"
    assert house.graph == before
    do(house, "putback cutleryfork_1 kitchentable_1", "grab cutleryfork_1")
    assert "character_1 HOLDS_RH" in place(house, "cutleryfork_1"), "the free hand"


def test_a_thing_in_hand_cannot_be_grabbed_again(house: Home) -> None:
    do(house, "walk kitchentable_1", "grab apple_1")
    assert not house.act(action(house, "grab apple_1"))
    assert len(house.inventory) == 1


def test_the_content_of_a_grabbed_thing_stays_in_the_room() -> None:
    content = apartment()
    put(content, "pancake", "on plate_1")
    house = home(content)
    do(house, "walk bookshelf_1", "grab box_1")
    assert place(house, "toy_1") == {"INSIDE livingroom_1"}
    do(house, "walk kitchencounter_1", "grab plate_1")
    assert place(house, "pancake_1") == {"INSIDE kitchen_1"}


def test_a_thing_put_into_a_box_stays_in_the_room_when_the_box_is_grabbed(house: Home) -> None:
    do(house, "walk coffeetable_1", "grab cupcake_1", "walk bookshelf_1", "putin cupcake_1 box_1")
    assert place(house, "cupcake_1") == {"INSIDE box_1"}
    do(house, "grab box_1", "walk kitchen_1")
    assert place(house, "cupcake_1") == {"INSIDE livingroom_1"}


# putting


def test_a_thing_put_into_a_container_is_inside_it_only(house: Home) -> None:
    do(house, "walk kitchentable_1", "grab apple_1", "walk dishwasher_1", "putin apple_1 dishwasher_1")
    assert place(house, "apple_1") == {"INSIDE dishwasher_1"}
    assert house.graph.room(node_id(house, "apple_1")) == node_id(house, "kitchen_1")
    assert house.graph[node_id(house, "apple_1")].position == house.graph[node_id(house, "dishwasher_1")].position
    assert house.inventory == () and "apple_1" in close(house)


def test_a_thing_put_on_a_surface_is_on_it_and_inside_its_room(house: Home) -> None:
    do(house, "walk kitchentable_1", "grab apple_1", "walk sofa_1", "putback apple_1 sofa_1")
    assert place(house, "apple_1") == {"ON sofa_1", "INSIDE livingroom_1"}
    x, y, z = house.graph[node_id(house, "apple_1")].position
    sofa, apple = (house.graph[node_id(house, name)].box for name in ("sofa_1", "apple_1"))
    assert (x, z) == (sofa.center[0], sofa.center[2]) and y == pytest.approx(sofa.top + apple.size[1] / 2)


def test_only_things_in_hand_can_be_put(house: Home) -> None:
    before = house.graph.copy()
    assert not house.act(action(house, "putback apple_1 sofa_1"))
    assert house.graph == before


def test_nothing_can_be_put_on_a_thing_in_hand() -> None:
    content = apartment()
    put(content, "plate", "on kitchentable_1")
    house = home(content)
    do(house, "walk kitchentable_1", "grab plate_3", "grab apple_1")
    before = house.graph.copy()
    assert not house.act(action(house, "putback apple_1 plate_3"))
    assert not house.act(action(house, "putback plate_3 plate_3"))
    assert house.graph == before


# states


def test_doors_and_switches(house: Home) -> None:
    assert states(house, "dishwasher_1") == {"CLOSED", "OFF"}
    for verb, after in (
        ("open", {"OPEN", "OFF"}),
        ("switchon", {"OPEN", "ON"}),
        ("close", {"CLOSED", "ON"}),
        ("switchoff", {"CLOSED", "OFF"}),
    ):
        do(house, f"{verb} dishwasher_1")
        assert states(house, "dishwasher_1") == after


@pytest.mark.parametrize(
    "words", ["close fridge_1", "switchon fridge_1", "switchoff tv_1", "open sofa_1", "switchon sofa_1", "open tv_1"]
)
def test_an_action_without_its_start_state_has_no_effect(house: Home, words: str) -> None:
    before = house.graph.copy()
    assert not house.act(action(house, words))
    assert house.graph == before


def test_sitting_lasts_until_the_agent_walks(house: Home) -> None:
    do(house, "walk sofa_1", "sit sofa_1")
    assert house.sitting == node_id(house, "sofa_1")
    assert place(house, "character_1") == {"INSIDE livingroom_1", "SITTING sofa_1"}
    do(house, "walk coffeetable_1")
    assert house.sitting is None and place(house, "character_1") == {"INSIDE livingroom_1"}


def test_the_agent_sits_on_one_seat_at_a_time() -> None:
    content = apartment()
    add(content, "chair", (9.2, 0.2, 5.0), "in livingroom_1")
    house = home(content)
    do(house, "walk sofa_1", "sit sofa_1", "sit chair_1")
    assert house.sitting == node_id(house, "chair_1")
    assert place(house, "sofa_1") == {"INSIDE livingroom_1"}


def test_an_unknown_verb_is_an_error(house: Home) -> None:
    with pytest.raises(SkillError, match="'juggle' is no verb"):
        house.act(Action("juggle", node_id(house, "apple_1")))


# copies, tasks, changes


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
    house.focus = Focus("apple", node_id(house, "apple_1"), put_down=frozenset((node_id(house, "apple_1"),)))
    before = house.graph.copy()
    house.begin_task()
    assert house.focus == Focus()
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


# queries


def test_holders_contents_and_fixtures(house: Home) -> None:
    toy, box, shelf = (node_id(house, name) for name in ("toy_1", "box_1", "bookshelf_1"))
    assert list(house.holders(toy)) == [box, shelf]
    assert house.contents(shelf) == [box] and house.all_contents(shelf) == [box, toy]
    assert house.fixture(toy) == shelf and house.fixture(shelf) == shelf
    assert house.holder(node_id(house, "slippers_1")) is None, "the floor is no holder"
    assert house.holder(shelf) is None


def test_loose_things(house: Home) -> None:
    assert house.loose() == (node_id(house, "slippers_1"),)
    do(house, "walk slippers_1", "grab slippers_1")
    assert house.loose() == ()
    do(house, "putback slippers_1 floor_1")
    assert house.loose() == (node_id(house, "slippers_1"),)
    do(house, "grab slippers_1", "putback slippers_1 sofa_1")
    assert house.loose() == ()


def test_the_outermost_closed_container_hides_a_thing() -> None:
    content = apartment()
    put(content, "book", "in box_1")
    house = home(content)
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
    content = apartment()
    put(content, "pie", "in bookshelf_1")
    house = home(content)
    pie, box, shelf = (node_id(house, name) for name in ("pie_1", "box_1", "bookshelf_1"))
    house.graph.link(pie, "INSIDE", box)
    assert house.graph.containers(pie) == sorted((shelf, box))
    assert house.holder(pie) == house.hidden_in(pie) == box and list(house.holders(pie)) == [box, shelf]
    do(house, "open box_1")
    assert house.hidden_in(pie) is None and house.fixture(pie) == shelf


def test_a_thing_on_a_closed_cabinet_is_visible() -> None:
    content = apartment()
    add(content, "cabinet", (7.0, 0.45, 3.0), "in livingroom_1")
    put(content, "juice", "on cabinet_1")
    house = home(content)
    assert house.graph[node_id(house, "cabinet_1")].closed
    assert house.hidden_in(node_id(house, "juice_2")) is None


def test_distance_includes_height() -> None:
    house = home(room="livingroom")
    position = house.graph[node_id(house, "slippers_1")].position
    assert house.distance(node_id(house, "slippers_1")) == pytest.approx(position[1])
    assert house.distance(node_id(house, "kitchen_1")) == pytest.approx((6.2**2 + 1.4**2) ** 0.5)


# script lines and the simulator's trace


@pytest.mark.parametrize(
    ("parsed", "line"),
    [
        (Action("walk", 104), "<char0> [walk] <fridge> (104)"),
        (Action("putin", 380, 104), "<char0> [putin] <apple> (380) <fridge> (104)"),
    ],
)
def test_script_lines_survive_a_round_trip(parsed: Action, line: str) -> None:
    assert parsed.line("fridge" if parsed.verb == "walk" else "apple", "fridge") == line
    assert parse_line(f" {line} ") == parsed


@pytest.mark.parametrize("line", ["", "walk fridge", "<char0> [walk] fridge (104)", "<char0> [dance] <fridge> (104)"])
def test_invalid_script_lines_are_errors(line: str) -> None:
    with pytest.raises(SkillError, match="is no script line; write <char0>"):
        parse_line(line)


def hand_of(graph: Graph) -> dict[int, str]:
    """Return the things in the character's hands, with the hand."""
    return {thing: hand for hand in HANDS for thing in graph.targets(graph.of_class("character")[0], hand)}


def links(graph: Graph, thing: int) -> set[tuple[str, int]]:
    return {(relation, place) for relation in (INSIDE, ON) for place in graph.targets(thing, relation)}


def test_edges_after_grabbing_agree_with_the_simulator(trace: Trace) -> None:
    count = 0
    for before, after in pairwise(trace.graphs):
        for thing, hand in hand_of(after).items():
            if thing not in hand_of(before):
                house = Home(before.copy(), None)
                assert house.act(Action("grab", thing))
                assert links(house.graph, thing) == links(after, thing) and hand_of(house.graph)[thing] == hand
                count += 1
    assert count >= 4


def test_edges_after_putting_agree_with_the_simulator(trace: Trace) -> None:
    count = 0
    for before, after in pairwise(trace.graphs):
        for thing in hand_of(before).keys() - hand_of(after).keys():
            house = Home(before.copy(), None)
            (table,) = after.targets(thing, ON)
            assert house.act(Action("putback", thing, table))
            assert links(house.graph, thing) == links(after, thing)
            count += 1
    assert count >= 4

"""Instance-level skills: what works where, what makes sense, and what refusals keep to themselves."""

from __future__ import annotations

import pytest

from envs.wah.grounded import GroundedSkills
from envs.wah.home import Home
from envs.wah.knowledge import Knowledge
from keep_agent.errors import SkillError
from tests.envs.wah.homes import add, apartment, do, home, one, place, put, row, states

GROUNDED = GroundedSkills()


@pytest.fixture
def house() -> Home:
    return home()


def run(house: Home, *skills: str) -> None:
    """Execute skills; each of them must work."""
    for skill in skills:
        outcome = GROUNDED.execute(house, skill)
        assert outcome.ok and not outcome.message, f"{skill}: {outcome.message}"


def refusal(house: Home, skill: str) -> str:
    """Why a skill fails; it changes nothing."""
    before, at = house.graph.copy(), house.at
    outcome = GROUNDED.execute(house, skill)
    assert not outcome.ok and (house.graph, house.at) == (before, at), skill
    return outcome.message


def local(house: Home, knowledge: Knowledge | None = None) -> list[str]:
    """Admissible skills but for going and being done."""
    skills = GROUNDED.admissible(house, knowledge)
    assert skills[-1] == "done"
    return [skill for skill in skills[:-1] if not skill.startswith("go to")]


def test_a_task_from_start_to_end(house: Home) -> None:
    run(house, "go to kitchencabinet 2", "open kitchencabinet 2", "pick up waterglass 1", "go to dishwasher 1")
    run(house, "open dishwasher 1", "put waterglass 1 in dishwasher 1", "close dishwasher 1", "turn on dishwasher 1")
    assert place(house, "waterglass_1") == {"INSIDE dishwasher_1"}
    assert states(house, "dishwasher_1") == {"CLOSED", "ON"}
    run(house, "turn off dishwasher 1", "done")
    assert states(house, "dishwasher_1") == {"CLOSED", "OFF"}


@pytest.mark.parametrize(
    ("where", "relations"),
    [
        ("coffeetable", {"ON coffeetable_1", "INSIDE livingroom_1"}),
        ("bookshelf", {"INSIDE bookshelf_1"}),
        ("kitchencabinet", {"INSIDE kitchencabinet_1"}),
    ],
)
def test_things_are_put_in_containers_and_on_all_else(house: Home, where: str, relations: set[str]) -> None:
    do(house, "open kitchencabinet_1")
    run(house, "go to kitchentable 1", "pick up apple 1", f"go to {where} 1", f"put apple 1 in {where} 1")
    assert place(house, "apple_1") == relations


@pytest.mark.parametrize(
    ("properties", "relations"),
    [
        (("CONTAINERS", "SURFACES"), {"ON sofa_1", "INSIDE livingroom_1"}),
        (("CONTAINERS",), {"INSIDE sofa_1"}),
    ],
)
def test_what_the_benchmark_does_not_list_is_a_surface_if_it_can_be(
    house: Home, properties: tuple[str, ...], relations: set[str]
) -> None:
    house.graph.change(one(house, "sofa_1"), properties=frozenset(properties))
    run(house, "go to kitchentable 1", "pick up apple 1", "go to sofa 1", "put apple 1 in sofa 1")
    assert place(house, "apple_1") == relations


def test_what_lies_around_can_be_gone_to(house: Home) -> None:
    run(house, "go to slippers 1", "pick up slippers 1", "go to sofa 1", "put slippers 1 in sofa 1")
    assert place(house, "slippers_1") == {"ON sofa_1", "INSIDE livingroom_1"}


def test_what_carries_things_is_furniture_whatever_its_properties() -> None:
    """A wall shelf may have none; nothing can be put there, but what lies there can be taken."""
    content = apartment()
    add(content, "stall", (7.0, 0.5, 3.0), "in livingroom_1")
    add(content, "stall", (8.0, 0.5, 3.0), "in livingroom_1")
    put(content, "pie", "on stall_1")
    for kind in ("stall_1", "stall_2"):
        row(content, kind)["properties"] = []
    house = home(content)
    knowledge = Knowledge(house, "partial")
    known = {fact.id for fact in knowledge.update()}
    assert "stall_1" in known and "stall_2" not in known and "pie_1" not in known
    run(house, "go to livingroom 1", "go to stall 1")
    assert {fact.id: fact.place for fact in knowledge.update()}["pie_1"] == "stall_1"
    assert local(house, knowledge) == ["pick up pie 1"]
    run(house, "pick up pie 1")
    assert local(house, knowledge) == []


def test_a_thing_is_put_on_another_that_lies_at_hand(house: Home) -> None:
    run(house, "go to kitchentable 1", "pick up apple 1", "go to kitchencounter 1", "put apple 1 in plate 1")
    assert place(house, "apple_1") == {"ON plate_1", "INSIDE kitchen_1"}
    assert "pick up apple 1" in local(house)


@pytest.mark.parametrize(
    ("skill", "sentence"),
    [
        ("open fridge 1", "you are not at fridge 1"),
        ("turn on tv 1", "you are not at tv 1"),
        ("sit on sofa 1", "you are not at sofa 1"),
        ("pick up cupcake 1", "cupcake 1 is not here"),
        ("pick up apple 9", "apple 9 is not here"),
        ("open fridge 9", "fridge 9 is not here"),
        ("pick up kitchentable 1", "the kitchen table cannot be picked up"),
        ("open kitchentable 1", "the kitchen table cannot be opened"),
        ("open apple 1", "the apple cannot be opened"),
        ("go to cutleryfork 1", "cutleryfork 1 does not lie around, go to a room or to furniture"),
        ("go to fridge 9", "there is no fridge 9 to go to"),
        ("put juice 1 in kitchentable 1", "you are not holding juice 1"),
        ("put apple 1 in fridge 1", "you are not at fridge 1"),
        ("put apple 1 in cupcake 1", "cupcake 1 is not here"),
        ("put apple 1 in cutleryfork 1", "nothing can be put on the cutlery fork"),
        ("put apple 1 in apple 1", "you are holding apple 1"),
        ("pick up apple 1", "you are holding apple 1"),
        ("go to apple 1", "you are holding apple 1"),
    ],
)
def test_refusals_from_the_table(house: Home, skill: str, sentence: str) -> None:
    run(house, "go to kitchentable 1")
    if "apple 1" in skill and skill != "open apple 1":
        run(house, "pick up apple 1")
    assert refusal(house, skill) == sentence


def test_full_hands_take_and_open_nothing(house: Home) -> None:
    run(house, "go to kitchentable 1", "pick up apple 1", "go to kitchencounter 1", "pick up plate 1")
    run(house, "go to fridge 1")
    assert refusal(house, "open fridge 1") == "your hands are full"
    do(house, "open fridge_1")
    assert refusal(house, "pick up juice 1") == "your hands are full"
    assert local(house) == ["put apple 1 in fridge 1", "put plate 1 in fridge 1"]


def test_a_closed_door_tells_nothing_about_its_content(house: Home) -> None:
    run(house, "go to kitchencabinet 1")
    inside, elsewhere, nowhere = (refusal(house, f"pick up {name}") for name in ("plate 2", "juice 1", "plate 9"))
    assert inside == elsewhere == nowhere == "what you stand at is closed"


@pytest.mark.parametrize("words", ["go to {}", "pick up {}", "open {}", "put {} in sofa 1", "put apple 1 in {}"])
@pytest.mark.parametrize("where", ["kitchentable 1", "fridge 1", "kitchen 1"])
def test_what_is_hidden_and_what_does_not_exist_sound_the_same(house: Home, words: str, where: str) -> None:
    run(house, "go to kitchentable 1", "pick up apple 1", f"go to {where}")
    answers = {refusal(house, words.format(name)).replace(name, "it") for name in ("waterglass 1", "waterglass 9")}
    assert len(answers) == 1


@pytest.mark.parametrize(
    ("skill", "closest"),
    [
        ("pick apple 1", "pick up apple 1"),
        ("go to kitchencabinett 1", "go to kitchencabinet 1"),
        ("put cupcake 1 in frigde 1", "put cupcake 1 in fridge 1"),
        ("put cupcake 1 on sofa 1", "put cupcake 1 in sofa 1"),
        ("find an apple", ""),
        ("Go to fridge 1", "go to fridge 1"),
        ("go to fridge", "go to fridge 1"),
        ("", ""),
    ],
)
def test_unknown_words_are_an_error_with_a_suggestion(house: Home, skill: str, closest: str) -> None:
    do(house, "walk coffeetable_1", "grab cupcake_1")
    with pytest.raises(SkillError, match=f"unknown skill '{skill}'; did you mean '{closest}"):
        GROUNDED.execute(house, skill)


def test_admissible_at_a_closed_and_an_open_fridge(house: Home) -> None:
    run(house, "go to fridge 1")
    assert local(house) == ["open fridge 1"]
    run(house, "open fridge 1")
    assert local(house) == ["close fridge 1", "pick up apple 2", "pick up juice 1"]


def test_admissible_with_one_hand_full(house: Home) -> None:
    run(house, "go to kitchentable 1", "pick up apple 1", "go to coffeetable 1")
    assert local(house) == ["put apple 1 in coffeetable 1", "pick up book 1", "pick up cupcake 1"]
    run(house, "go to dishwasher 1")
    assert local(house) == ["open dishwasher 1", "turn on dishwasher 1"]
    run(house, "open dishwasher 1")
    assert local(house) == ["close dishwasher 1", "put apple 1 in dishwasher 1"]


def test_what_is_in_an_open_box_on_a_shelf_is_at_hand(house: Home) -> None:
    run(house, "go to bookshelf 1")
    assert local(house) == ["open box 1", "pick up box 1"], "a shelf has no door to move"
    run(house, "open box 1")
    assert local(house) == ["close box 1", "pick up box 1", "pick up toy 1"]


def test_a_switch_says_what_it_can_do(house: Home) -> None:
    run(house, "go to tv 1")
    assert local(house) == ["turn on tv 1"]
    run(house, "turn on tv 1")
    assert local(house) == ["turn off tv 1"]


def test_what_is_neither_open_nor_closed_is_not_offered_to_be_moved() -> None:
    content = apartment()
    put(content, "radio", "on coffeetable_1")
    house = home(content)
    run(house, "go to coffeetable 1")
    assert states(house, "radio_1") == {"OFF"}
    assert [skill for skill in local(house) if "radio" in skill] == ["pick up radio 1"]


def test_one_goes_to_rooms_furniture_and_what_lies_around(house: Home) -> None:
    goals = [skill.removeprefix("go to ") for skill in GROUNDED.admissible(house) if skill.startswith("go to")]
    assert goals == [
        *("kitchen 1", "livingroom 1", "fridge 1", "dishwasher 1", "kitchentable 1", "kitchencounter 1"),
        *("kitchencabinet 1", "kitchencabinet 2", "coffeetable 1", "sofa 1", "bookshelf 1", "tv 1", "slippers 1"),
    ]
    run(house, "go to slippers 1")
    assert "go to slippers 1" not in GROUNDED.admissible(house)
    run(house, "pick up slippers 1")
    assert "go to slippers 1" not in GROUNDED.admissible(house) and local(house) == []
    run(house, "go to sofa 1", "put slippers 1 in sofa 1")
    assert "go to slippers 1" not in GROUNDED.admissible(house)


def test_in_a_room_one_stands_at_nothing(house: Home) -> None:
    run(house, "go to livingroom 1")
    assert local(house) == []
    assert refusal(house, "pick up slippers 1") == "slippers 1 is not here"


def test_one_sits_where_a_task_asks_for_it(house: Home) -> None:
    run(house, "go to sofa 1")
    assert local(house) == []
    house.allows_sitting = True
    assert local(house) == ["sit on sofa 1"]
    run(house, "sit on sofa 1")
    assert local(house) == []
    assert refusal(house, "sit on sofa 1") == "you are sitting on the sofa"


def test_only_what_is_known_is_admissible() -> None:
    content = apartment()
    add(content, "towel", (3.0, 0.0, 2.0), "in kitchen_1")
    house = home(content, "livingroom")
    knowledge = Knowledge(house, "partial")
    assert "go to slippers 1" in GROUNDED.admissible(house, knowledge)
    assert "go to towel 1" not in GROUNDED.admissible(house, knowledge)
    do(house, "walk kitchentable_1")
    assert local(house, knowledge) == [], "it did not look yet"
    knowledge.update()
    assert local(house, knowledge) == ["pick up apple 1", "pick up cutleryfork 1"]
    assert "go to towel 1" in GROUNDED.admissible(house, knowledge)


def test_without_knowledge_all_counts_as_known(house: Home) -> None:
    assert GROUNDED.admissible(house) == GROUNDED.admissible(house, Knowledge(house, "full"))


def test_done_does_nothing(house: Home) -> None:
    before = house.graph.copy()
    run(house, "done")
    assert house.graph == before


@pytest.mark.parametrize("furniture", ["fridge_1", "bookshelf_1", "kitchentable_1", "coffeetable_1", "tv_1"])
def test_every_admissible_skill_works(house: Home, furniture: str) -> None:
    house.allows_sitting = True
    do(house, "walk kitchencounter_1", "grab plate_1", f"walk {furniture}")
    for skill in GROUNDED.admissible(house):
        run(house.copy(), skill)
    assert one(house, "plate_1") in house.inventory

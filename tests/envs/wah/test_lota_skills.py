"""LoTA-Bench's type-level skills: the list of them, their meaning under both rules, and failure messages."""

from __future__ import annotations

import pytest

from envs.wah.action import RULES, Rules
from envs.wah.home import Home
from envs.wah.language.names import PUT_INTO, PUT_ONTO
from envs.wah.lota import LotaSkills
from keep_agent.errors import SkillError
from tests.envs.wah.homes import add, apartment, do, home, node_id, place, put, row, states

LOTA, STRICT = LotaSkills("lota"), LotaSkills("strict")
both_rules = pytest.mark.parametrize("skills", [LOTA, STRICT], ids=["lota", "strict"])


@pytest.fixture
def house() -> Home:
    return home()


def run(skills: LotaSkills, house: Home, *sequence: str) -> None:
    """Execute skills; each must succeed."""
    for skill in sequence:
        outcome = skills.execute(house, skill)
        assert outcome.ok and not outcome.message, f"{skill}: {outcome.message}"


def refusal(skills: LotaSkills, house: Home, skill: str) -> str:
    """Return why a skill fails; it must change nothing in the apartment."""
    before, at = house.graph.copy(), house.at
    outcome = skills.execute(house, skill)
    assert not outcome.ok and house.graph == before and house.at == at, skill
    return outcome.message


def at(house: Home, name: str) -> bool:
    return house.at == node_id(house, name)


# list of skills


def test_the_skills_are_those_of_the_apartments_classes(house: Home) -> None:
    skills = LOTA.admissible(house)
    assert len(set(skills)) == len(skills) and skills[-1] == "done"
    by_verb = {
        verb: [skill.removeprefix(verb) for skill in skills if skill.startswith(verb)]
        for verb in ("find", "pick up the ", "open the ", "close the ", "switch on the ", "put down the ")
    }
    assert sum(map(len, by_verb.values())) + 1 == len(skills)
    assert [skill for group in by_verb.values() for skill in group] == [
        skill.removeprefix(verb) for verb in by_verb for skill in skills if skill.startswith(verb)
    ]
    assert set(by_verb["find"]) == {
        *(" an apple", " a bookshelf", " a box", " a book", " a coffee table", " a cupcake", " a cutlery fork"),
        *(" a dishwasher", " a fridge", " a floor", " a juice", " a kitchen cabinet", " a kitchen counter"),
        *(" a kitchen table", " a plate", " a slippers", " a sofa", " a toy", " a tv", " a water glass", " a door"),
    }
    assert set(by_verb["pick up the "]) == {
        *("apple", "juice", "plate", "water glass", "cutlery fork", "box", "toy", "book", "cupcake", "slippers")
    }
    assert by_verb["open the "] == by_verb["close the "]
    assert set(by_verb["open the "]) == {
        *("fridge", "dishwasher", "kitchen cabinet", "bookshelf", "box", "book", "door"),
    }
    assert set(by_verb["switch on the "]) == {"fridge", "dishwasher", "tv"}


def test_every_class_can_be_put_down(house: Home) -> None:
    names = {skill.removeprefix("put down the ") for skill in LOTA.admissible(house) if skill.startswith("put down")}
    assert len(names) == len(house.graph.classes) - 1, "all but the agent"
    assert {"apple", "fridge", "kitchen", "living room", "floor", "door"} < names


def test_skills_are_grouped_by_verb(house: Home) -> None:
    verbs = [skill.split()[0] for skill in STRICT.admissible(house)]
    assert list(dict.fromkeys(verbs)) == ["find", "pick", "open", "close", "switch", "put", "done"]
    assert verbs == sorted(verbs, key=list(dict.fromkeys(verbs)).index)


def test_skills_are_the_same_at_every_step(house: Home) -> None:
    before = LOTA.admissible(house)
    run(LOTA, house, "find a fridge", "open the fridge")
    assert LOTA.admissible(house) == before


def test_sitting_is_admissible_if_a_task_requires_it(house: Home) -> None:
    assert "sit on the sofa" not in LOTA.admissible(house)
    house.allows_sitting = True
    assert "sit on the sofa" in LOTA.admissible(house)


@both_rules
@pytest.mark.parametrize(
    ("skill", "closest"),
    [
        ("find an aple", "find an apple"), ("open fridge", "open the fridge"),
        ("find a kitchentable", "find a kitchen table"), ("find a salmon", ""), ("find a user", "find a"), ("", ""),
    ],
)  # fmt: skip
def test_unknown_skills_are_errors_with_a_suggestion(house: Home, skills: LotaSkills, skill: str, closest: str) -> None:
    with pytest.raises(SkillError, match=f"unknown skill '{skill}'; did you mean '{closest}"):
        skills.execute(house, skill)


@both_rules
def test_done_does_nothing(house: Home, skills: LotaSkills) -> None:
    run(skills, house, "find a fridge")
    before, focus = house.graph.copy(), house.focus
    run(skills, house, "done")
    assert (house.graph, house.focus) == (before, focus)


# both rules


@both_rules
@pytest.mark.parametrize(
    ("place_name", "relation"),
    [("kitchen cabinet", "INSIDE"), ("bookshelf", "INSIDE"), ("coffee table", "ON"), ("sofa", "ON")],
)
def test_things_go_into_the_benchmarks_containers_and_onto_other_places(
    house: Home, skills: LotaSkills, place_name: str, relation: str
) -> None:
    run(skills, house, "find a cupcake", "pick up the cupcake", f"find a {place_name}")
    target = house.at
    do(house, *(("open kitchencabinet_1", "open kitchencabinet_2") if place_name == "kitchen cabinet" else ()))
    run(skills, house, "put down the cupcake")
    cupcake = node_id(house, "cupcake_1")
    assert target in house.graph.targets(cupcake, relation)
    assert not house.inventory


def test_a_class_in_both_lists_is_a_container() -> None:
    assert {"kitchencabinet", "bookshelf", "cabinet", "nightstand", "stove", "fryingpan"} <= PUT_INTO & PUT_ONTO


@both_rules
def test_a_plan_of_the_benchmark(skills: LotaSkills) -> None:
    house = home()
    run(skills, house, "find a dishwasher", "open the dishwasher", "find a water glass", "open the kitchen cabinet")
    run(skills, house, "pick up the water glass", "find a dishwasher", "put down the water glass")
    run(skills, house, "close the dishwasher", "switch on the dishwasher", "done")
    assert place(house, "waterglass_1") == {"INSIDE dishwasher_1"}
    assert states(house, "dishwasher_1") == {"CLOSED", "ON"}


@both_rules
def test_sitting_down(house: Home, skills: LotaSkills) -> None:
    run(skills, house, "find a sofa", "sit on the sofa")
    assert house.sitting == node_id(house, "sofa_1")
    run(skills, house, "find a coffee table")
    assert house.sitting is None


# the benchmark's rule


def test_a_skill_refers_to_the_last_instance_wherever_the_agent_is(house: Home) -> None:
    run(LOTA, house, "find an apple")
    assert at(house, "fridge_1")
    run(LOTA, house, "find a kitchen table")
    assert refusal(LOTA, house, "pick up the apple") == "the apple is not close", "the last apple is in the fridge"
    run(LOTA, house, "find a plate")
    assert at(house, "kitchencabinet_1")
    assert refusal(LOTA, house, "open the kitchen cabinet") == "the kitchen cabinet is not close", "another cabinet"


def test_a_thing_is_put_down_at_the_last_instance_of_the_last_found_class(house: Home) -> None:
    run(LOTA, house, "find a cupcake", "pick up the cupcake", "find a kitchen cabinet")
    assert LOTA.target(house, "cupcake") == node_id(house, "kitchencabinet_2")
    do(house, "walk kitchencabinet_1")
    assert refusal(LOTA, house, "put down the cupcake") == "the kitchen cabinet is not close"
    run(LOTA, house, "find a kitchen cabinet", "put down the cupcake")
    assert place(house, "cupcake_1") == {"INSIDE kitchencabinet_2"}


def test_put_down_refers_to_the_last_instance_even_if_another_is_in_hand() -> None:
    house = home()
    do(house, "walk kitchentable_1", "grab apple_1")
    run(LOTA, house, "find a sofa")
    assert refusal(LOTA, house, "put down the apple") == "you are not holding the apple"
    assert house.inventory == (node_id(house, "apple_1"),)


def test_things_can_be_put_into_a_closed_container(house: Home) -> None:
    run(LOTA, house, "find a cupcake", "pick up the cupcake", "find a fridge", "put down the cupcake")
    assert place(house, "cupcake_1") == {"INSIDE fridge_1"} and "CLOSED" in states(house, "fridge_1")


def test_every_find_sets_the_destination(house: Home) -> None:
    run(LOTA, house, "find a cupcake", "pick up the cupcake", "find a sofa", "find a juice")
    assert refusal(LOTA, house, "put down the cupcake") == "nothing can be put on the juice"
    run(LOTA, house, "find a sofa", "put down the cupcake")
    assert place(house, "cupcake_1") == {"ON sofa_1", "INSIDE livingroom_1"}


def test_without_a_find_the_destination_is_the_thing_itself(house: Home) -> None:
    do(house, "walk coffeetable_1", "grab book_1")
    assert LOTA.target(house, "book") == node_id(house, "book_1")
    assert refusal(LOTA, house, "put down the book") == "nothing can be put on the book"
    do(house, "walk kitchentable_1", "grab cutleryfork_1")
    house.graph.change(node_id(house, "cutleryfork_1"), properties=frozenset(("GRABBABLE", "SURFACES")))
    assert refusal(LOTA, house, "put down the cutlery fork") == "the simulator could not put down the cutlery fork"


def test_find_fails_beyond_a_kilometre() -> None:
    content = apartment()
    row(content, "tv_1")["bounding_box"]["center"] = [1003.1, 0.5, 3.0]
    house = home(content)
    assert refusal(LOTA, house, "find a tv") == "cannot find the tv: no place for it was found"
    row(content, "tv_1")["bounding_box"]["center"] = [1002.0, 0.5, 3.0]
    run(LOTA, home(content), "find a tv")


def test_a_failed_find_sets_the_destination_too() -> None:
    content = apartment()
    row(content, "tv_1")["bounding_box"]["center"] = [3000.0, 0.5, 3.0]
    house = home(content)
    run(LOTA, house, "find a cupcake", "pick up the cupcake", "find a sofa")
    assert LOTA.target(house, "cupcake") == node_id(house, "sofa_1")
    assert refusal(LOTA, house, "find a tv") == "cannot find the tv: no place for it was found"
    assert refusal(LOTA, house, "put down the cupcake") == "cannot put down the cupcake: no place for it was found"


@pytest.mark.parametrize(
    "skill", ["pick up the sofa", "open the fridge", "switch on the tv", "put down the apple", "close the fridge"]
)
@pytest.mark.parametrize("rules", RULES)
def test_failures_have_reasons_except_with_the_benchmarks_messages(house: Home, skill: str, rules: Rules) -> None:
    assert refusal(LotaSkills(rules), house, skill)
    assert refusal(LotaSkills(rules, "lota"), house, skill) == ""


def test_only_closed_things_can_be_switched_on(house: Home) -> None:
    run(LOTA, house, "find a tv")
    assert refusal(LOTA, house, "switch on the tv") == "the tv has no door that is closed"
    run(LOTA, house, "find a dishwasher", "open the dishwasher")
    assert refusal(LOTA, house, "switch on the dishwasher") == "the dishwasher is open, close it first"
    run(LOTA, house, "close the dishwasher", "switch on the dishwasher")


# the strict rule


def test_find_prefers_visible_things_then_the_nearest() -> None:
    content = apartment()
    put(content, "apple", "on coffeetable_1")
    for room, table in (("kitchen", "kitchentable_1"), ("livingroom", "coffeetable_1")):
        house = home(content, room)
        run(STRICT, house, "find an apple")
        assert at(house, table)


def test_a_repeated_find_cycles_through_the_instances(house: Home) -> None:
    places = []
    for _ in range(5):
        run(STRICT, house, "find a kitchen cabinet")
        places.append(house.at)
    assert places == [places[0], places[1]] * 2 + [places[0]] and places[0] != places[1]


@pytest.mark.parametrize("between", ["open the kitchen cabinet", "find a sofa"])
def test_another_skill_resets_the_cycle(house: Home, between: str) -> None:
    do(house, "walk kitchencabinet_1")
    run(STRICT, house, "find a kitchen cabinet")
    first = house.at
    run(STRICT, house, between)
    do(house, "walk kitchencabinet_1")
    run(STRICT, house, "find a kitchen cabinet")
    assert house.at == first


def test_the_found_instance_is_picked_up(house: Home) -> None:
    do(house, "open kitchencabinet_1")
    run(STRICT, house, "find a plate", "find a plate")
    target = house.focus.target
    run(STRICT, house, "pick up the plate")
    assert house.inventory == (target,)


def test_find_leads_to_the_second_instance_after_the_first_is_put_down(house: Home) -> None:
    run(STRICT, house, "find a dishwasher", "open the dishwasher")
    run(STRICT, house, "find a plate", "pick up the plate", "find a dishwasher", "put down the plate")
    run(STRICT, house, "find a plate", "open the kitchen cabinet", "pick up the plate")
    run(STRICT, house, "find a dishwasher", "put down the plate")
    assert place(house, "plate_1") == place(house, "plate_2") == {"INSIDE dishwasher_1"}


def test_both_hands_can_be_filled_with_the_same_class(house: Home) -> None:
    run(STRICT, house, "find a plate", "pick up the plate", "find a plate", "open the kitchen cabinet")
    run(STRICT, house, "pick up the plate", "find a sofa", "put down the plate", "put down the plate")
    assert place(house, "plate_1") == place(house, "plate_2") == {"ON sofa_1", "INSIDE livingroom_1"}


def test_a_new_task_can_find_a_thing_put_down_in_the_last_one(house: Home) -> None:
    run(STRICT, house, "find a plate", "pick up the plate", "find a kitchen table", "put down the plate")
    run(STRICT, house, "find a plate")
    assert at(house, "kitchencabinet_1")
    house.begin_task()
    run(STRICT, house, "find a kitchen table", "find a plate")
    assert at(house, "kitchentable_1")


def test_open_refers_to_the_container_of_the_found_thing(house: Home) -> None:
    run(STRICT, house, "find a water glass", "open the kitchen cabinet")
    assert "OPEN" in states(house, "kitchencabinet_2") and "CLOSED" in states(house, "kitchencabinet_1")
    run(STRICT, house, "find a plate", "find a plate", "open the kitchen cabinet")
    assert "OPEN" in states(house, "kitchencabinet_1")


def test_open_prefers_the_container_of_the_found_thing_to_a_nearer_one() -> None:
    content = apartment()
    add(content, "kitchencabinet", (5.8, 2.4, 5.5), "in kitchen_1")
    put(content, "candle", "in kitchencabinet_3")
    house = home(content)
    run(STRICT, house, "find a candle")
    assert house.distance(node_id(house, "kitchencabinet_2")) < house.distance(node_id(house, "kitchencabinet_3"))
    run(STRICT, house, "open the kitchen cabinet")
    assert "OPEN" in states(house, "kitchencabinet_3") and "CLOSED" in states(house, "kitchencabinet_2")


def test_a_thing_in_a_closed_box_cannot_be_picked_up(house: Home) -> None:
    run(STRICT, house, "find a toy")
    assert refusal(STRICT, house, "pick up the toy") == "the toy is in the box, which is closed"
    run(STRICT, house, "open the box", "pick up the toy")


def test_things_are_put_down_at_the_found_instance(house: Home) -> None:
    run(STRICT, house, "find an apple", "pick up the apple")
    run(STRICT, house, "find a kitchen cabinet")
    cabinet = house.at
    run(STRICT, house, "open the kitchen cabinet", "put down the apple")
    assert house.holder(node_id(house, "apple_1")) == cabinet
    run(STRICT, house, "find a cupcake", "pick up the cupcake", "find a kitchen cabinet", "put down the cupcake")
    assert house.holder(node_id(house, "cupcake_1")) == cabinet, "the previous destination"


def test_the_found_instance_is_closed_and_switched_on() -> None:
    content = apartment()
    add(content, "tv", (12.0, 0.5, 5.0), "in livingroom_1")
    house = home(content)
    do(house, "open kitchencabinet_1", "open kitchencabinet_2")
    run(STRICT, house, "find a kitchen cabinet", "find a kitchen cabinet", "close the kitchen cabinet")
    assert house.graph[house.at].closed
    run(STRICT, house, "find a tv", "find a tv", "switch on the tv")
    assert "ON" in house.graph[house.at].states


def test_a_tv_can_be_switched_on(house: Home) -> None:
    run(STRICT, house, "find a tv", "switch on the tv")
    assert states(house, "tv_1") == {"ON"}


@pytest.mark.parametrize(
    ("before", "skill", "sentence"),
    [
        (("find a fridge",), "open the dishwasher", "the dishwasher is not close"),
        (("find an apple", "find an apple"), "pick up the apple", "the apple is in the fridge, which is closed"),
        (("find a plate",), "put down the plate", "you are not holding the plate"),
        (("find an apple", "pick up the apple"), "put down the apple", "nothing can be put on the apple"),
        (("find an apple", "pick up the apple", "find a fridge"), "put down the apple", "the fridge is closed"),
        (("find a fridge", "open the fridge"), "open the fridge", "the fridge is already open"),
        (("find a plate", "pick up the plate"), "put down the plate", "you are holding the plate"),
        (("find a cupcake", "pick up the cupcake"), "find a cupcake", "you are holding the cupcake"),
    ],
)
def test_messages(house: Home, before: tuple[str, ...], skill: str, sentence: str) -> None:
    run(STRICT, house, *before)
    assert refusal(STRICT, house, skill) == sentence


def test_putting_down_needs_a_find_first(house: Home) -> None:
    do(house, "walk kitchentable_1", "grab apple_1")
    assert refusal(STRICT, house, "put down the apple") == "cannot put down the apple: no place for it was found"

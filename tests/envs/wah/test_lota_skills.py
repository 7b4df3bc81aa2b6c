"""LoTA-Bench's type-level skills: the list of them, their meaning under both rules, and failure messages."""

from __future__ import annotations

from itertools import groupby

import pytest

from envs.wah.action import RULES, Rules
from envs.wah.home import Home
from envs.wah.language.names import PUT_INTO, PUT_ONTO
from envs.wah.lota import LotaSkills
from keep_agent.errors import SkillError
from tests.envs.wah.homes import apartment, do, home, node_id, place, row, states

LOTA, STRICT = LotaSkills("lota"), LotaSkills("strict")
both_rules = pytest.mark.parametrize("skills", [LOTA, STRICT], ids=["lota", "strict"])


@pytest.fixture
def house() -> Home:
    return home()


def run(skills: LotaSkills, house: Home, script: str) -> None:
    """Execute skills, separated by semicolons; one with an arrow must fail with the message after it and no effect."""
    for step in script.split("; "):
        skill, _, message = step.partition(" -> ")
        before, at = house.graph.copy(), house.at
        outcome = skills.execute(house, skill)
        assert (outcome.ok, outcome.message) == (not message, message), skill
        assert outcome.ok or (house.graph, house.at) == (before, at), skill


def at(house: Home, name: str) -> bool:
    return house.at == node_id(house, name)


def check(house: Home, **things: str) -> None:
    """Check the states (one word) and relations (two words) of things; of relations there must be no others."""
    for name, text in things.items():
        words = set(text.split(", "))
        relations = {word for word in words if " " in word}
        assert relations in (set(), place(house, name)) and words - relations <= states(house, name), name


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
    assert [verb for verb, _ in groupby(verbs)] == ["find", "pick", "open", "close", "switch", "put", "done"]


def test_sitting_is_admissible_if_a_task_requires_it(house: Home) -> None:
    before = LOTA.admissible(house)
    assert "sit on the sofa" not in before
    run(LOTA, house, "find a fridge; open the fridge")
    assert LOTA.admissible(house) == before, "the same at every step"
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


@both_rules
@pytest.mark.parametrize(
    ("place_name", "relation"),
    [("kitchen cabinet", "INSIDE"), ("bookshelf", "INSIDE"), ("coffee table", "ON"), ("sofa", "ON")],
)
def test_things_go_into_the_benchmarks_containers_and_onto_other_places(
    house: Home, skills: LotaSkills, place_name: str, relation: str
) -> None:
    run(skills, house, f"find a cupcake; pick up the cupcake; find a {place_name}")
    target = house.at
    do(house, "open kitchencabinet_1", "open kitchencabinet_2")
    run(skills, house, "put down the cupcake")
    assert target in house.graph.targets(node_id(house, "cupcake_1"), relation) and not house.inventory


def test_a_class_in_both_lists_is_a_container() -> None:
    assert {"kitchencabinet", "bookshelf", "cabinet", "nightstand", "stove", "fryingpan"} <= PUT_INTO & PUT_ONTO


@both_rules
def test_a_plan_of_the_benchmark(house: Home, skills: LotaSkills) -> None:
    run(skills, house, "find a dishwasher; open the dishwasher; find a water glass; open the kitchen cabinet")
    run(skills, house, "pick up the water glass; find a dishwasher; put down the water glass")
    run(skills, house, "close the dishwasher; switch on the dishwasher; done")
    check(house, waterglass_1="INSIDE dishwasher_1", dishwasher_1="CLOSED, ON")


@both_rules
def test_sitting_down(house: Home, skills: LotaSkills) -> None:
    run(skills, house, "find a sofa; sit on the sofa")
    assert house.sitting == node_id(house, "sofa_1")
    run(skills, house, "find a coffee table")
    assert house.sitting is None


CUPCAKE, APPLE = "find a cupcake; pick up the cupcake", "find an apple; pick up the apple"
PLATE = "find a plate; pick up the plate"
OPEN_SECOND_PLATE = "find a plate; open the kitchen cabinet; pick up the plate"
# By behaviour: rules, skills, and states and relations afterwards.
SCRIPTS: dict[str, tuple[LotaSkills, str, dict[str, str]]] = {
    "a skill refers to the last instance, which may be elsewhere": (
        LOTA, "find an apple; find a kitchen table; pick up the apple -> the apple is not close", {}
    ),
    "the last cabinet is not the one of the last plate": (
        LOTA, "find a plate; open the kitchen cabinet -> the kitchen cabinet is not close", {}
    ),
    "things can be put into a closed container": (
        LOTA, f"{CUPCAKE}; find a fridge; put down the cupcake", {"cupcake_1": "INSIDE fridge_1", "fridge_1": "CLOSED"}
    ),
    "every find sets the destination": (
        LOTA, f"{CUPCAKE}; find a sofa; find a juice; put down the cupcake -> nothing can be put on the juice; "
        "find a sofa; put down the cupcake", {"cupcake_1": "ON sofa_1, INSIDE livingroom_1"},
    ),
    "only closed things can be switched on": (
        LOTA, "find a tv; switch on the tv -> the tv has no door that is closed; find a dishwasher; "
        "open the dishwasher; switch on the dishwasher -> the dishwasher is open, close it first; "
        "close the dishwasher; switch on the dishwasher", {"dishwasher_1": "CLOSED, ON"},
    ),
    "a find leads to the second instance after the first is put down": (
        STRICT, f"find a dishwasher; open the dishwasher; {PLATE}; find a dishwasher; put down the plate; "
        f"{OPEN_SECOND_PLATE}; find a dishwasher; put down the plate",
        {"plate_1": "INSIDE dishwasher_1", "plate_2": "INSIDE dishwasher_1"},
    ),
    "both hands can be filled with the same class": (
        STRICT, f"{PLATE}; {OPEN_SECOND_PLATE}; find a sofa; put down the plate; put down the plate",
        dict.fromkeys(("plate_1", "plate_2"), "ON sofa_1, INSIDE livingroom_1"),
    ),
    "open refers to the container of the found thing": (
        STRICT, "find a water glass; open the kitchen cabinet",
        {"kitchencabinet_2": "OPEN", "kitchencabinet_1": "CLOSED"},
    ),
    "open refers to the container of the second instance": (
        STRICT, "find a plate; find a plate; open the kitchen cabinet", {"kitchencabinet_1": "OPEN"}
    ),
    "a thing in a closed box cannot be picked up": (
        STRICT, "find a toy; pick up the toy -> the toy is in the box, which is closed; open the box; pick up the toy",
        {"toy_1": "character_1 HOLDS_RH, INSIDE livingroom_1"},
    ),
    "a thing without a door can be switched on": (STRICT, "find a tv; switch on the tv", {"tv_1": "ON"}),
    "far": (STRICT, "find a fridge; open the dishwasher -> the dishwasher is not close", {}),
    "hidden": (
        STRICT, "find an apple; find an apple; pick up the apple -> the apple is in the fridge, which is closed", {}
    ),
    "not in hand": (STRICT, "find a plate; put down the plate -> you are not holding the plate", {}),
    "no surface": (STRICT, f"{APPLE}; put down the apple -> nothing can be put on the apple", {}),
    "closed": (STRICT, f"{APPLE}; find a fridge; put down the apple -> the fridge is closed", {}),
    "open already": (STRICT, "find a fridge; open the fridge; open the fridge -> the fridge is already open", {}),
    "onto itself": (STRICT, f"{PLATE}; put down the plate -> you are holding the plate", {}),
    "find in hand": (STRICT, f"{CUPCAKE}; find a cupcake -> you are holding the cupcake", {}),
}  # fmt: skip


@pytest.mark.parametrize("behaviour", SCRIPTS)
def test_scripts(house: Home, behaviour: str) -> None:
    skills, script, things = SCRIPTS[behaviour]
    run(skills, house, script)
    check(house, **things)


# the benchmark's rule


def test_a_thing_is_put_down_at_the_last_instance_of_the_last_found_class(house: Home) -> None:
    for kind, furniture in (("an apple", "fridge_1"), ("a plate", "kitchencabinet_1")):
        run(LOTA, house, f"find {kind}")
        assert at(house, furniture)
    run(LOTA, house, f"{CUPCAKE}; find a kitchen cabinet")
    assert LOTA.target(house, "cupcake") == node_id(house, "kitchencabinet_2")
    do(house, "walk kitchencabinet_1")
    run(LOTA, house, "put down the cupcake -> the kitchen cabinet is not close")
    run(LOTA, house, "find a kitchen cabinet; put down the cupcake")
    check(house, cupcake_1="INSIDE kitchencabinet_2")


def test_put_down_refers_to_the_last_instance_even_if_another_is_in_hand(house: Home) -> None:
    do(house, "walk kitchentable_1", "grab apple_1")
    run(LOTA, house, "find a sofa; put down the apple -> you are not holding the apple")
    assert house.inventory == (node_id(house, "apple_1"),)


def test_without_a_find_the_destination_is_the_thing_itself(house: Home) -> None:
    do(house, "walk coffeetable_1", "grab book_1")
    assert LOTA.target(house, "book") == node_id(house, "book_1")
    run(LOTA, house, "put down the book -> nothing can be put on the book")
    do(house, "walk kitchentable_1", "grab cutleryfork_1")
    house.graph.change(node_id(house, "cutleryfork_1"), properties=frozenset(("GRABBABLE", "SURFACES")))
    run(LOTA, house, "put down the cutlery fork -> the simulator could not put down the cutlery fork")


@pytest.mark.parametrize(("metres", "fails"), [(1003.1, True), (1002.0, False)])
def test_find_fails_beyond_a_kilometre_and_sets_the_destination(metres: float, fails: bool) -> None:
    content = apartment()
    row(content, "tv_1")["bounding_box"]["center"] = [metres, 0.5, 3.0]
    house = home(content)
    do(house, "walk coffeetable_1", "grab cupcake_1", "walk kitchen_1")
    run(LOTA, house, "find a tv -> cannot find the tv: no place for it was found" if fails else "find a tv")
    assert LOTA.target(house, "cupcake") == (None if fails else node_id(house, "tv_1"))
    if fails:
        run(LOTA, house, "put down the cupcake -> cannot put down the cupcake: no place for it was found")


@pytest.mark.parametrize(
    "skill", ["pick up the sofa", "open the fridge", "switch on the tv", "put down the apple", "close the fridge"]
)
@pytest.mark.parametrize("rules", RULES)
def test_failures_have_reasons_except_with_the_benchmarks_messages(house: Home, skill: str, rules: Rules) -> None:
    for skills, has_reason in ((LotaSkills(rules), True), (LotaSkills(rules, "lota"), False)):
        outcome = skills.execute(house, skill)
        assert (outcome.ok, bool(outcome.message)) == (False, has_reason)


# the strict rule


def test_find_prefers_visible_things_then_the_nearest() -> None:
    content = apartment("apple on coffeetable_1")
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
    run(STRICT, house, "find a plate; find a plate")
    target = house.focus.target
    run(STRICT, house, "pick up the plate")
    assert house.inventory == (target,)


def test_a_new_task_can_find_a_thing_put_down_in_the_last_one(house: Home) -> None:
    run(STRICT, house, f"{PLATE}; find a kitchen table; put down the plate; find a plate")
    assert at(house, "kitchencabinet_1")
    house.begin_task()
    run(STRICT, house, "find a kitchen table; find a plate")
    assert at(house, "kitchentable_1")


def test_open_prefers_the_container_of_the_found_thing_to_a_nearer_one() -> None:
    house = home(apartment("kitchencabinet at 5.8 2.4 5.5 in kitchen_1", "candle in kitchencabinet_3"))
    run(STRICT, house, "find a candle")
    assert house.distance(node_id(house, "kitchencabinet_2")) < house.distance(node_id(house, "kitchencabinet_3"))
    run(STRICT, house, "open the kitchen cabinet")
    check(house, kitchencabinet_3="OPEN", kitchencabinet_2="CLOSED")


def test_things_are_put_down_at_the_found_instance(house: Home) -> None:
    run(STRICT, house, f"{APPLE}; find a kitchen cabinet")
    cabinet = house.at
    run(STRICT, house, "open the kitchen cabinet; put down the apple")
    assert house.holder(node_id(house, "apple_1")) == cabinet
    run(STRICT, house, f"{CUPCAKE}; find a kitchen cabinet; put down the cupcake")
    assert house.holder(node_id(house, "cupcake_1")) == cabinet, "the previous destination"


def test_the_found_instance_is_closed_and_switched_on() -> None:
    house = home(apartment("tv at 12 0.5 5 in livingroom_1"))
    do(house, "open kitchencabinet_1", "open kitchencabinet_2")
    run(STRICT, house, "find a kitchen cabinet; find a kitchen cabinet; close the kitchen cabinet")
    assert house.graph[house.at].closed
    run(STRICT, house, "find a tv; find a tv; switch on the tv")
    assert "ON" in house.graph[house.at].states


def test_putting_down_needs_a_find_first(house: Home) -> None:
    do(house, "walk kitchentable_1", "grab apple_1")
    run(STRICT, house, "put down the apple -> cannot put down the apple: no place for it was found")

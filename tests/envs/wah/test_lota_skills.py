"""LoTA-Bench's type-level skills: the list of them, their meaning under both rules, and failure messages."""

from __future__ import annotations

from itertools import groupby
from typing import Any

import pytest

from envs.wah.action import RULES, Rules
from envs.wah.home import Home
from envs.wah.lota import LotaSkills
from keep_agent.errors import SkillError
from tests.envs.wah.homes import apartment, do, home, node_id, place, row, states

LOTA, STRICT = LotaSkills("lota"), LotaSkills("strict")
both_rules = pytest.mark.parametrize("skills", [LOTA, STRICT], ids=["lota", "strict"])


@pytest.fixture
def house() -> Home:
    return home()


def run(skills: LotaSkills, house: Home, script: str) -> None:
    """Execute skills, separated by semicolons.

    A skill with an arrow must fail with the message after it; it and "done" must have no effect. "at sofa_1" checks the
    agent's place, "new task" begins a task, and "walk sofa_1" is an action without checks.
    """
    for step in script.split("; "):
        skill, _, message = step.partition(" -> ")
        before = house.copy()
        if skill.startswith("at "):
            assert house.at == node_id(house, skill.removeprefix("at ")), skill
        elif skill == "new task":
            house.begin_task()
        elif "_" in skill:
            do(house, skill)
        else:
            outcome = skills.execute(house, skill)
            assert (outcome.ok, outcome.message) == (not message, message), skill
            assert outcome.ok or (house.graph, house.at) == (before.graph, before.at), skill
            assert skill != "done" or house == before


def check(house: Home, **things: str) -> None:
    """Check the states (one word) and relations (two words) of things; of relations there must be no others."""
    for name, text in things.items():
        words = set(text.split(", "))
        relations = {word for word in words if " " in word}
        assert relations in (set(), place(house, name)) and words - relations <= states(house, name), name


CUPCAKE, APPLE = "find a cupcake; pick up the cupcake", "find an apple; pick up the apple"
PLATE = "find a plate; pick up the plate"
OPEN_SECOND_PLATE = "find a plate; open the kitchen cabinet; pick up the plate"


def test_the_skills_are_those_of_the_apartments_classes_grouped_by_verb(house: Home) -> None:
    skills = LOTA.admissible(house)
    assert len(set(skills)) == len(skills) and skills == STRICT.admissible(house)
    groups = {verb: list(group) for verb, group in groupby(skills, lambda skill: skill.split()[0])}
    assert list(groups) == ["find", "pick", "open", "close", "switch", "put", "done"]
    by_verb = {
        verb: {skill.removeprefix(verb) for skill in groups[verb.split()[0]]}
        for verb in ("find ", "pick up the ", "open the ", "close the ", "switch on the ", "put down the ", "done")
    }
    assert sum(map(len, by_verb.values())) == len(skills), "every verb has one group"
    assert by_verb["find "] == {
        *("an apple", "a bookshelf", "a box", "a book", "a coffee table", "a cupcake", "a cutlery fork", "a toy"),
        *("a dishwasher", "a fridge", "a floor", "a juice", "a kitchen cabinet", "a kitchen counter", "a water glass"),
        *("a kitchen table", "a plate", "a slippers", "a sofa", "a tv", "a door"),
    }
    assert by_verb["pick up the "] == {
        *("apple", "juice", "plate", "water glass", "cutlery fork", "box", "toy", "book", "cupcake", "slippers")
    }
    doors = {"fridge", "dishwasher", "kitchen cabinet", "bookshelf", "box", "book", "door"}
    assert by_verb["open the "] == by_verb["close the "] == doors
    assert by_verb["switch on the "] == {"fridge", "dishwasher", "tv"} and by_verb["done"] == {""}
    assert len(by_verb["put down the "]) == len(house.graph.classes) - 1, "all but the agent"
    assert {"apple", "fridge", "kitchen", "living room", "floor", "door"} < by_verb["put down the "]


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
@pytest.mark.parametrize(
    ("place_name", "relation"),
    [("kitchen cabinet", "INSIDE"), ("bookshelf", "INSIDE"), ("coffee table", "ON"), ("sofa", "ON")],
)
def test_things_go_into_the_benchmarks_containers_and_onto_other_places(
    house: Home, skills: LotaSkills, place_name: str, relation: str
) -> None:
    run(skills, house, f"{CUPCAKE}; find a {place_name}; open kitchencabinet_1; open kitchencabinet_2")
    target = house.at
    run(skills, house, "put down the cupcake")
    assert target in house.graph.targets(node_id(house, "cupcake_1"), relation) and not house.inventory


# By behaviour: rules, script, states and relations afterwards, and further things in the apartment.
SCRIPTS: dict[str, tuple[Any, ...]] = {
    "a plan of the benchmark": (
        "both", "find a dishwasher; open the dishwasher; find a water glass; open the kitchen cabinet; pick up the "
        "water glass; find a dishwasher; put down the water glass; close the dishwasher; switch on the dishwasher; "
        "done", {"waterglass_1": "INSIDE dishwasher_1", "dishwasher_1": "CLOSED, ON"},
    ),
    "sitting down": (
        "both", "find a sofa; sit on the sofa", {"character_1": "INSIDE livingroom_1, SITTING sofa_1"}
    ),
    "a find leads to the last instance": ("lota", "find an apple; at fridge_1; find a plate; at kitchencabinet_1", {}),
    "a thing is put down at the last instance of the last found class": (
        "lota", f"{CUPCAKE}; find a kitchen cabinet; walk kitchencabinet_1; put down the cupcake -> the kitchen "
        "cabinet is not close; find a kitchen cabinet; put down the cupcake", {"cupcake_1": "INSIDE kitchencabinet_2"},
    ),
    "put down refers to the last instance even if another is in hand": (
        "lota", "walk kitchentable_1; grab apple_1; find a sofa; put down the apple -> you are not holding the apple",
        {"apple_1": "INSIDE livingroom_1, character_1 HOLDS_RH"},
    ),
    "find prefers visible things": ("strict", "find an apple; at kitchentable_1", {}, "apple on coffeetable_1"),
    "then the nearest": (
        "strict", "walk livingroom_1; find an apple; at coffeetable_1", {}, "apple on coffeetable_1"
    ),
    "a repeated find cycles through the instances": (
        "strict", "; ".join(f"find a kitchen cabinet; at kitchencabinet_{number}" for number in (1, 2, 1, 2, 1)), {}
    ),
    "the found instance is picked up": (
        "strict", "open kitchencabinet_1; find a plate; find a plate; at kitchencabinet_1; pick up the plate",
        {"plate_2": "INSIDE kitchen_1, character_1 HOLDS_RH"},
    ),
    "a new task can find a thing put down in the last one": (
        "strict", f"{PLATE}; find a kitchen table; put down the plate; find a plate; at kitchencabinet_1; new task; "
        "find a kitchen table; find a plate; at kitchentable_1", {},
    ),
    "open prefers the container of the found thing to a nearer one": (
        "strict", "find a candle; open the kitchen cabinet", {"kitchencabinet_3": "OPEN", "kitchencabinet_2": "CLOSED"},
        "kitchencabinet at 5.8 2.4 5.5 in kitchen_1", "candle in kitchencabinet_3",
    ),
    "things are put down at the found instance, then at the previous destination": (
        "strict", f"{APPLE}; find a kitchen cabinet; at kitchencabinet_2; open the kitchen cabinet; put down the "
        f"apple; {CUPCAKE}; find a kitchen cabinet; put down the cupcake",
        dict.fromkeys(("apple_1", "cupcake_1"), "INSIDE kitchencabinet_2"),
    ),
    "the found instance is closed": (
        "strict", "open kitchencabinet_1; open kitchencabinet_2; find a kitchen cabinet; find a kitchen cabinet; "
        "at kitchencabinet_2; close the kitchen cabinet", {"kitchencabinet_1": "OPEN", "kitchencabinet_2": "CLOSED"},
    ),
    "the found instance is switched on": (
        "strict", "find a tv; find a tv; at tv_2; switch on the tv", {"tv_1": "OFF", "tv_2": "ON"},
        "tv at 12 0.5 5 in livingroom_1",
    ),
    "putting down needs a find first": (
        "strict", "walk kitchentable_1; grab apple_1; "
        "put down the apple -> cannot put down the apple: no place for it was found", {},
    ),
    "a skill refers to the last instance, which may be elsewhere": (
        "lota", "find an apple; find a kitchen table; pick up the apple -> the apple is not close", {}
    ),
    "the last cabinet is not the one of the last plate": (
        "lota", "find a plate; open the kitchen cabinet -> the kitchen cabinet is not close", {}
    ),
    "things can be put into a closed container": (
        "lota", f"{CUPCAKE}; find a fridge; put down the cupcake",
        {"cupcake_1": "INSIDE fridge_1", "fridge_1": "CLOSED"},
    ),
    "every find sets the destination": (
        "lota", f"{CUPCAKE}; find a sofa; find a juice; put down the cupcake -> nothing can be put on the juice; "
        "find a sofa; put down the cupcake", {"cupcake_1": "ON sofa_1, INSIDE livingroom_1"},
    ),
    "only closed things can be switched on": (
        "lota", "find a tv; switch on the tv -> the tv has no door that is closed; find a dishwasher; "
        "open the dishwasher; switch on the dishwasher -> the dishwasher is open, close it first; "
        "close the dishwasher; switch on the dishwasher", {"dishwasher_1": "CLOSED, ON"},
    ),
    "a find leads to the second instance after the first is put down": (
        "strict", f"find a dishwasher; open the dishwasher; {PLATE}; find a dishwasher; put down the plate; "
        f"{OPEN_SECOND_PLATE}; find a dishwasher; put down the plate",
        {"plate_1": "INSIDE dishwasher_1", "plate_2": "INSIDE dishwasher_1"},
    ),
    "both hands can be filled with the same class": (
        "strict", f"{PLATE}; {OPEN_SECOND_PLATE}; find a sofa; put down the plate; put down the plate",
        dict.fromkeys(("plate_1", "plate_2"), "ON sofa_1, INSIDE livingroom_1"),
    ),
    "open refers to the container of the found thing": (
        "strict", "find a water glass; open the kitchen cabinet",
        {"kitchencabinet_2": "OPEN", "kitchencabinet_1": "CLOSED"},
    ),
    "open refers to the container of the second instance": (
        "strict", "find a plate; find a plate; open the kitchen cabinet", {"kitchencabinet_1": "OPEN"}
    ),
    "a thing in a closed box cannot be picked up": (
        "strict", "find a toy; pick up the toy -> the toy is in the box, which is closed; open the box; pick up "
        "the toy",
        {"toy_1": "character_1 HOLDS_RH, INSIDE livingroom_1"},
    ),
    "a thing without a door can be switched on": ("strict", "find a tv; switch on the tv", {"tv_1": "ON"}),
    "hidden": (
        "strict", "find an apple; find an apple; pick up the apple -> the apple is in the fridge, which is closed", {}
    ),
    "not in hand": ("strict", "find a plate; put down the plate -> you are not holding the plate", {}),
    "no surface": ("strict", f"{APPLE}; put down the apple -> nothing can be put on the apple", {}),
    "onto itself": ("strict", f"{PLATE}; put down the plate -> you are holding the plate", {}),
    "find in hand": ("strict", f"{CUPCAKE}; find a cupcake -> you are holding the cupcake", {}),
}  # fmt: skip


@pytest.mark.parametrize("behaviour", SCRIPTS)
def test_scripts(behaviour: str) -> None:
    rules, script, after, *things = SCRIPTS[behaviour]
    for skills in {"lota": [LOTA], "strict": [STRICT], "both": [LOTA, STRICT]}[rules]:
        house = home(apartment(*things))
        run(skills, house, script)
        check(house, **after)


def test_without_a_find_the_destination_is_the_thing_itself(house: Home) -> None:
    run(LOTA, house, "walk coffeetable_1; grab book_1; put down the book -> nothing can be put on the book")
    assert LOTA.target(house, "book") == node_id(house, "book_1")
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


@pytest.mark.parametrize("between", ["open the kitchen cabinet", "find a sofa"])
def test_another_skill_resets_the_cycle(house: Home, between: str) -> None:
    again = "walk kitchencabinet_1; find a kitchen cabinet"
    run(STRICT, house, again)
    first = house.at
    run(STRICT, house, f"{between}; {again}")
    assert house.at == first

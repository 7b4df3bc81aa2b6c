"""Instance-level skills: effects, admissible skills, and refusals that reveal no hidden thing."""

from __future__ import annotations

from functools import partial

import pytest

from envs.alfred.grounded import GroundedSkills
from envs.alfred.knowledge import Knowledge
from envs.alfred.objects import name_of
from envs.alfred.world import World
from keep_agent.errors import SkillError
from tests.envs.alfred.rooms import bedroom, do, execute

GROUNDED = GroundedSkills()
run = partial(execute, GROUNDED)


def local(world: World, knowledge: Knowledge | None = None) -> list[str]:
    """Return the admissible skills except "go to" and "done"."""
    skills = GROUNDED.admissible(world, knowledge)
    assert skills[-1] == "done"
    return [skill for skill in skills[:-1] if not skill.startswith("go to")]


def test_a_task_from_start_to_end(world: World) -> None:
    run(world, "go to countertop 1", "pick up apple 1", "go to microwave 1", "open microwave 1")
    run(world, "put apple 1 in microwave 1", "close microwave 1", "turn on microwave 1", "turn off microwave 1")
    run(world, "open microwave 1", "pick up apple 1", "go to countertop 2", "put apple 1 in countertop 2", "done")
    assert world["apple_1"].parent == "countertop_2" and world.heated == {"apple_1"}


@pytest.mark.parametrize(
    ("skill", "sentence"),
    [
        ("open fridge 1", "you are not at fridge 1"), ("pick up egg 1", "egg 1 is not here"),
        ("go to apple 1", "apple 1 is not on the floor, go to a receptacle"),
        ("put apple 1 in drawer 1", "you are not holding apple 1"), ("turn on faucet 1", "you are not at faucet 1"),
        ("pick up countertop 1", "countertop 1 cannot be picked up"), ("turn on fridge 1", "you are not at fridge 1"),
        ("open cabinet 9", "there is no cabinet 9"), ("pick up apple 9", "apple 9 is not here"),
    ],
)  # fmt: skip
def test_refusals_from_the_counter(world: World, skill: str, sentence: str) -> None:
    run(world, "go to countertop 1")
    before = world.copy()
    outcome = GROUNDED.execute(world, skill)
    assert (outcome.ok, outcome.message) == (False, sentence) and world == before


def test_a_refusal_at_a_closed_door_does_not_reveal_its_content_and_sliced_things_are_named(world: World) -> None:
    run(world, "go to cabinet 1")
    inside = GROUNDED.execute(world, "pick up mug 1")
    elsewhere, nowhere = (GROUNDED.execute(world, f"pick up {name}") for name in ("egg 1", "egg 9"))
    assert inside.message == elsewhere.message == nowhere.message == "cabinet 1 is closed"
    run(world, "go to countertop 1", "pick up knife 1", "slice apple 1")
    outcome = GROUNDED.execute(world, "slice apple 1")
    assert outcome.message == "apple 1 was sliced and no longer exists"
    assert GROUNDED.execute(world, "put knife 1 in apple 1").message == outcome.message


@pytest.mark.parametrize(
    ("skill", "closest"),
    [
        ("fetch apple 1", "slice apple 1"), ("go to kabinet 1", "go to cabinet 1"),
        ("put apple 1 in frigde 1", "put apple 1 in fridge 1"), ("find an apple", ""), ("", ""),
    ],
)  # fmt: skip
def test_an_unknown_skill_is_an_error_with_a_suggestion(world: World, skill: str, closest: str) -> None:
    with pytest.raises(SkillError, match=f"unknown skill '{skill}'; did you mean '{closest}"):
        GROUNDED.execute(world, skill)


@pytest.mark.parametrize("words", ["go to {}", "pick up {}", "slice {}", "put {} in countertop 1", "put knife 1 in {}"])
def test_hidden_and_missing_things_get_the_same_refusal(world: World, words: str) -> None:
    run(world, "go to countertop 1", "pick up knife 1")
    hidden = next(thing.id for thing in world.things.values() if thing.pickupable and world.hidden_in(thing.id))
    name, absent = name_of(hidden), f"{hidden.rsplit('_', 1)[0]} 99"
    answers = [GROUNDED.execute(world, words.format(text)).message.replace(text, "it") for text in (name, absent)]
    assert answers[0] == answers[1]


def test_admissible_at_a_closed_and_an_open_cabinet_and_with_a_full_hand(world: World) -> None:
    run(world, "go to cabinet 1")
    assert local(world) == ["open cabinet 1"]
    run(world, "open cabinet 1")
    assert local(world) == ["close cabinet 1", "pick up mug 1"]
    run(world, "go to countertop 1", "pick up knife 1")
    assert local(world) == ["put knife 1 in countertop 1", "slice apple 1", "put knife 1 in plate 1"]


def test_destinations_are_furniture_lamps_faucets_and_things_on_the_floor(world: World) -> None:
    goals = [skill.removeprefix("go to ") for skill in GROUNDED.admissible(world) if skill.startswith("go to")]
    assert goals[:2] == ["countertop 1", "countertop 2"] and {"faucet 1", "potato 1"} < set(goals)
    assert "apple 1" not in goals
    run(world, "go to potato 1", "pick up potato 1")
    assert "go to potato 1" not in GROUNDED.admissible(world)


def test_a_lamp_is_switched_from_the_fixture_it_stands_on() -> None:
    world = World(bedroom())
    run(world, "go to desk 1")
    assert "turn on desklamp 1" in local(world) and "turn on floorlamp 1" not in local(world)
    run(world, "turn on desklamp 1")
    assert "turn off desklamp 1" in local(world)


def test_only_known_things_are_admissible(world: World) -> None:
    knowledge = Knowledge(world, "partial")
    assert local(world, knowledge) == []
    do(world, "goto countertop_1")
    assert local(world, knowledge) == []
    knowledge.update()
    assert local(world, knowledge) == ["pick up apple 1", "pick up knife 1", "pick up plate 1"]

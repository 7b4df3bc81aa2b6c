"""What is read out of ALFWorld's sentences, those of its first release and those of today."""

from __future__ import annotations

import pytest

from envs.alfworld.text_state import Told
from envs.alfworld.wordings import TREATMENTS, skill_of, treatment_at

OPENING = (
    "-= Welcome to TextWorld, ALFRED! =-\n\nYou are in the middle of a room. Looking quickly around you, you see a "
    "cabinet 10, a cabinet 2, a cabinet 1, a fridge 1, and a sidetable 1.\n\nYour task is to: put a cup in cabinet."
)


def told(*talk: tuple[str, str]) -> Told:
    heard = Told()
    heard.begin(OPENING)
    for command, answer in talk:
        heard.hear(command, answer)
    return heard


def test_the_opening_lists_the_receptacles_by_type_and_number() -> None:
    assert told().receptacles == ("cabinet_1", "cabinet_2", "cabinet_10", "fridge_1", "sidetable_1")


@pytest.mark.parametrize("arrival", ["You arrive at sidetable 1.", "You arrive at loc 21."])
def test_an_open_place_is_seen_on_arrival(arrival: str) -> None:
    heard = told(("go to sidetable 1", f"{arrival} On the sidetable 1, you see a cup 2, a desklamp 1, and a cup 1."))
    assert heard.at == "sidetable_1" and heard.seen == {"sidetable_1"} and not heard.doors
    assert heard.before() == ["cup_1", "cup_2", "desklamp_1"]


def test_a_closed_place_is_seen_when_it_is_opened() -> None:
    heard = told(("go to fridge 1", "You arrive at fridge 1. The fridge 1 is closed."))
    assert heard.doors == {"fridge_1": "closed"} and not heard.seen and heard.before() == []
    heard.hear("open fridge 1", "You open the fridge 1. The fridge 1 is open. In it, you see an egg 1.")
    assert heard.doors == {"fridge_1": "open"} and heard.seen == {"fridge_1"} and heard.before() == ["egg_1"]
    heard.hear("close fridge 1", "You close the fridge 1.")
    assert heard.doors == {"fridge_1": "closed"} and heard.before() == [] and heard.inside("fridge_1") == ["egg_1"]


def test_an_empty_place_is_seen_too() -> None:
    heard = told(("go to sidetable 1", "You arrive at sidetable 1. On the sidetable 1, you see nothing."))
    assert heard.seen == {"sidetable_1"} and heard.before() == []


@pytest.mark.parametrize(
    ("put", "answer"),
    [
        ("move cup 1 to cabinet 2", "You move the cup 1 to the cabinet 2."),
        ("put cup 1 in/on cabinet 2", "You put the cup 1 in/on the cabinet 2."),
    ],
)
def test_things_move_with_the_hand(put: str, answer: str) -> None:
    heard = told(
        ("go to sidetable 1", "You arrive at sidetable 1. On the sidetable 1, you see a cup 1."),
        ("take cup 1 from sidetable 1", "You pick up the cup 1 from the sidetable 1."),
    )
    assert (heard.holding, heard.places) == ("cup_1", {})
    heard.hear(put, answer)
    assert (heard.holding, heard.places) == (None, {"cup_1": "cabinet_2"})


def test_a_thing_is_hot_or_cold_and_may_be_clean_and_sliced() -> None:
    heard = told(("heat egg 1 with microwave 1", "You heat the egg 1 using the microwave 1."))
    heard.hear("clean egg 1 with sinkbasin 1", "You clean the egg 1 using the sinkbasin 1.")
    heard.hear("slice egg 1 with knife 1", "You sliced the egg 1 with the knife 1.")
    assert heard.marks == {"egg_1": {"hot", "clean", "sliced"}}
    heard.hear("cool egg 1 with fridge 1", "You cool the egg 1 using the fridge 1.")
    assert heard.marks == {"egg_1": {"cold", "clean", "sliced"}}


def test_what_does_not_happen_tells_nothing() -> None:
    for command in ("go to cabinet 1", "take cup 1 from cabinet 1", "heat cup 1 with fridge 1", "use desklamp 1"):
        assert told((command, "Nothing happens.")) == told()


@pytest.mark.parametrize(
    ("command", "skill"),
    [
        ("go to cabinet 10", "go to cabinet 10"),
        ("open cabinet 1", "open cabinet 1"),
        ("close cabinet 1", "close cabinet 1"),
        ("take cup 1 from cabinet 1", "pick up cup 1"),
        ("move cup 1 to cabinet 1", "put cup 1 in cabinet 1"),
        ("put cup 1 in/on cabinet 1", "put cup 1 in cabinet 1"),
        ("slice apple 1 with butterknife 2", "slice apple 1"),
        ("use desklamp 1", "turn on desklamp 1"),
        *((command, None) for command in ("look", "inventory", "help", "examine cup 1", "cool cup 1 with fridge 1")),
    ],
)
def test_commands_in_our_words(command: str, skill: str | None) -> None:
    assert skill_of(command) == skill


def test_every_treatment_has_its_appliance() -> None:
    places = [f"{one.place.lower()}_3" for one in TREATMENTS]
    assert [treatment_at(place) for place in places] == list(TREATMENTS)
    skills = [one.skill(place) for one, place in zip(TREATMENTS, places, strict=True)]
    assert skills == ["turn on microwave 3", "close fridge 3", "turn on faucet 3"]
    assert treatment_at("cabinet_1") is None and treatment_at(None) is None

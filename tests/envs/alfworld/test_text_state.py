"""State read from ALFWorld's sentences, old and current ones; and expressions in a game's grammar."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pytest

from envs.alfworld.engine import read_expression
from envs.alfworld.translation import TREATMENTS, skill_of, treatment_at
from envs.alfworld.world import TextState
from keep_agent.errors import DataError

OPENING = (
    "-= Welcome to TextWorld, ALFRED! =-\n\nYou are in the middle of a room. Looking quickly around you, you see a "
    "cabinet 10, a cabinet 2, a cabinet 1, a fridge 1, and a sidetable 1.\n\nYour task is to: put a cup in cabinet."
)


def after(*exchanges: tuple[str, str]) -> TextState:
    """Return the state after the opening text and these commands with their answers."""
    state = TextState()
    state.begin(OPENING)
    for command, answer in exchanges:
        state.update(command, answer)
    return state


def test_the_opening_lists_receptacles_empty_ones_are_inspected_and_refusals_change_nothing() -> None:
    assert after().receptacles == ("cabinet_1", "cabinet_2", "cabinet_10", "fridge_1", "sidetable_1")
    state = after(("go to sidetable 1", "You arrive at sidetable 1. On the sidetable 1, you see nothing."))
    assert state.inspected == {"sidetable_1"} and state.in_view() == []
    for command in ("go to cabinet 1", "take cup 1 from cabinet 1", "heat cup 1 with fridge 1", "use desklamp 1"):
        assert after((command, "Nothing happens.")) == after()


@pytest.mark.parametrize("arrival", ["You arrive at sidetable 1.", "You arrive at loc 21."])
def test_an_open_receptacle_is_inspected_on_arrival(arrival: str) -> None:
    state = after(("go to sidetable 1", f"{arrival} On the sidetable 1, you see a cup 2, a desklamp 1, and a cup 1."))
    assert state.at == "sidetable_1" and state.inspected == {"sidetable_1"} and not state.doors
    assert state.in_view() == ["cup_1", "cup_2", "desklamp_1"]


def test_a_closed_receptacle_is_inspected_when_it_is_opened() -> None:
    state = after(("go to fridge 1", "You arrive at fridge 1. The fridge 1 is closed."))
    assert state.doors == {"fridge_1": "closed"} and not state.inspected and state.in_view() == []
    state.update("open fridge 1", "You open the fridge 1. The fridge 1 is open. In it, you see an egg 1.")
    assert state.doors == {"fridge_1": "open"} and state.inspected == {"fridge_1"} and state.in_view() == ["egg_1"]
    state.update("close fridge 1", "You close the fridge 1.")
    assert state.doors == {"fridge_1": "closed"} and state.in_view() == [] and state.inside("fridge_1") == ["egg_1"]


@pytest.mark.parametrize(
    ("put", "answer"),
    [
        ("move cup 1 to cabinet 2", "You move the cup 1 to the cabinet 2."),
        ("put cup 1 in/on cabinet 2", "You put the cup 1 in/on the cabinet 2."),
    ],
)
def test_take_and_put_move_an_object(put: str, answer: str) -> None:
    state = after(
        ("go to sidetable 1", "You arrive at sidetable 1. On the sidetable 1, you see a cup 1."),
        ("take cup 1 from sidetable 1", "You pick up the cup 1 from the sidetable 1."),
    )
    assert (state.holding, state.places) == ("cup_1", {})
    state.update(put, answer)
    assert (state.holding, state.places) == (None, {"cup_1": "cabinet_2"})


def test_a_thing_is_hot_or_cold_and_may_be_clean_and_sliced() -> None:
    state = after(("heat egg 1 with microwave 1", "You heat the egg 1 using the microwave 1."))
    state.update("clean egg 1 with sinkbasin 1", "You clean the egg 1 using the sinkbasin 1.")
    state.update("slice egg 1 with knife 1", "You sliced the egg 1 with the knife 1.")
    assert state.marks == {"egg_1": {"hot", "clean", "sliced"}}
    state.update("cool egg 1 with fridge 1", "You cool the egg 1 using the fridge 1.")
    assert state.marks == {"egg_1": {"cold", "clean", "sliced"}}


@pytest.mark.parametrize(
    ("command", "skill"),
    [
        ("go to cabinet 10", "go to cabinet 10"), ("open cabinet 1", "open cabinet 1"),
        ("close cabinet 1", "close cabinet 1"), ("take cup 1 from cabinet 1", "pick up cup 1"),
        ("move cup 1 to cabinet 1", "put cup 1 in cabinet 1"),
        ("put cup 1 in/on cabinet 1", "put cup 1 in cabinet 1"),
        ("slice apple 1 with butterknife 2", "slice apple 1"), ("use desklamp 1", "turn on desklamp 1"),
        *((command, None) for command in ("look", "inventory", "help", "examine cup 1", "cool cup 1 with fridge 1")),
    ],
)  # fmt: skip
def test_commands_are_translated_to_skills(command: str, skill: str | None) -> None:
    assert skill_of(command) == skill


def test_every_treatment_has_its_appliance() -> None:
    places = [f"{treatment.appliance.lower()}_3" for treatment in TREATMENTS]
    assert [treatment_at(place) for place in places] == list(TREATMENTS)
    skills = [treatment.start_skill(place) for treatment, place in zip(TREATMENTS, places, strict=True)]
    assert skills == ["turn on microwave 3", "close fridge 3", "turn on faucet 3"]
    assert treatment_at("cabinet_1") is None and treatment_at(None) is None


@dataclass
class Thing:
    name: str | None
    id: str = "mug_1"
    indefinite: str = "a"
    synonyms: Any = ()

    def load(self) -> str:
        return "loaded"


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("o.name", "mug 1"), ("o.indefinite + ' ' + o.name", "a mug 1"), ("r.name or r.id", "mug_1"),
        (" o.name ", "mug 1"), ("'text'", "text"),
    ],
)  # fmt: skip
def test_allowed_expressions_are_evaluated(text: str, value: str) -> None:
    assert read_expression(text, {"o": Thing("mug 1"), "r": Thing(None)}) == value


@pytest.mark.parametrize(
    "text",
    [
        "__import__('os').system('ls')", "open('x', 'w')", "o.__class__", "o.load", "o.load()", "o.synonyms",
        "o.name.format", "context['variables']", "self.expression", "[x for x in ()]", "f'{o.name}'", "'a' * 10",
        "1 + 1", "lambda: 1", "unknown.name", "o.weight", "o.name +", "(" * 200 + ")" * 200,
        "o.name" + " + o.name" * 200,
    ],
)  # fmt: skip
def test_other_expressions_are_refused(text: str) -> None:
    with pytest.raises(DataError, match="restore the game's file"):
        read_expression(text, {"o": Thing("mug 1")})

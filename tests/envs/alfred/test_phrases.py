"""Instructions: varied, grammatical, unambiguous, reproducible; and ALFRED's annotations with goals as keywords."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from random import Random

import pytest

from envs.alfred.data.trajectories import Corpus
from envs.alfred.houses.drawing import TASK_TYPES
from envs.alfred.houses.generator import generate_episode
from envs.alfred.language.lessons import Annotation, annotations
from envs.alfred.language.names import NAMES, names_for, plural
from envs.alfred.language.phrases import all_phrasings, phrase
from envs.alfred.objects import LOTA_PICKUPABLE
from envs.alfred.scene import Task
from keep_agent.errors import DataError
from tests.envs.alfred import trials


@pytest.mark.parametrize("task_type", TASK_TYPES)
def test_at_least_twelve_phrasings_each(task_type: str) -> None:
    task = generate_episode(3, task_type=task_type).tasks[0]
    assert len(set(all_phrasings(task))) >= 12
    if task_type != "look_at_obj_in_light":
        cut = all_phrasings(replace(task, object_target="Apple", sliced=True))
        assert all(re.search("slice|piece|cut", sentence) for sentence in cut)


def test_names_and_sentences_are_complete_clean_varied_and_reproducible() -> None:
    assert set(NAMES) >= LOTA_PICKUPABLE
    for seed in range(300):
        sentence = generate_episode(seed).tasks[0].instruction
        assert not re.search(r"[\[\]{}]|  |\ba [aeio]|\ban [^aeiou]| (up|off|down) it", sentence), sentence
    with pytest.raises(DataError, match="juggle"):
        phrase(Task("juggle", "Mug"), Random(0))
    task = Task("pick_heat_then_place_in_recep", "Mug", "Fridge")
    assert phrase(task, Random(5)) == phrase(task, Random(5))
    sentences = {phrase(task, Random(seed)) for seed in range(200)}
    assert len(sentences) > 120
    assert {word for word in ("fridge", "refrigerator", "warm", "microwave") if any(word in s for s in sentences)} == {
        "fridge", "refrigerator", "warm", "microwave",
    }  # fmt: skip
    assert "table" in names_for("SideTable", frozenset({"SideTable", "Desk"}))
    assert "table" not in names_for("SideTable", frozenset({"SideTable", "DiningTable"}))
    task = Task("look_at_obj_in_light", "Mug", toggle_target="DeskLamp")
    present = frozenset({"DeskLamp", "FloorLamp", "Cup", "Mug"})
    for seed in range(100):
        sentence = phrase(task, Random(seed), present).lower()
        for names in ("desk lamp|table lamp|small lamp", "mug|coffee cup"):
            assert re.search(names, sentence), sentence


@pytest.mark.parametrize(
    ("singular", "plural_form"),
    [("knife", "knives"), ("bar of soap", "bars of soap"), ("box of tissues", "boxes of tissues"), ("watch", "watches"),
     ("potato", "potatoes"), ("lettuce", "heads of lettuce"), ("slice of bread", "slices of bread"), ("key", "keys")],
)  # fmt: skip
def test_plurals(singular: str, plural_form: str) -> None:
    assert plural(singular) == plural_form


def lessons(tmp_path: Path, *contents: object) -> list[Annotation]:
    trials.write(tmp_path, "train", list(contents))
    return list(annotations(Corpus(tmp_path), "train"))


def test_steps_have_a_meaning_unless_texts_and_steps_differ_in_number(tmp_path: Path) -> None:
    steps = trials.pick(0, "Book", (1.0, 1.0, 1.0), None), trials.toggle(1)
    first, second = lessons(tmp_path, trials.trial("trial_a", [], *steps[0], *steps[1]))
    assert (first.text, first.goal) == ("Put a book on the bed.", "find book put bed")
    assert first.steps == (("PickupObject number 1", "find book"), ("ToggleObject number 2", "turn desklamp"))
    assert second == Annotation("move the book", "find book put bed", ())


@pytest.mark.parametrize(
    ("kind", "params", "goal"),
    [
        ("pick_two_obj_and_place", {}, "find book put bed find book put bed"),
        (
            "pick_heat_then_place_in_recep",
            {"object_target": "Egg", "object_sliced": True},
            "slice egg find egg heat egg put bed",
        ),
        ("pick_and_place_with_movable_recep", {"mrecep_target": "Box"}, "find book put box find box put bed"),
        ("look_at_obj_in_light", {"parent_target": "", "toggle_target": "DeskLamp"}, "find book turn desklamp"),
    ],
)
def test_a_goal_is_a_row_of_steps(tmp_path: Path, kind: str, params: dict[str, object], goal: str) -> None:
    steps = trials.pick(0, "Book", (1.0, 1.0, 1.0), None)
    contents = lessons(tmp_path, trials.trial("trial_a", [], *steps, task_type=kind, params=params))
    assert {annotation.goal for annotation in contents} == {goal}

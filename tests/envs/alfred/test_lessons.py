"""ALFRED's annotations beside their meaning."""

from __future__ import annotations

from pathlib import Path

import pytest

from envs.alfred.data.trajectories import Corpus
from envs.alfred.language.lessons import Annotation, annotations
from tests.envs.alfred import trials


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

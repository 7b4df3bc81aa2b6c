"""Annotations of ALFRED: people's descriptions of tasks and steps, each with a meaning such as "heat mug"."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from envs.alfred.data.official import make_task
from envs.alfred.data.trajectories import Corpus, guarded_read
from envs.alfred.goals import TREATMENTS
from envs.alfred.scene import Task

_VERBS = {
    "GotoLocation": "go", "PickupObject": "find", "PutObject": "put", "CleanObject": "clean", "HeatObject": "heat",
    "CoolObject": "cool", "SliceObject": "slice", "ToggleObject": "turn",
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Annotation:
    """One annotation: the task's instruction, its goal as plain words, and for each step (text, meaning)."""

    text: str
    goal: str
    steps: tuple[tuple[str, str], ...]


def goal_words(task: Task) -> str:
    """Return a task's goal as steps in a fixed order: "find mug heat mug put coffeemachine"."""
    thing, place = task.object_target.lower(), task.parent_target.lower()
    steps = [f"slice {thing}"] if task.sliced else []
    steps.append(f"find {thing}")
    if treatment := TREATMENTS.get(task.type):
        steps.append(f"{treatment.verb} {thing}")
    if carrier := task.mrecep_target.lower():
        steps += [f"put {carrier}", f"find {carrier}"]
    steps.append(f"put {place}" if place else f"turn {task.toggle_target.lower()}")
    return " ".join(steps * 2 if task.type == "pick_two_obj_and_place" else steps)


def annotations(corpus: Corpus, split: str) -> Iterator[Annotation]:
    """Yield every annotation of a split. Raises DataError for damaged files."""
    for file, content in corpus.sources[split].playable():
        yield from guarded_read(file, _annotations, content)


def _annotations(content: Mapping[str, Any]) -> list[Annotation]:
    goal = goal_words(make_task(content["task_type"], content["pddl_params"]))
    actions = [entry["discrete_action"] for entry in content["plan"]["high_pddl"]]
    meanings = [_step_of(action) for action in actions if action["action"] in _VERBS]
    annotations = []
    for note in content["turk_annotations"]["anns"]:
        texts = note["high_descs"]
        fits = len(texts) == len(meanings)  # if not, texts and steps cannot be paired
        steps = zip(map(_line, texts), meanings, strict=True) if fits else ()
        pairs = tuple((text, meaning) for text, meaning in steps if meaning)
        annotations.append(Annotation(_line(note["task_desc"]), goal, pairs))
    return annotations


def _line(text: str) -> str:
    return " ".join(text.split())


def _step_of(action: Mapping[str, Any]) -> str:
    """Return the meaning of an action, such as "put diningtable", or "" if the demonstration names no thing."""
    things = [thing for thing in action["args"] if thing]
    return f"{_VERBS[action['action']]} {things[-1]}" if things else ""

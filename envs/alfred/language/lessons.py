"""What ALFRED's annotators wrote, and what it means: a task's goal, and what each of their step-by-step instructions
asks for. Types have the names of the memory lines ("alarmclock").
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from envs.alfred.data.official import make_task
from envs.alfred.data.trajectories import Corpus, guarded_read
from envs.alfred.scene import Task
from envs.alfred.targets import TREATMENTS

_VERBS = {
    "GotoLocation": "go",
    "PickupObject": "find",
    "PutObject": "put",
    "CleanObject": "clean",
    "HeatObject": "heat",
    "CoolObject": "cool",
    "SliceObject": "slice",
    "ToggleObject": "turn",
}


@dataclass(frozen=True, slots=True)
class Told:
    """One annotation: the task with its goal, the steps with what each asks for."""

    text: str
    goal: str
    steps: tuple[tuple[str, str], ...]


def asked_for(task: Task) -> str:
    """What a task asks for, as a row of steps, always in the same order: "find mug heat mug put coffeemachine"."""
    thing, place = task.object_target.lower(), task.parent_target.lower()
    steps = [f"slice {thing}"] if task.sliced else []
    steps.append(f"find {thing}")
    if treatment := TREATMENTS.get(task.type):
        steps.append(f"{treatment.verb} {thing}")
    if carrier := task.mrecep_target.lower():
        steps += [f"put {carrier}", f"find {carrier}"]
    steps.append(f"put {place}" if place else f"turn {task.toggle_target.lower()}")
    return " ".join(steps * 2 if task.type == "pick_two_obj_and_place" else steps)


def told(corpus: Corpus, split: str) -> Iterator[Told]:
    """Return every annotation of a split. Raises DataError for damaged files."""
    for file, content in corpus.sources[split].playable():
        yield from guarded_read(file, _annotations, content)


def _annotations(content: Mapping[str, Any]) -> list[Told]:
    goal = asked_for(make_task(content["task_type"], content["pddl_params"]))
    actions = [entry["discrete_action"] for entry in content["plan"]["high_pddl"]]
    asked = [_asked(action) for action in actions if action["action"] in _VERBS]
    found = []
    for note in content["turk_annotations"]["anns"]:
        texts = note["high_descs"]
        fits = len(texts) == len(asked)  # else nobody knows which is about which
        steps = zip(map(_line, texts), asked, strict=True) if fits else ()
        found.append(Told(_line(note["task_desc"]), goal, tuple((text, said) for text, said in steps if said)))
    return found


def _line(text: str) -> str:
    return " ".join(text.split())


def _asked(action: Mapping[str, Any]) -> str:
    """ "put diningtable"; "" where the demonstration does not say with what."""
    named = [one for one in action["args"] if one]
    return f"{_VERBS[action['action']]} {named[-1]}" if named else ""

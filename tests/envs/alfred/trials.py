"""Small json_2.1.0 trees: one bedroom with a desk, a bed, a drawer and a lamp, and any number of trials."""

from __future__ import annotations

import json
import tarfile
from pathlib import Path
from typing import Any

DESK = ("Desk", (2.0, 0.0, 1.0))
BED = ("Bed", (-2.0, 0.0, 1.0))
DRAWER = ("Drawer", (2.0, 0.5, 3.0))
LAMP = "DeskLamp|+02.00|+00.80|+01.20"
ON_DESK = (2.1, 0.75, 1.1)
ON_BED = (-2.2, 0.6, 1.2)
IN_DRAWER = (2.02, 0.46, 3.03)

Place = tuple[str, tuple[float, float, float]]


def official(kind: str, position: tuple[float, float, float]) -> str:
    """Return AI2-THOR's id of an object at a position whose numbers need no rounding."""
    return "|".join((kind, *(f"{value:+06.2f}" for value in position)))


def four(place: Place) -> list[Any]:
    """Return a place as high_pddl writes it: [type, [4x, 4x, 4z, 4z, 4y, 4y]]."""
    kind, (x, y, z) = place
    return [kind, [4 * x, 4 * x, 4 * z, 4 * z, 4 * y, 4 * y]]


def pick(number: int, kind: str, position: tuple[float, float, float], place: Place | None) -> list[dict[str, Any]]:
    """Return the steps of one pick-up; ``number`` is its high_idx."""
    thing = official(kind, position)
    action: dict[str, Any] = {"action": "PickupObject", "objectId": thing}
    if place is not None:
        action["coordinateReceptacleObjectId"] = four(place)
    low = [{"api_action": {"action": "PickupObject", "objectId": thing}, "high_idx": number}]
    if place is not None and place[0] == "Drawer":
        low.insert(0, {"api_action": {"action": "OpenObject", "objectId": official(*place)}, "high_idx": number})
    discrete = {"action": "PickupObject", "args": [kind.lower()]}
    return [{"planner_action": action, "discrete_action": discrete, "high_idx": number}, *low]


def trial(name: str, poses: list[Place], *steps: dict[str, Any], **changes: Any) -> Any:
    """Return a traj_data.json with steps of `pick` and `toggle`; its task needs the book, else the first object."""
    kinds = [kind for kind, _ in poses]
    target = "Book" if "Book" in kinds or not kinds else kinds[0]
    task = {"object_target": target, "parent_target": "Bed", "toggle_target": "", "mrecep_target": ""}
    high = [step for step in steps if "planner_action" in step]
    texts = [f"{step['discrete_action']['action']} number {number}" for number, step in enumerate(high, 1)]
    scene = {
        "floor_plan": "FloorPlan301",
        "init_action": {"x": 0.5, "y": 0.9, "z": -0.25},
        "object_toggles": changes.get("toggles", []),
        "object_poses": [{"objectName": f"{k}_0a1b", "position": {"x": x, "y": y, "z": z}} for k, (x, y, z) in poses],
    }
    first = {"task_desc": "Put a book on the bed. ", "high_descs": texts}
    second = {"task_desc": "move the book", "high_descs": [*texts, "then rest"]}
    return {
        "task_id": name, "task_type": changes.get("task_type", "pick_and_place_simple"),
        "pddl_params": {**task, "object_sliced": False, **changes.get("params", {})}, "scene": scene,
        "turk_annotations": {"anns": [first, second]},
        "plan": {"high_pddl": high, "low_actions": [step for step in steps if "api_action" in step]},
    }  # fmt: skip


def toggle(number: int) -> list[dict[str, Any]]:
    """Return the steps that switch the lamp on."""
    planner = {"action": "ToggleObject", "objectId": LAMP}
    discrete = {"action": "ToggleObject", "args": ["desklamp"]}
    return [
        {"planner_action": planner, "discrete_action": discrete, "high_idx": number},
        {"api_action": {"action": "ToggleObjectOn", "objectId": LAMP}, "high_idx": number},
    ]


def usual() -> list[Any]:
    """Return three trials whose demonstrations show the desk, the bed, the drawer and the lamp."""
    poses = [("Book", ON_DESK), ("Pen", IN_DRAWER), ("Pillow", ON_BED)]
    return [
        trial("trial_a", poses, *pick(0, "Book", ON_DESK, DESK), *toggle(1)),
        trial("trial_b", poses, *pick(0, "Pillow", ON_BED, BED), *pick(1, "Book", ON_DESK, DESK)),
        trial("trial_c", poses, *pick(0, "Pen", IN_DRAWER, DRAWER)),
    ]


def write(root: Path, split: str, trials: list[Any]) -> list[Path]:
    """Write root/SPLIT/TASK/TRIAL/traj_data.json for every trial and return the paths."""
    paths = [root / split / "task-1" / content["task_id"] / "traj_data.json" for content in trials]
    for path, content in zip(paths, trials, strict=True):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(content), encoding="utf-8")
    return paths


def pack(root: Path, split: str) -> Path:
    """Pack root/SPLIT into root/SPLIT.tar.gz; the folder stays."""
    archive = root / f"{split}.tar.gz"
    with tarfile.open(archive, "w:gz") as file:
        file.add(root / split, arcname=split)
    return archive

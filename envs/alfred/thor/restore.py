"""Restoration of an ALFRED trial's initial state in a room of AI2-THOR 5.

ALFRED's trials were recorded on AI2-THOR 2.1, and their ``object_poses`` name objects of that version. Version 5 has
other names and ids, and SetObjectPoses first removes everything that can be picked up or moved, then restores the
listed objects. Poses are therefore assigned to the existing instances, type by type. If a type has more poses than
instances, its last instance is listed for all remaining poses, and AI2-THOR copies it. All other objects are listed at
their current poses. The result is checked afterwards.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from math import dist, inf
from typing import Any

from envs.alfred.objects import TOGGLEABLE
from envs.alfred.scene import ObjectPose, Position, Start, xyz
from envs.alfred.thor.client import Reply, ThorClient
from envs.alfred.thor.poses import Pose
from envs.alfred.thor.reading import Entry, kind_of, position_of

log = logging.getLogger(__name__)

MAX_DISTANCE = 0.3  # metres from a pose within which its object counts as placed
CENTIMETRE = 0.01  # metres


@dataclass(frozen=True, slots=True)
class RestoreReport:
    """Deviations from a trial's initial state: missing types, misplaced objects and refused actions."""

    pose_count: int  # number of the object poses that the trial lists
    missing_types: tuple[str, ...] = ()  # types of these poses that the room lacks
    misplaced_types: tuple[str, ...] = ()  # the type of each pose without an object of that type within MAX_DISTANCE
    refusals: tuple[str, ...] = ()  # refused actions with AI2-THOR's messages

    def notes(self) -> dict[str, Any]:
        """Return the deviations for the episode's trace; empty if there are none."""
        lists = {"absent": self.missing_types, "strayed": self.misplaced_types, "refused": self.refusals}
        deviations = {name: list(value) for name, value in lists.items() if value}
        return {"posed": self.pose_count, **deviations} if deviations else {}


def restore(thor: ThorClient, start: Start, initial: Reply) -> RestoreReport:
    """Set up a room; ``initial`` is the reply to its reset. The report lists refused actions. Raises `ThorError`."""
    refusals: list[str] = []

    def ask(action: str, **arguments: Any) -> Reply:
        reply = thor.step(action, **arguments)
        if not reply.ok:
            refusals.append(f"{action}: {reply.message.strip().partition(chr(10))[0]}")
        return reply

    entries = initial.objects
    present = {kind_of(entry) for entry in entries}
    missing = sorted({pose.type for pose in start.objects} - present)
    poses = list(object_poses(start.objects, entries))
    if poses:
        ask("SetObjectPoses", objectPoses=poses, placeStationary=True)
    reply = thor.require("Pass")
    for action, arguments in state_actions(start, reply.objects):
        ask(action, **arguments)
    pose = Pose(*start.agent, start.rotation, start.horizon).arguments()
    if not ask("Teleport", **pose).ok:  # for example, because the height does not fit AI2-THOR 5's floor
        ask("Teleport", **pose, forceAction=True)
    reply = thor.require("Pass")
    misplaced = misplaced_types(start.objects, reply.objects, missing)
    report = RestoreReport(len(start.objects), tuple(missing), tuple(misplaced), tuple(refusals))
    if report.notes():
        log.warning("this start differs from the trial's: %s", report.notes())
    return report


def object_poses(poses: Sequence[ObjectPose], entries: Sequence[Entry]) -> Iterator[dict[str, Any]]:
    """Yield poses for SetObjectPoses: the trial's for existing instances, the current ones for all other objects.

    AI2-THOR forms an id from type and position in centimetres, and keeps one object per id, so positions must differ.
    """
    movable = [entry for entry in entries if entry["pickupable"] or entry["moveable"]]
    by_kind: dict[str, list[Entry]] = {}
    for entry in sorted(movable, key=lambda entry: str(entry["name"])):
        by_kind.setdefault(kind_of(entry), []).append(entry)
    occupied: set[tuple[str, Position]] = set()
    last_number: dict[str, int] = {}
    for pose in poses:
        instances = by_kind.get(pose.type)
        if instances:
            number = last_number[pose.type] = last_number.get(pose.type, -1) + 1
            place = _free_place(pose.type, pose.position, occupied)
            yield _pose(instances[min(number, len(instances) - 1)]["name"], place, pose.rotation)
    for kind, instances in by_kind.items():
        for entry in instances[last_number.get(kind, -1) + 1 :]:
            rotation = entry["rotation"]
            place = _free_place(kind, position_of(entry), occupied)
            yield _pose(entry["name"], place, (rotation["x"], rotation["y"], rotation["z"]))


def _free_place(kind: str, place: Position, occupied: set[tuple[str, Position]]) -> Position:
    """Return the place, raised by centimetres until no other object of the type has it."""
    x, y, z = place
    while (key := (kind, (round(x, 2), round(y, 2), round(z, 2)))) in occupied:
        y += CENTIMETRE
    occupied.add(key)
    return x, y, z


def _pose(name: str, position: Position, rotation: Position) -> dict[str, Any]:
    return {"objectName": name, "position": xyz(position), "rotation": xyz(rotation)}


def state_actions(start: Start, entries: Sequence[Entry]) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield the actions that switch devices, and make things dirty or empty, as the trial's start requires."""
    toggles = dict(start.toggles)
    for entry in entries:
        kind = kind_of(entry)
        on = toggles.get(kind, False)
        arguments = {"objectId": entry["objectId"], "forceAction": True}
        if kind in TOGGLEABLE and entry["toggleable"] and entry["isToggled"] != on:
            yield "ToggleObjectOn" if on else "ToggleObjectOff", arguments
        if start.dirty_and_empty and entry["dirtyable"] and not entry["isDirty"]:
            yield "DirtyObject", arguments
        if start.dirty_and_empty and entry["canFillWithLiquid"] and entry["isFilledWithLiquid"]:
            yield "EmptyLiquidFromObject", arguments


def misplaced_types(poses: Sequence[ObjectPose], entries: Sequence[Entry], missing: Collection[str]) -> list[str]:
    """Return the type of each pose without an object of that type within `MAX_DISTANCE`, except ``missing`` types."""
    places: dict[str, list[Position]] = {}
    for entry in entries:
        places.setdefault(kind_of(entry), []).append(position_of(entry))
    distances = ((pose.type, [dist(pose.position, place) for place in places.get(pose.type, ())]) for pose in poses)
    return [kind for kind, offsets in distances if kind not in missing and min(offsets, default=inf) > MAX_DISTANCE]

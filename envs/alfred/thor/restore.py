"""Puts the objects of an ALFRED trial into a room of AI2-THOR 5.

ALFRED's trials were recorded on AI2-THOR 2.1. There ``object_poses`` name objects of that build. In 5 names and ids are
others, and SetObjectPoses first takes away everything that can be picked up or moved, then puts back what is listed.
So poses are given to the instances that are there, type by type; a type that is there once and posed twice is copied
(the second pose names the same object); and everything else is listed where it is. What became of it is looked up
afterwards.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from math import dist
from typing import Any

from envs.alfred.objects import TOGGLEABLE
from envs.alfred.scene import ObjectPose, Position, Start, xyz
from envs.alfred.thor.client import Reply, Thor
from envs.alfred.thor.poses import Pose
from envs.alfred.thor.reading import Entry, kind_of, position_of

log = logging.getLogger(__name__)

STRAYED = 0.3  # metres from where it was put
CENTIMETRE = 0.01  # metres


@dataclass(frozen=True, slots=True)
class Restored:
    """How a trial's start came out: what the build does not have, and what is not where it was put."""

    posed: int  # poses of the trial
    absent: tuple[str, ...] = ()  # types that the room does not have
    strayed: tuple[str, ...] = ()  # types of objects found elsewhere
    refused: tuple[str, ...] = ()  # actions the build refused, with its words

    def notes(self) -> dict[str, Any]:
        """For a trace; empty if everything is as the trial says."""
        lists = {"absent": self.absent, "strayed": self.strayed, "refused": self.refused}
        named = {name: list(value) for name, value in lists.items() if value}
        return {"posed": self.posed, **named} if named else {}


def restore(thor: Thor, start: Start, fresh: Reply) -> Restored:
    """Set a room that was just reset up for a trial. Raises `ThorError`; what the build refuses is only noted."""
    refused: list[str] = []

    def ask(action: str, **arguments: Any) -> Reply:
        reply = thor.step(action, **arguments)
        if not reply.ok:
            refused.append(f"{action}: {reply.message.strip().partition(chr(10))[0]}")
        return reply

    entries = fresh.objects
    present = {kind_of(one) for one in entries}
    absent = sorted({pose.type for pose in start.objects} - present)
    poses = list(object_poses(start.objects, entries))
    if poses:
        ask("SetObjectPoses", objectPoses=poses, placeStationary=True)
    reply = thor.insist("Pass")
    for action, arguments in state_actions(start, reply.objects):
        ask(action, **arguments)
    _stand(ask, start)
    reply = thor.insist("Pass")
    found = Restored(
        len(start.objects), tuple(absent), tuple(strayed(start.objects, reply.objects, absent)), tuple(refused)
    )
    if found.notes():
        log.warning("this start is not quite the trial's: %s", found.notes())
    return found


def object_poses(wanted: Sequence[ObjectPose], entries: Sequence[Entry]) -> Iterator[dict[str, Any]]:
    """Return poses for SetObjectPoses: the trial's for the instances that are there, and for all others those they have.

    Ids are made of types and places in centimetres, and of two that are equal one is lost: so no two of a type may lie
    in the same place.
    """
    movable = [one for one in entries if one["pickupable"] or one["moveable"]]
    by_kind: dict[str, list[Entry]] = {}
    for one in sorted(movable, key=lambda one: str(one["name"])):
        by_kind.setdefault(kind_of(one), []).append(one)
    taken: set[tuple[str, Position]] = set()
    used: dict[str, int] = {}
    for pose in wanted:
        there = by_kind.get(pose.type)
        if there:
            number = used[pose.type] = used.get(pose.type, -1) + 1
            place = _free(pose.type, pose.position, taken)
            yield _pose(there[min(number, len(there) - 1)]["name"], place, pose.rotation)
    for kind, there in by_kind.items():
        for one in there[used.get(kind, -1) + 1 :]:
            turned = one["rotation"]
            place = _free(kind, position_of(one), taken)
            yield _pose(one["name"], place, (turned["x"], turned["y"], turned["z"]))


def _free(kind: str, place: Position, taken: set[tuple[str, Position]]) -> Position:
    """Return the place, or one just above it that no other of the kind has."""
    x, y, z = place
    while (mark := (kind, (round(x, 2), round(y, 2), round(z, 2)))) in taken:
        y += CENTIMETRE
    taken.add(mark)
    return x, y, z


def _pose(name: str, position: Position, rotation: Position) -> dict[str, Any]:
    return {"objectName": name, "position": xyz(position), "rotation": xyz(rotation)}


def state_actions(start: Start, entries: Sequence[Entry]) -> Iterator[tuple[str, dict[str, Any]]]:
    """Per object: lamps as the trial wants them, everything else that could be on off; dirt and water of clean tasks.

    2.1 had bulk actions for this. Of those 5 has SetObjectStates alone, for all objects of a type and not for lamps.
    """
    wanted = dict(start.toggles)
    for one in entries:
        kind = kind_of(one)
        on = wanted.get(kind, False)
        if kind in TOGGLEABLE and one["toggleable"] and one["isToggled"] != on:
            yield "ToggleObjectOn" if on else "ToggleObjectOff", _forced(one)
        if start.dirty_and_empty and one["dirtyable"] and not one["isDirty"]:
            yield "DirtyObject", _forced(one)
        if start.dirty_and_empty and one["canFillWithLiquid"] and one["isFilledWithLiquid"]:
            yield "EmptyLiquidFromObject", _forced(one)


def _forced(entry: Entry) -> dict[str, Any]:
    return {"objectId": entry["objectId"], "forceAction": True}


def _stand(ask: Any, start: Start) -> None:
    """Where the trial begins; the agent's height is the build's business."""
    arguments = Pose(*start.agent, start.rotation, start.horizon).arguments()
    if not ask("Teleport", **arguments).ok:
        ask("Teleport", **arguments, forceAction=True)


def strayed(wanted: Sequence[ObjectPose], entries: Sequence[Entry], absent: Iterable[str]) -> list[str]:
    """Return types of poses with no object of that type near them."""
    missing = set(absent)
    return [
        pose.type
        for pose in wanted
        if pose.type not in missing
        and all(dist(pose.position, position_of(one)) > STRAYED for one in entries if kind_of(one) == pose.type)
    ]

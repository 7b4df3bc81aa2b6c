"""The stand-in without its process: many things put elsewhere at once."""

from __future__ import annotations

from collections import Counter
from typing import Any

from envs.alfred.scene import Scene
from tests.envs.alfred.rooms import bedroom, kitchen
from tests.envs.alfred.thor.bench import Bench, Record


def loose(bench: Bench) -> list[Record]:
    """Return a pose for everything that could be picked up or moved, as it is."""
    return [
        {"objectName": one["name"], "position": one["position"], "rotation": one["rotation"]}
        for one in bench.objects()
        if one["pickupable"] or one["moveable"]
    ]


def shape(bench: Bench) -> list[tuple[Any, ...]]:
    kept = ("name", "objectType", "isOpen", "isToggled", "isDirty", "position")
    place_of = {one["objectId"]: one["name"] for one in bench.objects()}
    return [
        (*(one[key] for key in kept), [place_of[name] for name in one["parentReceptacles"] or ()])
        for one in bench.objects()
    ]


def test_posing_everything_where_it_is_changes_nothing(houses: list[Scene]) -> None:
    for scene in (*houses, kitchen(), bedroom()):
        bench = Bench(scene)
        before = shape(bench)
        if len({one["objectId"] for one in bench.objects()}) == len(_ids_by_place(bench)):
            bench.insist("SetObjectPoses", objectPoses=loose(bench))
            assert shape(bench) == before


def _ids_by_place(bench: Bench) -> set[tuple[Any, ...]]:
    return {(one["objectType"], *(round(value, 2) for value in one["position"].values())) for one in bench.objects()}


def test_what_is_not_listed_is_gone(cook: Bench) -> None:
    """Furniture that could be moved, too; what cannot be moved stays."""
    poses = [pose for pose in loose(cook) if pose["objectName"].startswith(("Mug", "Knife"))]
    cook.insist("SetObjectPoses", objectPoses=poses)
    left = Counter(one["objectType"] for one in cook.objects())
    assert left["Mug"] == left["Knife"] == 1 and left["Fridge"] == 1 and left["CounterTop"] == 2
    assert not {"Apple", "Pan", "Box", "Pencil", "Chair", "Microwave"} & left.keys()
    assert cook.one("Mug")["parentReceptacles"] == [cook.id("Cabinet")]


def test_a_name_twice_is_a_copy(cook: Bench) -> None:
    mug = cook.one("Mug")
    on_counter = {"x": 0.2, "y": 0.95, "z": 0.1}
    again = {"objectName": mug["name"], "position": on_counter, "rotation": {"x": 0, "y": 90, "z": 0}}
    poses = [*loose(cook), again]
    cook.insist("SetObjectPoses", objectPoses=poses)
    first, copy = cook.objects("Mug")
    assert first["name"] == mug["name"] and copy["name"] == f"{mug['name']}(Clone)_copy_{len(poses) - 1}"
    assert copy["objectId"] == "Mug|+00.21|+00.95|+00.10" != first["objectId"]
    assert copy["parentReceptacles"] == [cook.id("CounterTop")] and copy["rotation"]["y"] == 90
    cook.stand_at(copy["objectId"])
    cook.insist("PickupObject", objectId=copy["objectId"])


def test_a_name_nobody_has_fails_after_the_others_are_put(cook: Bench) -> None:
    lost = {"objectName": "Mug_00000000", "position": {"x": 0, "y": 1, "z": 0}, "rotation": {"x": 0, "y": 0, "z": 0}}
    poses = [pose for pose in loose(cook) if pose["objectName"].startswith("Knife")]
    message = cook.refusal("SetObjectPoses", objectPoses=[lost, *poses])
    assert message == "No Pickupable or Moveable object of name Mug_00000000 found in scene."
    assert [one["objectType"] for one in cook.objects() if one["pickupable"]] == ["Knife"]
    assert "was not initialized" in cook.refusal("SetObjectPoses", objectPoses=[])


def test_positions_decide_what_things_are_in(cook: Bench) -> None:
    def put(kind: str, x: float, y: float, z: float) -> Record:
        return {"objectName": cook.one(kind)["name"], "position": {"x": x, "y": y, "z": z}, "rotation": {}}

    moved = [put("Egg", 0.3, 0.92, 8.1), put("Knife", -6.0, 0.1, -6.0), put("Pan", 2.0, 0.92, 4.5), put("Mug", 0, 2, 5)]
    moved.append(put("Potato", 0.3, 0.95, 0.0))
    moved.append(put("Plate", 0.3, 0.92, 0.0))
    poses = {pose["objectName"]: pose for pose in (*loose(cook), *moved)}
    cook.insist("SetObjectPoses", objectPoses=list(poses.values()))
    parents = {kind: cook.one(kind)["parentReceptacles"] for kind in ("Egg", "Knife", "Pan", "Potato")}
    counter, second = (one["objectId"] for one in cook.objects("CounterTop"))
    assert parents["Egg"] == [second]
    assert parents["Knife"] == [cook.id("Floor")]
    assert parents["Pan"] == [cook.id("StoveBurner", 1)]
    assert parents["Potato"] == [cook.id("Plate"), counter]


def test_of_two_things_with_one_id_the_later_is_left(cook: Bench) -> None:
    mug = cook.one("Mug")
    twice = {"objectName": mug["name"], "position": mug["position"], "rotation": mug["rotation"]}
    cook.insist("SetObjectPoses", objectPoses=[*loose(cook), twice])
    (left,) = cook.objects("Mug")
    assert "_copy_" in left["name"]


def test_states_outlive_new_poses(cook: Bench) -> None:
    cook.insist("DirtyObject", objectId=cook.id("Plate"), forceAction=True)
    cook.insist("OpenObject", objectId=cook.id("Fridge"), forceAction=True)
    cook.insist("SliceObject", objectId=cook.id("Apple"), forceAction=True)
    uncut = [pose for pose in loose(cook) if pose["objectName"] != cook.one("Apple", 0)["name"] or not _cut(cook)]
    cook.ask("SetObjectPoses", objectPoses=uncut)
    assert cook.one("Plate")["isDirty"] and cook.one("Fridge")["isOpen"]
    assert not any(one["isSliced"] for one in cook.objects())  # what was cut to pieces cannot be put back
    assert [one["objectId"].count("|") for one in cook.objects("AppleSliced")] == [3]  # all lay on one spot


def _cut(bench: Bench) -> bool:
    return any(one["isSliced"] for one in bench.objects("Apple"))

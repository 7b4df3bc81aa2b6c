"""Stand-in without its process: new poses for many things at once."""

from __future__ import annotations

from collections import Counter
from typing import Any

from envs.alfred.scene import Scene
from tests.envs.alfred.rooms import bedroom, kitchen
from tests.envs.alfred.thor.in_process import Record, Sim


def loose(sim: Sim) -> list[Record]:
    """Return the present poses of everything that can be picked up or moved."""
    return [
        {"objectName": entry["name"], "position": entry["position"], "rotation": entry["rotation"]}
        for entry in sim.objects()
        if entry["pickupable"] or entry["moveable"]
    ]


def shape(sim: Sim) -> list[tuple[Any, ...]]:
    keys = ("name", "objectType", "isOpen", "isToggled", "isDirty", "position")
    place_of = {entry["objectId"]: entry["name"] for entry in sim.objects()}
    return [
        (*(entry[key] for key in keys), [place_of[name] for name in entry["parentReceptacles"] or ()])
        for entry in sim.objects()
    ]


def test_posing_everything_where_it_is_changes_nothing(houses: list[Scene]) -> None:
    for scene in (*houses, kitchen(), bedroom()):
        sim = Sim(scene)
        before = shape(sim)
        places = {(entry["objectType"], *(round(x, 2) for x in entry["position"].values())) for entry in sim.objects()}
        if len({entry["objectId"] for entry in sim.objects()}) == len(places):
            sim.insist("SetObjectPoses", objectPoses=loose(sim))
            assert shape(sim) == before


def test_unlisted_things_are_removed(sim: Sim) -> None:
    """Movable furniture is removed as well; fixed furniture stays."""
    poses = [pose for pose in loose(sim) if pose["objectName"].startswith(("Mug", "Knife"))]
    sim.insist("SetObjectPoses", objectPoses=poses)
    counts = Counter(entry["objectType"] for entry in sim.objects())
    assert counts["Mug"] == counts["Knife"] == 1 and counts["Fridge"] == 1 and counts["CounterTop"] == 2
    assert not {"Apple", "Pan", "Box", "Pencil", "Chair", "Microwave"} & counts.keys()
    assert sim.entry("Mug")["parentReceptacles"] == [sim.id("Cabinet")]


def test_a_name_twice_is_a_copy(sim: Sim) -> None:
    mug = sim.entry("Mug")
    on_counter = {"x": 0.2, "y": 0.95, "z": 0.1}
    again = {"objectName": mug["name"], "position": on_counter, "rotation": {"x": 0, "y": 90, "z": 0}}
    poses = [*loose(sim), again]
    sim.insist("SetObjectPoses", objectPoses=poses)
    first, copy = sim.objects("Mug")
    assert first["name"] == mug["name"] and copy["name"] == f"{mug['name']}(Clone)_copy_{len(poses) - 1}"
    assert copy["objectId"] == "Mug|+00.21|+00.95|+00.10" != first["objectId"]
    assert copy["parentReceptacles"] == [sim.id("CounterTop")] and copy["rotation"]["y"] == 90
    sim.stand_at(copy["objectId"])
    sim.insist("PickupObject", objectId=copy["objectId"])


def test_an_unknown_name_fails_after_all_others_are_placed(sim: Sim) -> None:
    unknown = {"objectName": "Mug_00000000", "position": {"x": 0, "y": 1, "z": 0}, "rotation": {"x": 0, "y": 0, "z": 0}}
    poses = [pose for pose in loose(sim) if pose["objectName"].startswith("Knife")]
    message = sim.refusal("SetObjectPoses", objectPoses=[unknown, *poses])
    assert message == "No Pickupable or Moveable object of name Mug_00000000 found in scene."
    assert [entry["objectType"] for entry in sim.objects() if entry["pickupable"]] == ["Knife"]
    assert "was not initialized" in sim.refusal("SetObjectPoses", objectPoses=[])


def test_positions_decide_the_receptacle(sim: Sim) -> None:
    def put(kind: str, x: float, y: float, z: float) -> Record:
        return {"objectName": sim.entry(kind)["name"], "position": {"x": x, "y": y, "z": z}, "rotation": {}}

    moves = [put("Egg", 0.3, 0.92, 8.1), put("Knife", -6.0, 0.1, -6.0), put("Pan", 2.0, 0.92, 4.5), put("Mug", 0, 2, 5)]
    moves += [put("Potato", 0.3, 0.95, 0.0), put("Plate", 0.3, 0.92, 0.0)]
    poses = {pose["objectName"]: pose for pose in (*loose(sim), *moves)}
    sim.insist("SetObjectPoses", objectPoses=list(poses.values()))
    parents = {kind: sim.entry(kind)["parentReceptacles"] for kind in ("Egg", "Knife", "Pan", "Potato")}
    counter, second = (entry["objectId"] for entry in sim.objects("CounterTop"))
    assert parents["Egg"] == [second] and parents["Knife"] == [sim.id("Floor")]
    assert parents["Pan"] == [sim.id("StoveBurner", 1)] and parents["Potato"] == [sim.id("Plate"), counter]


def test_of_two_things_with_the_same_id_the_later_remains(sim: Sim) -> None:
    mug = sim.entry("Mug")
    twice = {"objectName": mug["name"], "position": mug["position"], "rotation": mug["rotation"]}
    sim.insist("SetObjectPoses", objectPoses=[*loose(sim), twice])
    (copy,) = sim.objects("Mug")
    assert "_copy_" in copy["name"]


def test_states_survive_new_poses(sim: Sim) -> None:
    sim.insist("DirtyObject", objectId=sim.id("Plate"), forceAction=True)
    sim.insist("OpenObject", objectId=sim.id("Fridge"), forceAction=True)
    sim.insist("SliceObject", objectId=sim.id("Apple"), forceAction=True)
    cut = {entry["name"] for entry in sim.objects("Apple") if entry["isSliced"]}
    assert cut
    sim.ask("SetObjectPoses", objectPoses=[pose for pose in loose(sim) if pose["objectName"] not in cut])
    assert sim.entry("Plate")["isDirty"] and sim.entry("Fridge")["isOpen"]
    assert not any(entry["isSliced"] for entry in sim.objects())  # a cut object cannot be restored
    (piece,) = sim.objects("AppleSliced")  # all slices had the same position
    assert piece["objectId"].count("|") == 3

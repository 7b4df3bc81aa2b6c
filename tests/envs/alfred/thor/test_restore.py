"""Poses of ALFRED's trials for the objects of another build."""

from __future__ import annotations

from envs.alfred.scene import ObjectPose, Start
from envs.alfred.thor.restore import RestoreReport, object_poses, state_actions, strayed
from tests.envs.alfred.thor.entries import entry, thing

MUG, PEN, CHAIR = "Mug|+01.00|+01.00|+00.00", "Pen|+02.00|+01.00|+00.00", "Chair|+03.00|+00.00|+00.00"
NOWHERE = (0.0, 0.0, 0.0)


def pose(name: str, x: float) -> ObjectPose:
    return ObjectPose(name, (x, 1.0, 0.0), (0.0, 90.0, 0.0))


def test_poses_are_assigned_to_instances_of_the_type_and_other_objects_stay() -> None:
    room = [entry("Fridge|-01.00|+00.00|+02.00"), thing(MUG), thing(PEN), entry(CHAIR, moveable=True)]
    poses = list(object_poses([pose("Mug_0a1b", 5.0), pose("Mug_0a1b", 6.0)], room))
    mug, pen, chair = room[1]["name"], room[2]["name"], room[3]["name"]
    assert [(pose["objectName"], pose["position"]["x"]) for pose in poses] == [
        (mug, 5.0),
        (mug, 6.0),  # a repeated name makes a copy
        (chair, 3.0),  # unlisted, it would be removed
        (pen, 2.0),
    ]
    assert poses[0]["rotation"] == {"x": 0.0, "y": 90.0, "z": 0.0}


def test_instances_the_trial_does_not_pose_stay() -> None:
    second = "Mug|+04.00|+01.00|+00.00"
    poses = list(object_poses([pose("Mug_0a1b", 5.0)], [thing(MUG), thing(second)]))
    assert sorted(pose["position"]["x"] for pose in poses) in ([4.0, 5.0], [1.0, 5.0])
    assert len({pose["objectName"] for pose in poses}) == 2


def test_no_two_of_a_type_in_the_same_place() -> None:
    """The build loses one of two objects with the same id."""
    wanted_poses = [pose("Mug_0a1b", 5.0), pose("Mug_0a1b", 5.004), pose("Pen_0a1b", 5.0)]
    poses = list(object_poses(wanted_poses, [thing(MUG), thing(PEN)]))
    places = [(pose["position"]["x"], round(pose["position"]["y"], 3)) for pose in poses]
    assert places == [(5, 1), (5.004, 1.01), (5, 1)]


def test_bottles_are_glass_bottles() -> None:
    poses = list(object_poses([pose("Glassbottle_0a1b", 5.0)], [thing("Bottle|+01.00|+01.00|+00.00")]))
    assert [pose["position"]["x"] for pose in poses] == [5.0]


def start(**changes: object) -> Start:
    values = {"objects": (), "toggles": (), "dirty_and_empty": False, "agent": NOWHERE, "rotation": 0.0, "horizon": 0.0}
    return Start(**{**values, **changes})  # type: ignore[arg-type]


def test_states_are_set_object_by_object() -> None:
    lamp, cup = "DeskLamp|+00.00|+01.00|+00.00", "Cup|+00.00|+01.00|+00.00"
    room = [
        entry(lamp, toggleable=True, isToggled=True),
        thing(cup, dirtyable=True, canFillWithLiquid=True, isFilledWithLiquid=True),
        thing(MUG, dirtyable=True, isDirty=True, canFillWithLiquid=True),
    ]

    def actions(begin: Start) -> list[tuple[str, str]]:
        actions = list(state_actions(begin, room))
        assert all(arguments["forceAction"] for _, arguments in actions)
        return [(action, arguments["objectId"]) for action, arguments in actions]

    assert actions(start()) == [("ToggleObjectOff", lamp)]
    assert actions(start(toggles=(("DeskLamp", True),))) == []
    assert actions(start(toggles=(("DeskLamp", True),), dirty_and_empty=True)) == [
        ("DirtyObject", cup),
        ("EmptyLiquidFromObject", cup),
    ]  # the build would refuse an action for a state that already holds


def test_objects_away_from_their_poses_are_reported() -> None:
    wanted_poses = [pose("Mug_0a1b", 1.0), pose("Pen_0a1b", 9.0), pose("Vase_0a1b", 3.0)]
    assert strayed(wanted_poses, [thing(MUG), thing(PEN)], ["Vase"]) == ["Pen"]
    assert RestoreReport(3).notes() == {}
    assert RestoreReport(3, absent=("Vase",)).notes() == {"posed": 3, "absent": ["Vase"]}

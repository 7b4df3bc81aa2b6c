"""Poses of ALFRED's trials for the objects of another build."""

from __future__ import annotations

from envs.alfred.scene import ObjectPose, Start
from envs.alfred.thor.restore import RestoreReport, object_poses, state_actions, strayed
from tests.envs.alfred.thor.entries import entry, thing

MUG, PEN, CHAIR = "Mug|+01.00|+01.00|+00.00", "Pen|+02.00|+01.00|+00.00", "Chair|+03.00|+00.00|+00.00"
NOWHERE = (0.0, 0.0, 0.0)


def placed(name: str, x: float) -> ObjectPose:
    return ObjectPose(name, (x, 1.0, 0.0), (0.0, 90.0, 0.0))


def test_poses_go_to_instances_of_the_type_and_the_rest_stays() -> None:
    room = [entry("Fridge|-01.00|+00.00|+02.00"), thing(MUG), thing(PEN), entry(CHAIR, moveable=True)]
    poses = list(object_poses([placed("Mug_0a1b", 5.0), placed("Mug_0a1b", 6.0)], room))
    mug, pen, chair = room[1]["name"], room[2]["name"], room[3]["name"]
    assert [(one["objectName"], one["position"]["x"]) for one in poses] == [
        (mug, 5.0),
        (mug, 6.0),  # the same name again: a copy
        (chair, 3.0),  # would vanish if it were not listed
        (pen, 2.0),
    ]
    assert poses[0]["rotation"] == {"x": 0.0, "y": 90.0, "z": 0.0}


def test_instances_the_trial_does_not_pose_stay() -> None:
    second = "Mug|+04.00|+01.00|+00.00"
    poses = list(object_poses([placed("Mug_0a1b", 5.0)], [thing(MUG), thing(second)]))
    assert sorted(one["position"]["x"] for one in poses) in ([4.0, 5.0], [1.0, 5.0])
    assert len({one["objectName"] for one in poses}) == 2


def test_no_two_of_a_type_in_the_same_place() -> None:
    """Of two with the same id the build would lose one."""
    wanted = [placed("Mug_0a1b", 5.0), placed("Mug_0a1b", 5.004), placed("Pen_0a1b", 5.0)]
    poses = list(object_poses(wanted, [thing(MUG), thing(PEN)]))
    assert [(one["position"]["x"], round(one["position"]["y"], 3)) for one in poses] == [(5, 1), (5.004, 1.01), (5, 1)]


def test_bottles_are_glass_bottles() -> None:
    poses = list(object_poses([placed("Glassbottle_0a1b", 5.0)], [thing("Bottle|+01.00|+01.00|+00.00")]))
    assert [one["position"]["x"] for one in poses] == [5.0]


def start(**changes: object) -> Start:
    values = {"objects": (), "toggles": (), "dirty_and_empty": False, "agent": NOWHERE, "rotation": 0.0, "horizon": 0.0}
    return Start(**{**values, **changes})  # type: ignore[arg-type]


def test_states_one_by_one() -> None:
    lamp, cup = "DeskLamp|+00.00|+01.00|+00.00", "Cup|+00.00|+01.00|+00.00"
    room = [
        entry(lamp, toggleable=True, isToggled=True),
        thing(cup, dirtyable=True, canFillWithLiquid=True, isFilledWithLiquid=True),
        thing(MUG, dirtyable=True, isDirty=True, canFillWithLiquid=True),
    ]

    def asked(begin: Start) -> list[tuple[str, str]]:
        actions = list(state_actions(begin, room))
        assert all(arguments["forceAction"] for _, arguments in actions)
        return [(action, arguments["objectId"]) for action, arguments in actions]

    assert asked(start()) == [("ToggleObjectOff", lamp)]
    assert asked(start(toggles=(("DeskLamp", True),))) == []
    assert asked(start(toggles=(("DeskLamp", True),), dirty_and_empty=True)) == [
        ("DirtyObject", cup),
        ("EmptyLiquidFromObject", cup),
    ]  # what is so already would be refused


def test_what_strayed() -> None:
    wanted = [placed("Mug_0a1b", 1.0), placed("Pen_0a1b", 9.0), placed("Vase_0a1b", 3.0)]
    assert strayed(wanted, [thing(MUG), thing(PEN)], ["Vase"]) == ["Pen"]
    assert RestoreReport(3).notes() == {}
    assert RestoreReport(3, absent=("Vase",)).notes() == {"posed": 3, "absent": ["Vase"]}

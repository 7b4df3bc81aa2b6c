"""What counts as lying in a receptacle where the simulator names several; and pictures with a fourth channel."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest
from ai2thor.server import Event

from envs.alfred.goals import goal_conditions
from envs.alfred.scene import Episode, Task
from envs.alfred.thor.client import _reply
from envs.alfred.thor.world import ThorWorld
from tests.envs.alfred.rooms import kitchen
from tests.envs.alfred.thor.playing import thor_env

ON_COUNTER = Task("pick_and_place_simple", "Potato", "CounterTop", instruction="put a potato on a counter")


@pytest.fixture
def world() -> Iterator[ThorWorld]:
    with thor_env([Episode("kitchen", kitchen(), (ON_COUNTER,))]) as env:
        env.reset()
        yield env.world


def told(world: ThorWorld, thing: str, *parents: str) -> None:
    """Let the simulator name these receptacles for a thing."""
    theirs = world._names.object_id
    for one in world._reply.objects:
        if one["objectId"] == theirs(thing):
            one["parentReceptacles"] = [theirs(parent) for parent in parents]
    world._look()


def test_of_two_places_that_a_thing_touches_either_counts(world: ThorWorld) -> None:
    assert goal_conditions(world, ON_COUNTER) == (0, 1)
    told(world, "potato_1", "drawer_1", "countertop_2")
    assert goal_conditions(world, ON_COUNTER) == goal_conditions(world, ON_COUNTER, "official") == (1, 1)


def test_what_is_nested_counts_twice_by_the_official_rule_alone(world: ThorWorld) -> None:
    told(world, "potato_1", "plate_1", "countertop_1")
    assert world["potato_1"].parent == "plate_1"
    assert goal_conditions(world, ON_COUNTER) == (0, 1)
    assert goal_conditions(world, ON_COUNTER, "official") == (1, 1)


def test_a_container_without_a_door_is_not_closed(world: ThorWorld) -> None:
    for one in world._reply.objects:
        if one["objectId"] == world._names.object_id("cabinet_1"):
            one |= {"openable": False}
    world._look()
    assert world["cabinet_1"].is_open and world.close("cabinet_1").message == "cabinet 1 cannot be closed"


def test_other_cameras_have_three_channels_too() -> None:
    metadata = {
        "screenWidth": 4,
        "screenHeight": 3,
        "lastActionSuccess": True,
        "errorMessage": "",
        "actionReturn": None,
    }
    event = Event(metadata)
    event.add_third_party_camera_image(bytes(4 * 3 * 4))
    assert _reply(event).third_party.shape == (3, 4, 3) and np.ndim(event.third_party_camera_frames[-1]) == 3

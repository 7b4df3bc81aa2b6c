"""Receptacles that count for a goal when the simulator lists several."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from envs.alfred.goals import goal_conditions
from envs.alfred.scene import Episode, Task
from envs.alfred.thor.world import ThorWorld
from tests.envs.alfred.rooms import kitchen
from tests.envs.alfred.thor.playing import thor_env

ON_COUNTER = Task("pick_and_place_simple", "Potato", "CounterTop", instruction="put a potato on a counter")


@pytest.fixture
def world() -> Iterator[ThorWorld]:
    with thor_env([Episode("kitchen", kitchen(), (ON_COUNTER,))]) as env:
        env.reset()
        yield env.world


def set_receptacles(world: ThorWorld, thing: str, *parents: str) -> None:
    """Let the simulator list these receptacles for a thing."""
    object_id = world._names.object_id
    for entry in world._reply.objects:
        if entry["objectId"] == object_id(thing):
            entry["parentReceptacles"] = [object_id(parent) for parent in parents]
    world._look()


def test_either_of_two_touched_receptacles_counts(world: ThorWorld) -> None:
    assert goal_conditions(world, ON_COUNTER) == (0, 1)
    set_receptacles(world, "potato_1", "drawer_1", "countertop_2")
    assert goal_conditions(world, ON_COUNTER) == goal_conditions(world, ON_COUNTER, "official") == (1, 1)


def test_the_outer_receptacle_counts_by_the_official_rule_only(world: ThorWorld) -> None:
    set_receptacles(world, "potato_1", "plate_1", "countertop_1")
    assert world["potato_1"].parent == "plate_1" and goal_conditions(world, ON_COUNTER) == (0, 1)
    assert goal_conditions(world, ON_COUNTER, "official") == (1, 1)


def test_a_container_without_a_door_is_not_closed(world: ThorWorld) -> None:
    for entry in world._reply.objects:
        if entry["objectId"] == world._names.object_id("cabinet_1"):
            entry |= {"openable": False}
    world._look()
    assert world["cabinet_1"].is_open and world.close("cabinet_1").message == "cabinet 1 cannot be closed"

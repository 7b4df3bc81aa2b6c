"""A made-up house as rollouts, for the planners' tests."""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest

from planners.training.rollout_files import FactRecord, Rollout, StepRecord, TaskRecord

AGENT = FactRecord("agent", "agent", "agent", "start")


def rollout(seed: int = 0, receptacles: int = 6, objects: int = 6) -> Rollout:
    """One grounded put-task in a made-up room, the object in a closed cabinet."""
    rng = random.Random(seed)
    cabinets = [FactRecord(f"cabinet_{i}", "receptacle", "cabinet", states=("closed",)) for i in range(1, receptacles)]
    table = FactRecord("diningtable_1", "receptacle", "diningtable")
    things = [FactRecord(f"mug_{i}", "object", "mug", rng.choice(cabinets).id) for i in range(1, objects + 1)]
    mug = rng.choice(things)
    place = mug.place.replace("_", " ")
    name = mug.id.replace("_", " ")
    steps = (
        _step(f"go to {place}", FactRecord("agent", "agent", "agent", mug.place)),
        _step(f"open {place}", FactRecord(mug.place, "receptacle", "cabinet", states=("open",))),
        StepRecord("open diningtable 1", f"pick up {name}", False, "diningtable 1 cannot be opened", ()),
        _step(
            f"pick up {name}",
            FactRecord(mug.id, "object", "mug", "agent"),
            FactRecord("agent", "agent", "agent", mug.place, mug.id),
        ),
        _step("go to diningtable 1", FactRecord("agent", "agent", "agent", "diningtable_1", mug.id)),
        _step(
            f"put {name} in diningtable 1",
            FactRecord(mug.id, "object", "mug", "diningtable_1"),
            FactRecord("agent", "agent", "agent", "diningtable_1"),
        ),
        _step("done"),
    )
    task = TaskRecord(
        (f"Put {name} on the table.",), (*cabinets, table, *things, AGENT), steps, True, "find mug put diningtable"
    )
    return Rollout(f"test:{seed}", "grounded", "full", (task,))


def _step(skill: str, *facts: FactRecord) -> StepRecord:
    return StepRecord(skill, skill, True, "", facts)


@pytest.fixture
def make_rollout() -> Callable[..., Rollout]:
    return rollout

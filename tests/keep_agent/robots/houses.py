"""Robots in a generated house with the task to put a clean mug into the fridge."""

from __future__ import annotations

import os
from functools import cache

from envs.alfred.scene import Episode
from envs.worlds import spec_of
from keep_agent.robots import SymbolicExecutor
from keep_agent.robots.symbolic import GROUNDED

CLEAN_MUG = "put a clean mug in the fridge"
HOUSE = 3073  # of the test split


@cache
def clean_mug_house() -> Episode:
    episode = spec_of("keep_agent:Alfred-v0").episodes(None, "test", limit=HOUSE + 1)[HOUSE]
    task = episode.tasks[0]
    target = (task.type, task.object_target, task.parent_target, task.mrecep_target)
    assert target == ("pick_clean_then_place_in_recep", "Mug", "Fridge", ""), "the generator has changed: find a house"
    return episode


def clean_mug(kind: type[SymbolicExecutor] = SymbolicExecutor) -> SymbolicExecutor:
    """Make a robot in that house, for `--executor`. A skill takes ``TEST_SECONDS`` of the environment."""
    setting = spec_of("keep_agent:Alfred-v0").setting(**GROUNDED)
    return kind(setting, clean_mug_house(), seconds=float(os.environ.get("TEST_SECONDS", "0")))


def keep_planner(executor: SymbolicExecutor) -> object:
    """Make the planner with its model, for `--planner`."""
    from keep_agent.agent.agent import Agent

    return Agent.from_config("keep")


class Hurried(SymbolicExecutor):
    """Robot whose skills take no time after the first cancellation."""

    def cancel(self) -> None:
        self.seconds = 0.0
        super().cancel()


def hurried() -> SymbolicExecutor:
    return clean_mug(Hurried)

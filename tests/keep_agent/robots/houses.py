"""Houses of the embedded set in which a robot is asked for what a test is about."""

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
    """A house whose task is to put a clean mug into the fridge."""
    episode = spec_of("keep_agent:Alfred-v0").episodes(None, "test", limit=HOUSE + 1)[HOUSE]
    task = episode.tasks[0]
    asked = (task.type, task.object_target, task.parent_target, task.mrecep_target)
    assert asked == ("pick_clean_then_place_in_recep", "Mug", "Fridge", ""), "the generator is new: search for another"
    return episode


def clean_mug() -> SymbolicExecutor:
    """A robot in that house; for `--executor`. A skill takes as long as TEST_SECONDS says."""
    setting = spec_of("keep_agent:Alfred-v0").setting(**GROUNDED)
    return SymbolicExecutor(setting, clean_mug_house(), seconds=float(os.environ.get("TEST_SECONDS", "0")))


def keep_planner(executor: SymbolicExecutor) -> object:
    """For `--planner`: the real one."""
    from keep_agent.agent.agent import Agent

    return Agent.from_config("keep")


class Hurried(SymbolicExecutor):
    """Takes no time any more once it was cancelled."""

    def cancel(self) -> None:
        self.seconds = 0.0
        super().cancel()


def hurried() -> Hurried:
    """The same robot, for `--executor`."""
    plain = clean_mug()
    return Hurried(plain.setting, plain.episode, seconds=plain.seconds)

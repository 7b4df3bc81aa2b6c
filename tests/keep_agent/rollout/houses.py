"""Kitchen with two tasks, for tests of the rollout."""

from __future__ import annotations

from envs.alfred.scene import Episode, Item, Scene, Task

KITCHEN = Scene(
    id="kitchen-by-hand",
    room="kitchen",
    items=(
        Item("cabinet_1", "Cabinet", (0.0, 0.5, 1.0)),
        Item("countertop_1", "CounterTop", (1.0, 0.9, 1.0)),
        Item("diningtable_1", "DiningTable", (3.0, 0.7, 1.0)),
        Item("mug_1", "Mug", (0.0, 0.6, 1.0), parent="cabinet_1"),
        Item("apple_1", "Apple", (1.0, 1.0, 1.0), parent="countertop_1"),
    ),
    agent=(2.0, 2.0),
)
MUG = Task("pick_and_place_simple", "Mug", "DiningTable", instruction="Put the mug on the table.", id="mug")
APPLE = Task("pick_and_place_simple", "Apple", "DiningTable", instruction="Put the apple on the table.", id="apple")


def episode(*tasks: Task) -> Episode:
    return Episode("by-hand-" + "-".join(task.id for task in tasks), KITCHEN, tasks)

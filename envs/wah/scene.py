"""Scene, task and episode of Watch-And-Help, all immutable."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

TASK_TYPES = ("prepare_snack", "prepare_food", "setup_table", "put_dishwasher", "put_fridge", "read_book")


@dataclass(frozen=True, slots=True)
class Task:
    """A task. ``goal`` has predicates with counts, such as ("inside_plate_dishwasher", 1), in a fixed order."""

    type: str
    goal: tuple[tuple[str, int], ...]
    instruction: str = ""
    id: str = ""


@dataclass(frozen=True, slots=True)
class Scene:
    """An apartment: VirtualHome's graph JSON, which is never changed, and the start room.

    ``simulator_scene``: number of the scene that a simulator loads and then changes into ``graph``; None if unknown.
    """

    id: str
    graph: Mapping[str, Any]
    room: str | None = None
    simulator_scene: int | None = None


@dataclass(frozen=True, slots=True)
class Episode:
    """An apartment and a sequence of tasks in it (a task stream if there are several)."""

    id: str
    scene: Scene
    tasks: tuple[Task, ...]

"""The immutable inputs of an episode: an apartment as it is at the start, and what is asked."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

TASK_TYPES = ("prepare_snack", "prepare_food", "setup_table", "put_dishwasher", "put_fridge", "read_book")


@dataclass(frozen=True, slots=True)
class Task:
    """What is asked: predicates with counts, such as ("inside_plate_dishwasher", 1), in a fixed order."""

    type: str
    goal: tuple[tuple[str, int], ...]
    instruction: str = ""
    id: str = ""


@dataclass(frozen=True, slots=True)
class Scene:
    """An apartment: VirtualHome's graph JSON (never changed), the room to start in, and the simulator's scene number.

    ``scene`` is the number that the simulator loads before ``graph`` is put into it; None where it has none such.
    """

    id: str
    graph: Mapping[str, Any]
    room: str | None = None
    scene: int | None = None


@dataclass(frozen=True, slots=True)
class Episode:
    """An apartment and the tasks done in it one after another (a task stream when there are several)."""

    id: str
    scene: Scene
    tasks: tuple[Task, ...]

"""Immutable inputs of an episode: scene (fixtures, objects, positions) and tasks."""

from __future__ import annotations

from dataclasses import dataclass

Position = tuple[float, float, float]  # metres, AI2-THOR axes: x, y (up), z


def xyz(numbers: Position) -> dict[str, float]:
    """Return a position, or a rotation in degrees, in AI2-THOR's format."""
    return {"x": numbers[0], "y": numbers[1], "z": numbers[2]}


@dataclass(frozen=True, slots=True)
class Item:
    """A thing in a scene: a fixture, or an object that can be picked up."""

    id: str  # "cabinet_3": the type in lower case, and a number from 1 within the type
    type: str  # AI2-THOR type: "Cabinet"
    position: Position
    parent: str | None = None  # id of the receptacle that holds it at first; None: no receptacle
    states: frozenset[str] = frozenset()  # of "open", "closed", "on"; default: off, closed, but boxes and laptops open
    source: str = ""  # AI2-THOR's object id, or ""


@dataclass(frozen=True, slots=True)
class ObjectPose:
    """Initial pose of one object, given by ALFRED."""

    name: str  # in AI2-THOR 2.1: "Mug_291e6e8a"; copies of an object share its name
    position: Position
    rotation: Position  # degrees

    @property
    def type(self) -> str:
        return self.name.partition("_")[0]


@dataclass(frozen=True, slots=True)
class Start:
    """Simulator set-up of one ALFRED trial ("scene" of traj_data.json)."""

    objects: tuple[ObjectPose, ...]
    toggles: tuple[tuple[str, bool], ...]  # (type of a device, whether it is on)
    dirty_and_empty: bool  # whether things start dirty and without liquid
    agent: tuple[float, float, float]  # x, y, z in metres
    rotation: float  # degrees clockwise, seen from above
    horizon: float  # pitch of the camera in degrees; down is positive


@dataclass(frozen=True, slots=True)
class Scene:
    """One room with all its contents. ``items`` lists fixtures first, then objects."""

    id: str
    room: str  # kitchen | livingroom | bedroom | bathroom
    items: tuple[Item, ...]
    agent: tuple[float, float]  # x, z at the start
    reachable: tuple[tuple[float, float], ...] = ()  # standing points (x, z); empty: anywhere
    start: Start | None = None  # set-up of an official trial; None: a generated house


@dataclass(frozen=True, slots=True)
class Task:
    """Task of one of ALFRED's seven types. Targets are AI2-THOR types, or "" if the task type has no such target."""

    type: str
    object_target: str
    parent_target: str = ""  # the receptacle where the object belongs
    toggle_target: str = ""  # the lamp to turn on
    mrecep_target: str = ""  # the movable receptacle that holds the object
    sliced: bool = False
    instruction: str = ""
    id: str = ""  # of the ALFRED trial, or made by the generator of houses


@dataclass(frozen=True, slots=True)
class Episode:
    """A scene and its sequence of tasks (a task stream if there are several)."""

    id: str
    scene: Scene
    tasks: tuple[Task, ...]

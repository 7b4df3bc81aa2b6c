"""What the demonstrations of a data set reveal about its rooms: which fixtures stand where, and where objects lay.

A fixture is a receptacle that is not carried about, a lamp or a faucet. Every finding remembers the trials it comes
from, so that one trial's own demonstration can be left out when that trial is loaded.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import NamedTuple

from envs.alfred.data.trajectories import Step, Trajectory
from envs.alfred.objects import FIXTURES, LAMPS
from envs.alfred.scene import Placed, Position
from keep_agent.errors import DataError

_TOUCHING = frozenset({"OpenObject", "CloseObject", "ToggleObjectOn", "ToggleObjectOff"})
_APPLIANCES = frozenset({"CleanObject", "HeatObject", "CoolObject"})  # name the appliance as their object
_SAME_LAMP = 0.15  # metres; lamps settle a little differently in every trial
_MATCH = 0.02  # metres; ids are rounded to centimetres


class Label(NamedTuple):
    """Where an object lay before anything moved, as read from a demonstration."""

    trial: str
    type: str
    position: Position
    fixture: str  # official id; "": in no receptacle


@dataclass(frozen=True, slots=True)
class Fixture:
    """A fixture with the trials whose demonstrations name it."""

    id: str  # official: "Cabinet|+00.68|+00.50|-02.20"
    type: str
    position: Position
    trials: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True)
class Room:
    """Everything known about one floor plan."""

    fixtures: tuple[Fixture, ...] = ()
    labels: tuple[Label, ...] = ()

    def without(self, trial: str) -> Room:
        """The room as it would be known had this trial never been seen."""
        others = [fixture for fixture in self.fixtures if fixture.trials - {trial}]
        return Room(_distinct(others, trial), tuple(label for label in self.labels if label.trial != trial))


Survey = dict[str, Room]  # by floor plan


def type_of(object_id: str) -> str:
    """The type in an official id: "Sink|..|SinkBasin" -> "SinkBasin", "Apple|..|AppleSliced_1" -> "AppleSliced"."""
    first, *rest = object_id.split("|")
    return rest[3].partition("_")[0] if len(rest) > 3 else first


def position_of(object_id: str) -> Position:
    """The position inside an official id."""
    x, y, z = object_id.split("|")[1:4]
    return float(x), float(y), float(z)


def official_id(kind: str, position: Position) -> str:
    """AI2-THOR's id of a thing: type, then x, y, z with sign, two digits and two decimals."""
    return "|".join((kind, *map(_number, position)))


def _number(value: float) -> str:
    """C#'s "+00.00;-00.00;00.00": halves go away from zero; a negative that rounds to zero has no sign."""
    rounded = math.floor(abs(round(value, 5)) * 100 + 0.5 + 1e-9) / 100
    sign = "+" if value >= 0 else "-" if rounded else ""
    return f"{sign}{rounded:05.2f}"


def survey(
    demonstrations: Iterable[tuple[Trajectory, list[Step]]], progress: Callable[[], None] | None = None
) -> Survey:
    """Mine all demonstrations. ``progress`` is called once per trajectory. Raises DataError for a malformed id."""
    miners: defaultdict[str, _Miner] = defaultdict(_Miner)
    for trajectory, steps in demonstrations:
        try:
            miners[trajectory.floor_plan].add(trajectory, steps)
        except ValueError as error:
            where = f"{trajectory.split}/{trajectory.name}/traj_data.json"
            raise DataError(f"{where} holds a malformed object id ({error}); restore it, or delete it") from error
        if progress is not None:
            progress()
    return {plan: miner.room() for plan, miner in sorted(miners.items())}


class _Miner:
    """Collects what is said about one floor plan; ids are settled when all has been said."""

    def __init__(self) -> None:
        self.ids: dict[tuple[str, Position], str] = {}  # (type, exact position) -> official id
        self.named: defaultdict[str, set[str]] = defaultdict(set)  # official id -> trials
        self.placed: defaultdict[tuple[str, Position], set[str]] = defaultdict(set)
        self.exact: dict[tuple[str, Position], Position] = {}
        self.labels: list[tuple[str, str, Position, tuple[str, Position] | None]] = []

    def add(self, trajectory: Trajectory, steps: list[Step]) -> None:
        moved: set[str] = set()
        for step in steps:
            self._name(trajectory.trial, step)
            if step.action == "PickupObject" and _whole_id(step.object) not in moved:
                moved.add(_whole_id(step.object))
                self._label(trajectory, step)

    def _name(self, trial: str, step: Step) -> None:
        """Fixtures by id (low-level actions) and by exact position (high-level actions)."""
        touched = [thing for action, thing, _ in step.low if action in _TOUCHING]
        touched += [receptacle for _, _, receptacle in step.low]
        for thing in touched:
            if type_of(thing) in FIXTURES:
                self.named[thing].add(trial)
        if step.receptacle_type in FIXTURES:
            key = _key(step)
            self.placed[key].add(trial)
            self.exact.setdefault(key, step.receptacle_position)
            if official := _id_of_receptacle(step):
                self.ids[key] = official

    def _label(self, trajectory: Trajectory, step: Step) -> None:
        place = _key(step) if step.receptacle_type in FIXTURES else None
        if place is None and step.receptacle_type:
            return  # in a container that may have been carried there
        kind = step.object.partition("|")[0]
        position = _exact(kind, position_of(step.object), trajectory.start.objects)
        self.labels.append((trajectory.trial, kind, position, place))

    def room(self) -> Room:
        exact = {self._official(key): self.exact[key] for key in self.placed}
        trials = {thing: set(found) for thing, found in self.named.items()}
        for key, found in self.placed.items():
            trials.setdefault(self._official(key), set()).update(found)
        fixtures = tuple(
            Fixture(thing, type_of(thing), exact.get(thing) or position_of(thing), frozenset(found))
            for thing, found in sorted(trials.items())
        )
        labels = (
            Label(trial, kind, position, self._official(place) if place else "")
            for trial, kind, position, place in self.labels
        )
        return Room(fixtures, tuple(labels))

    def _official(self, key: tuple[str, Position]) -> str:
        return self.ids.get(key) or official_id(key[0], self.exact[key])


def _key(step: Step) -> tuple[str, Position]:
    x, y, z = step.receptacle_position
    return step.receptacle_type, (round(x, 3), round(y, 3), round(z, 3))


def _whole_id(object_id: str) -> str:
    """The id of what a slice was cut from."""
    return "|".join(object_id.split("|")[:4])


def _id_of_receptacle(step: Step) -> str:
    """The official id of the step's receptacle, where the step gives both id and exact position."""
    if step.action in _APPLIANCES:
        return step.object
    if step.action != "PickupObject":
        return step.receptacle
    opened = (thing for action, thing, _ in step.low if action == "OpenObject")
    return next((thing for thing in opened if type_of(thing) == step.receptacle_type), "")


def _exact(kind: str, position: Position, poses: tuple[Placed, ...]) -> Position:
    """The unrounded start position of the object an id names."""
    near = (pose.position for pose in poses if pose.type == kind and _chebyshev(pose.position, position) < _MATCH)
    return next(near, position)


def _chebyshev(one: Position, other: Position) -> float:
    return max(abs(a - b) for a, b in zip(one, other, strict=True))


def _distinct(fixtures: list[Fixture], trial: str) -> tuple[Fixture, ...]:
    """One of several ids of the same lamp: the one most other trials use."""
    kept = [fixture for fixture in fixtures if fixture.type not in LAMPS]
    lamps = [fixture for fixture in fixtures if fixture.type in LAMPS]
    for lamp in sorted(lamps, key=lambda lamp: (-len(lamp.trials - {trial}), lamp.id)):
        if all(_chebyshev(lamp.position, other.position) > _SAME_LAMP for other in _lamps(kept)):
            kept.append(lamp)
    return tuple(kept)


def _lamps(fixtures: list[Fixture]) -> Iterator[Fixture]:
    return (fixture for fixture in fixtures if fixture.type in LAMPS)

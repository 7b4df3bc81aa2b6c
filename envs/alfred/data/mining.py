"""Survey of ALFRED's rooms: places of fixtures (receptacles, lamps, faucets) and of objects, read from demonstrations.

Every finding names the trials that show it. An episode of a trial ignores findings that only this trial shows.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import NamedTuple

from envs.alfred.data.trajectories import PlanStep, Trajectory
from envs.alfred.objects import FIXTURES, LAMPS
from envs.alfred.scene import Position
from keep_agent.errors import DataError

_FIXTURE_ACTIONS = frozenset({"OpenObject", "CloseObject", "ToggleObjectOn", "ToggleObjectOff"})
_APPLIANCES = frozenset({"CleanObject", "HeatObject", "CoolObject"})  # their `PlanStep.object_id` is the appliance
_LAMP_SPREAD = 0.15  # metres along each axis; lamps nearer to each other count as one lamp
_MATCH_DISTANCE = 0.02  # metres along each axis within which a pose matches the position in an object's id


class ObjectPlace(NamedTuple):
    """Initial place of an object, read from a demonstration."""

    trial: str
    type: str
    position: Position
    fixture: str  # official id (the one in ALFRED's data), or "" for no receptacle


@dataclass(frozen=True, slots=True)
class Fixture:
    """Fixture with the trials whose demonstrations name it."""

    id: str  # official: "Cabinet|+00.68|+00.50|-02.20"
    type: str
    position: Position
    trials: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True)
class RoomSurvey:
    """All findings about one floor plan."""

    fixtures: tuple[Fixture, ...] = ()
    places: tuple[ObjectPlace, ...] = ()

    def without_trial(self, trial: str) -> RoomSurvey:
        """Return the survey without the findings that only ``trial`` shows, and with one id per lamp."""
        fixtures = [fixture for fixture in self.fixtures if fixture.trials - {trial}]
        return RoomSurvey(_distinct(fixtures, trial), tuple(place for place in self.places if place.trial != trial))


Survey = dict[str, RoomSurvey]  # by floor plan


def type_of(object_id: str) -> str:
    """Return an official id's type: "Sink|..|SinkBasin" -> "SinkBasin", "Apple|..|AppleSliced_1" -> "AppleSliced"."""
    first, *rest = object_id.split("|")
    return rest[3].partition("_")[0] if len(rest) > 3 else first


def position_of(object_id: str) -> Position:
    """Return the position in an official id."""
    x, y, z = object_id.split("|")[1:4]
    return float(x), float(y), float(z)


def official_id(kind: str, position: Position) -> str:
    """Return the AI2-THOR id of a thing: type, then x, y, z with sign, two digits and two decimals."""
    return "|".join((kind, *map(_number, position)))


def _number(value: float) -> str:
    """Format as C#'s "+00.00;-00.00;00.00": halves are rounded away from 0, and "-00.00" becomes "00.00"."""
    rounded = math.floor(abs(round(value, 5)) * 100 + 0.5 + 1e-9) / 100
    sign = "+" if value >= 0 else "-" if rounded else ""
    return f"{sign}{rounded:05.2f}"


def mine_survey(
    demonstrations: Iterable[tuple[Trajectory, list[PlanStep]]], progress: Callable[[], None] | None = None
) -> Survey:
    """Return the survey of all demonstrations; ``progress`` is called after each one. Raises DataError for a bad id."""
    miners: defaultdict[str, _RoomCollector] = defaultdict(_RoomCollector)
    for trajectory, steps in demonstrations:
        try:
            miners[trajectory.floor_plan].add(trajectory, steps)
        except ValueError as error:
            where = f"{trajectory.split}/{trajectory.name}/traj_data.json"
            raise DataError(f"{where} has a malformed object id ({error}); restore the file, or delete it") from error
        if progress is not None:
            progress()
    return {plan: miner.room() for plan, miner in sorted(miners.items())}


class _RoomCollector:
    """Collector of findings about one floor plan. `room` assigns ids once all demonstrations are added."""

    def __init__(self) -> None:
        self.ids: dict[tuple[str, Position], str] = {}  # official ids, by key: type and position to 1 mm
        self.trials_by_id: defaultdict[str, set[str]] = defaultdict(set)
        self.trials_by_key: defaultdict[tuple[str, Position], set[str]] = defaultdict(set)
        self.positions: dict[tuple[str, Position], Position] = {}  # exact positions, by key
        self.places: list[tuple[str, str, Position, tuple[str, Position] | None]] = []

    def add(self, trajectory: Trajectory, steps: list[PlanStep]) -> None:
        picked_up: set[str] = set()
        for step in steps:
            self._name(trajectory.trial, step)
            if step.action == "PickupObject" and _whole_id(step.object_id) not in picked_up:
                picked_up.add(_whole_id(step.object_id))
                self._add_place(trajectory, step)

    def _name(self, trial: str, step: PlanStep) -> None:
        """Record a step's fixtures: low-level actions give fixtures' ids, the step itself gives an exact position."""
        for action, thing, receptacle in step.interactions:
            for name in (thing if action in _FIXTURE_ACTIONS else "", receptacle):
                if type_of(name) in FIXTURES:
                    self.trials_by_id[name].add(trial)
        if step.receptacle_type in FIXTURES:
            key = _key(step)
            self.trials_by_key[key].add(trial)
            self.positions.setdefault(key, step.receptacle_position)
            if official := _id_of_receptacle(step):
                self.ids[key] = official

    def _add_place(self, trajectory: Trajectory, step: PlanStep) -> None:
        fixture = _key(step) if step.receptacle_type in FIXTURES else None
        if fixture is None and step.receptacle_type:
            return  # taken from a movable receptacle, which may have been moved since the start
        kind = step.object_id.partition("|")[0]
        rounded = position_of(step.object_id)
        poses = (pose.position for pose in trajectory.start.objects if pose.type == kind)
        exact = next((position for position in poses if _chebyshev(position, rounded) < _MATCH_DISTANCE), rounded)
        self.places.append((trajectory.trial, kind, exact, fixture))

    def room(self) -> RoomSurvey:
        exact_positions = {self._official(key): self.positions[key] for key in self.trials_by_key}
        trials = self.trials_by_id.copy()
        for key, names in self.trials_by_key.items():
            trials[self._official(key)] = trials[self._official(key)] | names
        fixtures = (
            Fixture(thing, type_of(thing), exact_positions.get(thing) or position_of(thing), frozenset(names))
            for thing, names in sorted(trials.items())
        )
        places = (ObjectPlace(*place, self._official(key) if key else "") for *place, key in self.places)
        return RoomSurvey(tuple(fixtures), tuple(places))

    def _official(self, key: tuple[str, Position]) -> str:
        return self.ids.get(key) or official_id(key[0], self.positions[key])


def _key(step: PlanStep) -> tuple[str, Position]:
    x, y, z = step.receptacle_position
    return step.receptacle_type, (round(x, 3), round(y, 3), round(z, 3))


def _whole_id(object_id: str) -> str:
    """Return the id of the object that a slice was cut from."""
    return "|".join(object_id.split("|")[:4])


def _id_of_receptacle(step: PlanStep) -> str:
    """Return the official id of the step's receptacle if the step gives both its id and its exact position, else ""."""
    if step.action in _APPLIANCES:
        return step.object_id
    if step.action != "PickupObject":
        return step.receptacle_id
    containers = (thing for action, thing, _ in step.interactions if action == "OpenObject")
    return next((thing for thing in containers if type_of(thing) == step.receptacle_type), "")


def _chebyshev(first: Position, second: Position) -> float:
    return max(abs(a - b) for a, b in zip(first, second, strict=True))


def _distinct(fixtures: list[Fixture], trial: str) -> tuple[Fixture, ...]:
    """Return the fixtures, with one id per lamp: the id that most trials show, ``trial`` not counted."""
    lamps: list[Fixture] = []
    for fixture in sorted(fixtures, key=lambda fixture: (-len(fixture.trials - {trial}), fixture.id)):
        if fixture.type in LAMPS and all(_chebyshev(fixture.position, lamp.position) > _LAMP_SPREAD for lamp in lamps):
            lamps.append(fixture)
    return (*(fixture for fixture in fixtures if fixture.type not in LAMPS), *lamps)

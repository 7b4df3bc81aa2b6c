"""Inference of the receptacle in which an object starts: ALFRED's scenes give only the object's position.

The nearest evidence decides. Evidence is a labelled object, whose receptacle a demonstration in the same room
shows, or the usual spot of objects in a fixture of the room. An object far from all evidence is in no receptacle.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass
from itertools import groupby

import numpy as np

from envs.alfred.data.mining import ObjectPlace, RoomSurvey, Survey
from envs.alfred.objects import MOVABLE_RECEPTACLES, RECEPTACLES, accepts, may_hold
from envs.alfred.scene import Position

HEIGHT_WEIGHT = 4.0  # one metre of height counts like four metres sideways
TYPE_PENALTY = 0.05  # metres added if the labelled object has another type, whose centre may be higher or lower
SPOT_PENALTY = 0.1  # metres added for a usual spot, which is less certain than a labelled object
REACH = 1.5  # weighted metres; evidence that is farther away does not count
_NESTED = (0.05, -0.02, 0.15)  # metres: largest sideways distance; lowest and highest position above the container

# Usual position of things in or on a fixture, relative to it: metres sideways and up (medians over the train split).
_SPOTS: dict[str, tuple[float, float]] = {
    "ArmChair": (0.20, 0.41), "BathtubBasin": (0.35, 0.01), "Bed": (0.61, 0.64), "Cabinet": (0.30, -0.32),
    "Cart": (0.18, 0.86), "CoffeeMachine": (0.00, 0.06), "CoffeeTable": (0.32, 0.45), "CounterTop": (0.55, -0.01),
    "Desk": (0.39, 0.74), "DiningTable": (0.37, 0.78), "Drawer": (0.07, -0.05), "Dresser": (0.30, 0.82),
    "Fridge": (0.17, 1.03), "GarbageCan": (0.05, 0.09), "HandTowelHolder": (0.04, -0.10), "Microwave": (0.09, 0.15),
    "Ottoman": (0.24, 0.42), "Shelf": (0.18, 0.01), "SideTable": (0.17, 0.58), "SinkBasin": (0.13, 0.02),
    "Sofa": (0.45, 0.52), "StoveBurner": (0.00, 0.01), "Toilet": (0.38, 1.04), "ToiletPaperHanger": (0.10, 0.00),
}  # fmt: skip
_DEFAULT_SPOT = (0.2, 0.2)
_NARROW = frozenset({"CoffeeMachine", "HandTowelHolder", "Microwave", "StoveBurner", "Toaster", "ToiletPaperHanger"})
_PLACED_TYPES = frozenset().union(*(accepts(kind) for kind in RECEPTACLES))


@dataclass(frozen=True, slots=True)
class _Evidence:
    """Evidence for a fixture: a labelled object in it, or the fixture's usual spot for objects."""

    type: str  # type of the labelled object; "" for a usual spot
    position: Position
    fixture: str  # official id; "" if the object is in no receptacle
    fixture_type: str
    penalty: float  # metres added to the distance


class ReceptacleInference:
    """Inference of receptacles in one room. ``room`` must not contain findings of the trial that is being loaded."""

    def __init__(self, room: RoomSurvey) -> None:
        kinds = {fixture.id: fixture.type for fixture in room.fixtures} | {"": ""}
        places = [place for place in room.places if place.fixture in kinds]
        known = (_Evidence(place.type, place.position, place.fixture, kinds[place.fixture], 0.0) for place in places)
        self._evidence = [*known, *_usual_spots(room)]
        self._positions = np.array([evidence.position for evidence in self._evidence]).reshape(-1, 3)
        self._penalties = np.array([evidence.penalty for evidence in self._evidence])

    def guesses(self, kind: str, position: Position) -> list[tuple[float, str]]:
        """Return (weighted metres, official id) of fixtures that may hold an object, nearest first; "": no fixture."""
        nearest: dict[str, float] = {}
        for distance, evidence in zip(self._distances(kind, position), self._evidence, strict=True):
            if distance < min(REACH, nearest.get(evidence.fixture, REACH)) and _is_plausible(kind, evidence):
                nearest[evidence.fixture] = distance
        return sorted((distance, fixture) for fixture, distance in nearest.items())

    def _distances(self, kind: str, position: Position) -> list[float]:
        offsets = (self._positions - position) * (1.0, HEIGHT_WEIGHT, 1.0)
        is_other_type = np.array([evidence.type not in ("", kind) for evidence in self._evidence], dtype=float)
        return (np.sqrt((offsets**2).sum(axis=1)) + self._penalties + TYPE_PENALTY * is_other_type).tolist()


def _usual_spots(room: RoomSurvey) -> list[_Evidence]:
    spots = []
    for fixture in (fixture for fixture in room.fixtures if fixture.type in RECEPTACLES):
        sideways, above = _SPOTS.get(fixture.type, _DEFAULT_SPOT)
        x, y, z = fixture.position
        spots.append(_Evidence("", (x, y + above, z), fixture.id, fixture.type, sideways + SPOT_PENALTY))
    return spots


def _is_plausible(kind: str, evidence: _Evidence) -> bool:
    """Return whether the evidence's fixture may hold a type. A type that ALFRED never places fits all but `_NARROW`."""
    if evidence.type == kind or not evidence.fixture or kind in accepts(evidence.fixture_type):
        return True
    return kind not in _PLACED_TYPES and evidence.fixture_type not in _NARROW


def leave_one_out(survey: Survey, trials: Collection[str]) -> Iterator[tuple[ObjectPlace, str]]:
    """Yield (place, guessed id) for objects that ``trials`` show in fixtures; a guess ignores its object's trial."""
    for room in survey.values():
        chosen_places = [place for place in room.places if place.fixture and place.trial in trials]
        for trial, places in groupby(sorted(chosen_places), key=lambda place: place.trial):
            inference = ReceptacleInference(room.without_trial(trial))
            for place in places:
                guesses = inference.guesses(place.type, place.position)
                yield place, guesses[0][1] if guesses else ""


def is_nested(kind: str, position: Position, container: str, place: Position) -> bool:
    """Return whether an object is in a ``container`` (bowl, ...) at ``place``: it fits, and lies right above it."""
    if container not in MOVABLE_RECEPTACLES or not may_hold(container, kind):
        return False
    sideways = ((position[0] - place[0]) ** 2 + (position[2] - place[2]) ** 2) ** 0.5
    return sideways <= _NESTED[0] and _NESTED[1] <= position[1] - place[1] <= _NESTED[2]

"""Rooms of the stand-in for AI2-THOR: an empty one for houses, and the floor plans of ALFRED's data."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import replace
from functools import cached_property
from pathlib import Path

from envs.alfred.data.mining import RoomSurvey, Survey
from envs.alfred.data.start import next_id, object_item
from envs.alfred.data.survey_cache import load_survey
from envs.alfred.data.trajectories import Corpus, Trajectory, room_of
from envs.alfred.objects import KNOWN_TYPES
from envs.alfred.scene import Item, ObjectPose, Scene
from envs.alfred.thor_stub.actions.refusals import Refusal
from envs.alfred.thor_stub.geometry import GRID, HEIGHT
from envs.alfred.thor_stub.house import EMPTY_SCENE
from envs.alfred.thor_stub.room import ReceptacleGuesser, Room
from keep_agent.errors import ConfigError

PHYSICS_SUFFIX = "_physics"
_STEPS = 4  # grid steps from the middle of the empty room to its outermost standing points


class Rooms:
    """Scenes that a client can load, by name."""

    def __init__(self, data: str | Path | None = None, splits: Iterable[str] = ()) -> None:
        """Choose ``splits`` of ``data``, by default those stored as folders. Raises ConfigError, DataError."""
        self._corpus = Corpus(data) if data is not None else None
        self._splits = _splits(self._corpus, tuple(splits)) if self._corpus else ()

    def names(self) -> list[str]:
        """Return the scene names, in the order of ``GetScenesInBuild``."""
        return [EMPTY_SCENE, *(f"{plan}{PHYSICS_SUFFIX}" for plan in self._survey)]

    def make(self, name: str) -> Room:
        """Return the room in its start state. Raises Refusal for an unknown name."""
        if name == EMPTY_SCENE:  # four square metres of floor
            points = tuple((x * GRID, z * GRID) for x in range(-_STEPS, _STEPS + 1) for z in range(-_STEPS, _STEPS + 1))
            return Room(Scene(EMPTY_SCENE, "livingroom", (), (0.0, 0.0), points), EMPTY_SCENE)
        plan = name.removesuffix(PHYSICS_SUFFIX)
        if plan not in self._survey:
            raise Refusal(f"Scene {name} not found; start this stand-in with --data for ALFRED's floor plans")
        return self._furnished_room(name, plan)

    def _furnished_room(self, name: str, plan: str) -> Room:
        survey = self._survey[plan].without_trial("")  # keeps all trials, but one id per lamp
        trials = [trial for trial in self._trajectories if trial.floor_plan == plan]
        fixtures = _fixtures(survey)
        guesser = ReceptacleGuesser(fixtures, survey)
        items = (*fixtures, *_objects(trials, guesser))
        x, _, z = fixtures[0].position if fixtures else (0.0, 0.0, 0.0)
        starts = [trial.start.agent for trial in trials] or [(_on_grid(x), HEIGHT, _on_grid(z))]
        points = {(_on_grid(x), _on_grid(z)) for x, _, z in starts}
        x, height, z = starts[0]
        room = Room(Scene(plan, room_of(plan), items, (x, z)), name, points, height)
        room.guesser = guesser
        return room

    @cached_property
    def _survey(self) -> Survey:
        return load_survey(self._corpus) if self._corpus else {}

    @cached_property
    def _trajectories(self) -> list[Trajectory]:
        return [trial for name in self._splits for trial in self._corpus.trajectories(name)] if self._corpus else []


def _splits(corpus: Corpus, names: tuple[str, ...]) -> tuple[str, ...]:
    """Return the requested splits, else those stored as folders, since archives are slow to read."""
    for name in names:
        if name not in corpus.sources:
            raise ConfigError(f"--split {name} is not in {corpus.root}; choose from {', '.join(corpus.sources)}")
    return names or tuple(name for name, source in corpus.sources.items() if source.archive is None)


def _on_grid(coordinate: float) -> float:
    return round(coordinate / GRID) * GRID


def _fixtures(survey: RoomSurvey) -> list[Item]:
    counts: Counter[str] = Counter()
    fixtures = sorted(survey.fixtures, key=lambda fixture: (fixture.type, fixture.position))
    return [
        Item(next_id(fixture.type, counts), fixture.type, fixture.position, source=fixture.id) for fixture in fixtures
    ]


def _objects(trials: list[Trajectory], guesser: ReceptacleGuesser) -> list[Item]:
    """Return one object of each type that the trials list, at the pose listed first."""
    first: dict[str, ObjectPose] = {}
    for trial in trials:
        for pose in trial.start.objects:
            first.setdefault(pose.type, pose)
    counts: Counter[str] = Counter()
    bare = [object_item(pose, counts) for pose in first.values() if pose.type in KNOWN_TYPES]
    return [replace(item, parent=guesser.guess(item.type, item.position, bare)) for item in bare]

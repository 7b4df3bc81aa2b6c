"""Trajectories (recorded trials) of ALFRED: SPLIT/TASK/TRIAL/traj_data.json, or SPLIT.tar.gz with the same tree."""

from __future__ import annotations

import hashlib
import re
import tarfile
import zlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any, NamedTuple, TypeVar

from envs.alfred.goals import PARAMS, check_targets
from envs.alfred.scene import ObjectPose, Position, Start
from envs.splits import finite_number
from keep_agent.errors import ConfigError, DataError, did_you_mean
from keep_agent.files import parsed, read_bytes

FILE_NAME = "traj_data.json"
ARCHIVE = ".tar.gz"
ROOMS = {0: "kitchen", 2: "livingroom", 3: "bedroom", 4: "bathroom"}  # by the hundreds of the plan: FloorPlan301 -> 3
T = TypeVar("T")
_LAYOUT = f"SPLIT/TASK/TRIAL/{FILE_NAME} or SPLIT{ARCHIVE}"
_UPRIGHT = {"x": 0.0, "y": 0.0, "z": 0.0}
_MALFORMED = (KeyError, TypeError, ValueError, IndexError, AttributeError)
_REMEDY = "restore it from the ALFRED download, or delete it"


class PlanStep(NamedTuple):
    """One high-level step of a demonstration with its low-level interactions; an absent id is ""."""

    action: str  # "PickupObject"
    object_id: str
    receptacle_type: str
    receptacle_position: Position
    receptacle_id: str
    interactions: tuple[tuple[str, str, str], ...]  # (action, object id, receptacle id)


@dataclass(frozen=True, slots=True)
class Trajectory:
    """The content of one traj_data.json, except the demonstration."""

    split: str
    task: str  # the task folder's name
    trial: str
    floor_plan: str  # "FloorPlan301"
    task_type: str
    params: Mapping[str, Any]  # pddl_params
    start: Start
    instructions: tuple[str, ...]  # one per annotation (a person's description)

    @property
    def name(self) -> str:
        """Name in the official splits file: TASK/TRIAL."""
        return f"{self.task}/{self.trial}"


@dataclass(frozen=True, slots=True)
class SplitFiles:
    """The files of one split: its trajectory files, or one archive."""

    split: str
    files: tuple[Path, ...] = ()
    archive: Path | None = None

    def read(self) -> Iterator[tuple[str, bytes]]:
        """Yield (file name, content): files sorted by name, or members of an archive in its own order."""
        if self.archive is not None:
            yield from _unpack(self.archive)
        for path in self.files:
            yield str(path), read_bytes(path, _REMEDY)

    def playable(self) -> Iterator[tuple[str, dict[str, Any]]]:
        """Yield (file name, decoded content) of files with a goal and a demonstration."""
        for file, text in self.read():
            content = _decode(file, text)
            if _playable(content):
                yield file, content


class Corpus:
    """All trajectories under a folder. Raises DataError for a missing path or a wrong layout."""

    def __init__(self, path: str | Path) -> None:
        self.root = _find_root(Path(str(path)).expanduser())
        self.sources = {source.split: source for source in _sources(self.root)}
        if not self.sources:
            raise DataError(f"no ALFRED trajectories in {path}: expected {_LAYOUT}; give the folder json_2.1.0")

    def fingerprint(self) -> str:
        """Return a hash that changes when any trajectory file is added, removed, resized or touched."""
        digest = hashlib.sha256(str(self.root.resolve()).encode())
        for source in self.sources.values():
            for path in (source.archive,) if source.archive else source.files:
                stat = path.stat()
                digest.update(f"{path.relative_to(self.root)} {stat.st_size} {stat.st_mtime_ns}\n".encode())
        return digest.hexdigest()

    def trajectories(self, split: str) -> list[Trajectory]:
        """Return a split's trajectories, sorted by task and trial. Raises ConfigError for an unknown split."""
        if split not in self.sources:
            known, hint = ", ".join(self.sources), did_you_mean(split, self.sources)
            raise ConfigError(f"no split {split!r} in {self.root}; choose one of {known}{hint}")
        trajectories = [parse(split, file, text) for file, text in self.sources[split].read()]
        return sorted(trajectories, key=lambda trajectory: trajectory.name)

    def demonstrations(self) -> Iterator[tuple[Trajectory, list[PlanStep]]]:
        """Yield all trajectories with a demonstration, from all splits, and the steps of each demonstration."""
        for split, source in self.sources.items():
            for file, content in source.playable():
                yield guarded_read(file, _trajectory, split, file, content), guarded_read(file, _steps, content)


def room_of(floor_plan: str) -> str:
    """Return the room type of a floor plan: "FloorPlan301" -> "bedroom". Raises DataError for other names."""
    number = re.fullmatch(r"FloorPlan(\d{1,3})", floor_plan, re.ASCII) if isinstance(floor_plan, str) else None
    room = ROOMS.get(int(number[1]) // 100) if number else None
    if room is None:
        plans = "FloorPlan1-30, 201-230, 301-330 and 401-430"
        raise DataError(f"unknown floor plan {floor_plan!r:.40}; ALFRED has {plans}")
    return room


def _find_root(path: Path) -> Path:
    if not path.exists():
        raise DataError(f"{path} does not exist; set env.data to ALFRED's folder json_2.1.0, or leave it out")
    if not path.is_dir():
        raise DataError(f"{path} is a file; set env.data to the folder json_2.1.0 that holds {_LAYOUT}")
    inner = path / "json_2.1.0"
    return inner if inner.is_dir() else path


def _sources(root: Path) -> Iterator[SplitFiles]:
    """Yield the splits by name; a folder takes precedence over an archive of the same name."""
    for name in sorted({path.name.removesuffix(ARCHIVE) for path in root.iterdir()}):
        files = tuple(sorted((root / name).glob(f"*/*/{FILE_NAME}")))
        archive = root / f"{name}{ARCHIVE}"
        if files:
            yield SplitFiles(name, files)
        elif archive.is_file():
            yield SplitFiles(name, archive=archive)


def _unpack(archive: Path) -> Iterator[tuple[str, bytes]]:
    try:
        with tarfile.open(archive, "r|gz") as members:
            for member in members:
                content = members.extractfile(member) if member.name.endswith(f"/{FILE_NAME}") else None
                if content is not None:
                    yield f"{archive}:{member.name}", content.read()
    except (tarfile.TarError, EOFError, OSError, zlib.error) as error:
        raise DataError(f"{archive} cannot be unpacked ({error}); {_REMEDY}") from error


def _decode(file: str, text: bytes) -> dict[str, Any]:
    content = parsed(text, file, _REMEDY)
    if not isinstance(content, dict):
        raise DataError(f"{file} holds a {type(content).__name__}, not a trajectory; {_REMEDY}")
    return content


def parse(split: str, file: str, text: bytes) -> Trajectory:
    """Return the trajectory of one playable traj_data.json. Raises DataError with the file's name."""
    content = _decode(file, text)
    if not _playable(content):
        raise DataError(f"{file} has no pddl_params or plan; a split without them (a test split) cannot be played")
    trajectory = guarded_read(file, _trajectory, split, file, content)
    try:
        check_targets(trajectory.task_type, trajectory.params, (pose.type for pose in trajectory.start.objects))
    except DataError as error:
        raise DataError(f"{file} has a goal that cannot be reached: {error}; {_REMEDY}") from error
    return trajectory


def _playable(content: dict[str, Any]) -> bool:
    return "pddl_params" in content and "plan" in content


def guarded_read(file: str, read: Callable[..., T], *arguments: Any) -> T:
    """Return ``read(*arguments)``; unexpected content raises a DataError that names the file."""
    try:
        return read(*arguments)
    except _MALFORMED as error:
        raise DataError(f"{file} is not a trajectory ({type(error).__name__}: {error}); {_REMEDY}") from error


def _trajectory(split: str, file: str, content: dict[str, Any]) -> Trajectory:
    scene = content["scene"]
    room_of(scene["floor_plan"])
    instructions = tuple(annotation["task_desc"].strip() for annotation in content["turk_annotations"]["anns"])
    if not all(instructions):
        raise ValueError("an annotation has an empty task_desc")
    return Trajectory(
        split=split,
        task=PurePosixPath(Path(file).as_posix()).parts[-3],
        trial=content["task_id"],
        floor_plan=scene["floor_plan"],
        task_type=content["task_type"],
        params={key: content["pddl_params"][key] for key in PARAMS},
        start=_start(scene),
        instructions=instructions,
    )


def _start(scene: dict[str, Any]) -> Start:
    agent = scene["init_action"]
    return Start(
        objects=tuple(
            ObjectPose(pose["objectName"], _vector(pose["position"]), _vector(pose.get("rotation", _UPRIGHT)))
            for pose in scene["object_poses"]
        ),
        toggles=tuple((toggle["objectType"], bool(toggle["isOn"])) for toggle in scene.get("object_toggles", ())),
        dirty_and_empty=bool(scene.get("dirty_and_empty", False)),
        agent=_vector(agent),
        rotation=finite_number(agent.get("rotation", 0.0)),
        horizon=finite_number(agent.get("horizon", 0.0)),
    )


def _vector(value: dict[str, Any]) -> Position:
    return finite_number(value["x"]), finite_number(value["y"]), finite_number(value["z"])


def _steps(content: dict[str, Any]) -> list[PlanStep]:
    low: dict[int, list[tuple[str, str, str]]] = {}
    for entry in content["plan"]["low_actions"]:
        action = entry["api_action"]
        if "objectId" in action:
            interaction = action["action"], action["objectId"], action.get("receptacleObjectId", "")
            low.setdefault(entry["high_idx"], []).append(interaction)
    return [_step(entry, low.get(entry["high_idx"], [])) for entry in content["plan"]["high_pddl"]]


def _step(entry: dict[str, Any], low: list[tuple[str, str, str]]) -> PlanStep:
    action = entry["planner_action"]
    kind, numbers = action.get("coordinateReceptacleObjectId", ("", [0.0] * 6))
    position = (numbers[0] / 4, numbers[4] / 4, numbers[2] / 4)  # stored as [4x, 4x, 4z, 4z, 4y, 4y]
    thing, receptacle = action.get("objectId", ""), action.get("receptacleObjectId", "")
    return PlanStep(action["action"], thing, kind, position, receptacle, tuple(low))

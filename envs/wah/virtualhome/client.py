"""Client of the VirtualHome simulator: one method per action, typed answers, named errors.

Actions and parameters: comm_unity.py of the wheel virtualhome 2.3.0 and of LoTA-Bench (lbaa2022/LLMTaskPlanning
97c46cc), TestDriver.cs of the simulator's source (xavierpuigf/virtualhome_unity 02ded4b).
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Self, TypeVar

from envs.wah.virtualhome import answers
from envs.wah.virtualhome.answers import Answer, Graph
from envs.wah.virtualhome.errors import SimulatorAnswer, SimulatorRefusal
from envs.wah.virtualhome.recording import Recording, Replay
from envs.wah.virtualhome.transport import DEADLINE, IDEMPOTENT, TIMEOUT, HttpTransport, Request, Transport
from keep_agent.errors import ConfigError

ROOMS = ("kitchen", "bedroom", "livingroom", "bathroom")  # start rooms of a character


@dataclass(frozen=True, slots=True)
class Expansion:
    """Options of changing a scene to a graph. ``random_seed`` below 0 draws a new one."""

    randomize: bool = False  # set by clients
    randomize_execution: bool = False  # read by the simulator
    random_seed: int = -1
    animate_character: bool = False
    ignore_obstacles: bool = False
    transfer_transform: bool = True  # new objects get the graph's transforms


@dataclass(frozen=True, slots=True)
class Script:
    """Options of a script; by default without recording and animations, as in LoTA-Bench's evaluation."""

    randomize_execution: bool = False
    random_seed: int = -1
    processing_time_limit: int = 10  # seconds, to find a solution
    skip_execution: bool = False
    find_solution: bool = False  # choose other instances than the script's ids
    output_folder: str = "Output/"
    file_name_prefix: str = "script"
    frame_rate: int = 5  # per second
    image_synthesis: tuple[str, ...] = ("normal",)
    save_pose_data: bool = False
    save_scene_states: bool = False
    camera_mode: tuple[str, ...] = ("AUTO",)
    recording: bool = False
    image_width: int = 640  # pixels
    image_height: int = 480
    time_scale: float = 1.0
    skip_animation: bool = True


@dataclass(frozen=True, slots=True)
class Picture:
    """Options of a camera image."""

    mode: str = "normal"  # seg_inst, seg_class, depth, flow, albedo, illumination, surf_normals
    image_width: int = 640  # pixels
    image_height: int = 480


T = TypeVar("T")


def connect(simulator: str, record: str | None = None) -> Simulator:
    """Connect to a simulator; ``simulator`` is a URL or a recording, ``record`` a new file to record to.

    :raises ConfigError: ``simulator`` is neither, or the file ``record`` exists
    :raises SimulatorError: no simulator answers
    """
    transport: Transport
    if simulator.startswith("http://"):
        transport = HttpTransport(simulator, TIMEOUT, DEADLINE)
        Simulator(transport).check()
    elif Path(simulator).is_file():
        transport = Replay(simulator)
    else:
        raise ConfigError(
            f"env.simulator={simulator} is neither the URL of a VirtualHome simulator, such as http://127.0.0.1:8080, "
            "nor a recording"
        )
    try:
        return Simulator(transport, record)
    except ConfigError:
        transport.close()
        raise


class Simulator:
    """A running or recorded simulator behind a transport. All methods raise `SimulatorError`."""

    def __init__(self, transport: Transport, record: str | Path | None = None) -> None:
        """``record`` is a file for the requests and answers; it is compressed if its name ends in .gz."""
        self._transport = transport if record is None else Recording(transport, record)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Close the connection and publish a recording; the simulator itself keeps running."""
        self._transport.close()

    def check(self) -> None:
        """Check that the simulator answers."""
        self._call("idle", answers.check_success)

    def reset(self, scene: int | None = None) -> None:
        """Load a scene, or reload the current one, without characters and changes."""
        self._call("reset", answers.check_success, ints=[] if scene is None else [scene])

    def environment_graph(self) -> Graph:
        """Return the state of the home."""
        return self._call("environment_graph", answers.graph)

    def expand_scene(
        self,
        graph: Graph,
        *,
        randomize: bool = False,
        seed: int | None = None,
        animate_character: bool = False,
        ignore_obstacles: bool = False,
        transfer_transform: bool = True,
        prefabs: Mapping[str, Sequence[str]] | None = None,
    ) -> Any:
        """Change the scene to a graph and return the simulator's messages; ``prefabs``: allowed prefabs by class."""
        number = -1 if seed is None else seed
        options = Expansion(randomize, randomize, number, animate_character, ignore_obstacles, transfer_transform)
        texts = [json.dumps(asdict(options)), json.dumps(graph)]
        if prefabs is not None:
            texts.append(json.dumps({name: list(names) for name, names in prefabs.items()}))
        return self._call("expand_scene", answers.messages, texts=texts)

    def camera_count(self) -> int:
        """Return the number of cameras of scene, rooms and characters."""
        return self._call("camera_count", answers.count)

    def camera_image(
        self, cameras: Sequence[int], mode: str = "normal", width: int = 640, height: int = 480
    ) -> list[bytes]:
        """Return a PNG file per camera, of ``width`` by ``height`` pixels."""
        texts = [json.dumps(asdict(Picture(mode, width, height)))]
        return self._call("camera_image", answers.images, ints=list(cameras), texts=texts)

    def add_character(
        self,
        resource: str = "Chars/Female1",
        room: str | None = None,
        position: tuple[float, float, float] | None = None,
    ) -> None:
        """Add a character at a position (x, y, z in metres), else in a room, else at a random place."""
        if room is not None and room not in ROOMS:
            raise ConfigError(f"a character cannot start in {room!r}; choose one of {', '.join(ROOMS)}")
        place = dict(zip("xyz", position or (0, 0, 0), strict=True))
        mode = "fix_position" if position else "fix_room" if room else "random"
        options = {"character_resource": resource, "mode": mode, "character_position": place}
        self._call("add_character", answers.check_success, texts=[json.dumps(options | {"initial_room": room or ""})])

    def render_script(self, lines: Sequence[str], **config: Any) -> tuple[bool, Any]:
        """Run lines such as ``<char0> [walk] <fridge> (104)``; return (success, report). See `Script`."""
        texts = [json.dumps(asdict(Script(**config))), *lines]
        return self._call("render_script", answers.report, texts=texts)

    def _call(
        self,
        action: str,
        read: Callable[[Answer], T],
        ints: list[int] | None = None,
        texts: list[str] | None = None,
    ) -> T:
        request: Request = {"action": action}
        if ints is not None:
            request["intParams"] = ints
        if texts is not None:
            request["stringParams"] = texts
        fields = self._transport.exchange(request)
        try:
            return read(answers.parse(fields))
        except SimulatorAnswer as error:
            self.add_context(error, action)
            raise

    def add_context(self, error: SimulatorAnswer, action: str) -> SimulatorAnswer:
        """Return an error about an answer to ``action``, with action and address for its message."""
        error.action, error.at = action, self._transport.name
        error.uncertain = action not in IDEMPOTENT and not isinstance(error, SimulatorRefusal)
        return error

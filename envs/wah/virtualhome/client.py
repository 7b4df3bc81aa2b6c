"""Client of the VirtualHome simulator: one method per action, typed answers, specific errors.

Sources of actions and parameters: comm_unity.py of the wheel virtualhome 2.3.0 and of lbaa2022/LLMTaskPlanning 97c46cc
(LoTA-Bench), TestDriver.cs and Communication.cs of the simulator's source (xavierpuigf/virtualhome_unity 02ded4b).
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from operator import attrgetter
from pathlib import Path
from typing import Any, TypeVar

from envs.wah.virtualhome.errors import SimulatorAnswer, SimulatorRefusal, excerpt
from envs.wah.virtualhome.recording import Recording, Replay
from envs.wah.virtualhome.transport import DEADLINE, IDEMPOTENT, TIMEOUT, HttpTransport, Transport
from keep_agent.errors import ConfigError

ROOMS = ("kitchen", "bedroom", "livingroom", "bathroom")  # start rooms of a character
# Options of expand_scene. With random_seed < 0 the simulator draws a seed; added objects get the graph's transforms.
EXPANSION = {
    "randomize": False, "randomize_execution": False, "random_seed": -1, "animate_character": False,
    "ignore_obstacles": False, "transfer_transform": True,
}  # fmt: skip
# Options of render_script, as in LoTA-Bench's evaluation: no recording, no animation. The time limit is in seconds.
SCRIPT = {
    "randomize_execution": False, "random_seed": -1, "processing_time_limit": 10, "skip_execution": False,
    "find_solution": False, "output_folder": "Output/", "file_name_prefix": "script", "frame_rate": 5,
    "image_synthesis": ["normal"], "save_pose_data": False, "save_scene_states": False, "camera_mode": ["AUTO"],
    "recording": False, "image_width": 640, "image_height": 480, "time_scale": 1.0, "skip_animation": True,
}  # fmt: skip
T = TypeVar("T")
Graph = dict[str, Any]  # nodes and edges, lists of objects


@dataclass(frozen=True, slots=True)
class SimulatorReply:
    """Fields of an answer; None for fields that the action does not set."""

    success: bool
    message: str | None = None
    value: int | None = None
    message_list: list[str] | None = None  # images; never requested


_TYPES = {"success": bool, "message": str, "value": int, "message_list": list}


def parse_reply(fields: Mapping[str, Any]) -> SimulatorReply:
    """Return the fields of an answer. Raises `SimulatorAnswer` for a wrong type or a missing ``success``."""
    if fields.get("success") is None:
        raise SimulatorAnswer("the answer has no field 'success'", status=200)
    known = {name: fields[name] for name in _TYPES if fields.get(name) is not None}
    for name, value in known.items():
        if type(value) is not _TYPES[name]:  # isinstance would accept a bool as int
            raise SimulatorAnswer(f"{name} is not of type {_TYPES[name].__name__}: {excerpt(repr(value))}", status=200)
    return SimulatorReply(**known)


def check_success(reply: SimulatorReply) -> None:
    """Raise `SimulatorRefusal` unless the action succeeded."""
    if not reply.success:
        raise SimulatorRefusal(f"success=false: {excerpt(reply.message or '')}", status=200)


def value_of(reply: SimulatorReply) -> int:
    """Return the field ``value``."""
    check_success(reply)
    if reply.value is None:
        raise SimulatorAnswer("the answer has no field 'value'", status=200)
    return reply.value


def graph_of(reply: SimulatorReply) -> Graph:
    """Parse the message as a graph: a JSON object with the lists ``nodes`` and ``edges``."""
    check_success(reply)
    try:
        content = json.loads(reply.message or "")
    except (ValueError, RecursionError) as error:
        text = excerpt(reply.message or "")
        raise SimulatorAnswer(f"the graph is not JSON ({error}): {text}", status=200) from error
    if not isinstance(content, dict) or not all(_objects(content.get(name)) for name in ("nodes", "edges")):
        raise SimulatorAnswer(f"the graph has no lists of nodes and edges: {excerpt(repr(content))}", status=200)
    return content


def _objects(value: Any) -> bool:
    return isinstance(value, list) and all(isinstance(item, dict) for item in value)


def connect(simulator: str, record: str | None = None) -> Simulator:
    """Connect to a simulator; ``simulator`` is a URL or a recording, ``record`` a new recording file.

    :raises ConfigError: ``simulator`` is neither URL nor recording, or the file ``record`` exists
    :raises SimulatorError: no simulator answers
    """
    if simulator.startswith("http://"):
        transport: Transport = HttpTransport(simulator, TIMEOUT, DEADLINE)
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
    """A running or recorded simulator; ``transport`` sends the requests. Every method can raise `SimulatorError`."""

    def __init__(self, transport: Transport, record: str | Path | None = None) -> None:
        """``record`` is a file for the requests and answers; it is compressed if its name ends in .gz."""
        self._transport = transport if record is None else Recording(transport, record)

    def close(self) -> None:
        """Close the connection and complete a recording's file; the simulator itself keeps running."""
        self._transport.close()

    def check(self) -> None:
        """Check that the simulator responds."""
        self._call("idle", check_success)

    def reset(self, scene: int | None = None) -> None:
        """Load scene number ``scene``, or reload the current one; characters and changes are removed."""
        self._call("reset", check_success, intParams=[] if scene is None else [scene])

    def environment_graph(self) -> Graph:
        """Return the state of the home."""
        return self._call("environment_graph", graph_of)

    def expand_scene(self, graph: Mapping[str, Any]) -> None:
        """Change the loaded scene into the home that the graph describes."""
        self._call("expand_scene", check_success, stringParams=[json.dumps(EXPANSION), json.dumps(graph)])

    def camera_count(self) -> int:
        """Return the total number of cameras: of the scene, its rooms and characters."""
        return self._call("camera_count", value_of)

    def add_character(self, room: str | None = None) -> None:
        """Add a character in ``room``, or at a random place for None."""
        if room is not None and room not in ROOMS:
            raise ConfigError(f"a character cannot start in {room!r}; choose one of {', '.join(ROOMS)}")
        options = {"character_resource": "Chars/Female1", "mode": "fix_room" if room else "random"}
        options |= {"character_position": {"x": 0, "y": 0, "z": 0}, "initial_room": room or ""}
        self._call("add_character", check_success, stringParams=[json.dumps(options)])

    def render_script(self, lines: Sequence[str]) -> bool:
        """Run lines such as ``<char0> [walk] <fridge> (104)``; return whether they succeeded."""
        return self._call("render_script", attrgetter("success"), stringParams=[json.dumps(SCRIPT), *lines])

    def _call(self, action: str, read: Callable[[SimulatorReply], T], **parameters: list[int] | list[str]) -> T:
        fields = self._transport.exchange({"action": action, **parameters})
        try:
            return read(parse_reply(fields))
        except SimulatorAnswer as error:
            self.add_context(error, action)
            raise

    def add_context(self, error: SimulatorAnswer, action: str) -> SimulatorAnswer:
        """Add action and address to an error about an answer to ``action``; return the error."""
        error.action, error.address = action, self._transport.name
        error.maybe_executed = action not in IDEMPOTENT and not isinstance(error, SimulatorRefusal)
        return error

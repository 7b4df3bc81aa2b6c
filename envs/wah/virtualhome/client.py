"""Our own thin client of the VirtualHome simulator: one method per action, typed answers, named errors.

Actions and parameters: comm_unity.py of the wheel virtualhome 2.3.0 and of LoTA-Bench (lbaa2022/LLMTaskPlanning
97c46cc), TestDriver.cs of the simulator's source (xavierpuigf/virtualhome_unity 02ded4b).
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from types import TracebackType
from typing import Any, Self, TypeVar

from envs.wah.virtualhome import answers
from envs.wah.virtualhome.answers import Answer, Graph
from envs.wah.virtualhome.errors import SimulatorAnswer, SimulatorRefusal
from envs.wah.virtualhome.options import ROOMS, Expansion, Picture, Script
from envs.wah.virtualhome.recording import Recording
from envs.wah.virtualhome.transport import IDEMPOTENT, Request, Transport
from keep_agent.errors import ConfigError

T = TypeVar("T")


class Simulator:
    """A simulator that runs, behind a transport. All methods raise `SimulatorError`; a block's end closes it."""

    def __init__(self, transport: Transport, record: str | Path | None = None) -> None:
        """``record`` names a file for the conversation; a name that ends in .gz compresses it."""
        self._transport = transport if record is None else Recording(transport, record)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """End the conversation; the simulator goes on. A recording takes its name now."""
        self._transport.close()

    def check(self) -> None:
        """That it answers at all."""
        self._call("idle", answers.done)

    def reset(self, scene: int | None = None) -> None:
        """Load a scene anew, or the present one: characters and all changes are gone."""
        self._call("reset", answers.done, ints=[] if scene is None else [scene])

    def environment_graph(self) -> Graph:
        """The state of the home."""
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
        """Change the scene to a graph; returns the simulator's messages. ``prefabs`` are what classes may look like."""
        number = -1 if seed is None else seed
        options = Expansion(randomize, randomize, number, animate_character, ignore_obstacles, transfer_transform)
        texts = [json.dumps(asdict(options)), json.dumps(graph)]
        if prefabs is not None:
            texts.append(json.dumps({name: list(names) for name, names in prefabs.items()}))
        return self._call("expand_scene", answers.messages, texts=texts)

    def camera_count(self) -> int:
        """Cameras of the scene, its rooms and characters."""
        return self._call("camera_count", answers.count)

    def camera_image(
        self, cameras: Sequence[int], mode: str = "normal", width: int = 640, height: int = 480
    ) -> list[bytes]:
        """A PNG file per camera, of so many pixels."""
        texts = [json.dumps(asdict(Picture(mode, width, height)))]
        return self._call("camera_image", answers.images, ints=list(cameras), texts=texts)

    def add_character(
        self,
        resource: str = "Chars/Female1",
        room: str | None = None,
        position: tuple[float, float, float] | None = None,
    ) -> None:
        """A character at a position (x, y, z in metres), or somewhere in a room, or anywhere."""
        if room is not None and room not in ROOMS:
            raise ConfigError(f"no character starts in {room!r}; choose one of {', '.join(ROOMS)}")
        place = dict(zip("xyz", position or (0, 0, 0), strict=True))
        mode = "fix_position" if position else "fix_room" if room else "random"
        options = {"character_resource": resource, "mode": mode, "character_position": place}
        self._call("add_character", answers.done, texts=[json.dumps(options | {"initial_room": room or ""})])

    def render_script(self, lines: Sequence[str], **config: Any) -> tuple[bool, Any]:
        """Run lines such as ``<char0> [walk] <fridge> (104)``; returns (whether one ran, report). See `Script`."""
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
            self.named(error, action)
            raise

    def named(self, error: SimulatorAnswer, action: str) -> SimulatorAnswer:
        """An error about an answer to ``action``, with what its message needs."""
        error.action, error.at = action, self._transport.name
        error.uncertain = action not in IDEMPOTENT and not isinstance(error, SimulatorRefusal)
        return error

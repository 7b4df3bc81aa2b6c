"""Toy home as a backend of the fake simulator, and every call of the client."""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from envs.wah.virtualhome.client import Simulator
from envs.wah.virtualhome.transport import IDEMPOTENT, HttpTransport, Transport
from tests.envs.wah.fake_simulator import FakeSimulator
from tests.waiting import PATIENCE

NOTHING_LEFT_OPEN = [
    pytest.mark.filterwarnings("error::ResourceWarning"),
    pytest.mark.filterwarnings("error::pytest.PytestUnraisableExceptionWarning"),
    pytest.mark.filterwarnings("error::pytest.PytestUnhandledThreadExceptionWarning"),
]
LIMIT = 1 << 20  # bytes
LINE = "<char0> [walk] <fridge> (11)"
Call = Callable[[Simulator], Any]


class ToyHome:
    """Two scenes with a fridge; script lines are recorded, and succeed unless they name a unicorn."""

    def __init__(self) -> None:
        self.scene = 0
        self.lines: list[str] = []
        self.extra: list[dict[str, Any]] = []
        self.room: str | None = None
        self.gate = threading.Event()  # reading the graph waits while it is cleared
        self.gate.set()

    def reset(self, scene: int | None) -> None:
        self.scene = (0, 1)[scene] if scene is not None else self.scene
        self.lines, self.extra, self.room = [], [], None

    def graph(self) -> dict[str, Any]:
        self.gate.wait(PATIENCE)
        fridge = {"id": 11 + self.scene, "class_name": "fridge", "states": ["CLOSED"], "properties": ["CAN_OPEN"]}
        return {"nodes": [fridge, *self.extra], "edges": []}

    def expand(self, graph: dict[str, Any]) -> None:
        self.extra = [node for node in graph["nodes"] if node["id"] > 1000]

    def add_character(self, room: str | None) -> bool:
        self.room = room
        return room != "bathroom"

    def run(self, lines: list[str]) -> tuple[bool, str]:
        self.lines += lines
        return (False, "there is no unicorn") if any("unicorn" in line for line in lines) else (True, "")


CALLS: dict[str, Call] = {
    "idle": lambda simulator: simulator.check(),
    "reset": lambda simulator: simulator.reset(1),
    "environment_graph": lambda simulator: simulator.environment_graph(),
    "camera_count": lambda simulator: simulator.camera_count(),
    "expand_scene": lambda simulator: simulator.expand_scene({"nodes": [], "edges": []}),
    "add_character": lambda simulator: simulator.add_character(room="kitchen"),
    "render_script": lambda simulator: simulator.render_script([LINE]),
}
CHANGING = sorted(CALLS.keys() - IDEMPOTENT)


def http(server: FakeSimulator, timeout: float = PATIENCE, deadline: float = PATIENCE) -> HttpTransport:
    return HttpTransport(server.url, timeout, deadline, LIMIT)


def connected(transport: Transport, record: Path | None = None) -> closing[Simulator]:
    return closing(Simulator(transport, record))

"""Starts the client's controller, and ends it with everything that belongs to it.

ai2thor is imported here, so this module is imported only by those who start it.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from platform import system
from subprocess import TimeoutExpired
from typing import Any

from ai2thor.controller import Controller
from ai2thor.fifo_server import FifoServer
from ai2thor.platform import STR_PLATFORM_MAP, CloudRendering
from ai2thor.server import Event
from ai2thor.wsgi_server import WsgiServer

from envs.alfred.thor.errors import ThorStart, ours
from envs.alfred.thor.options import ThorOptions
from envs.alfred.thor.pipes import BoundedFifoServer
from envs.alfred.thor.processes import kill
from envs.alfred.thor.wsgi import BoundedWsgiServer
from keep_agent.errors import ConfigError

VISIBILITY = "AI2THOR_VISIBILITY_DISTANCE"  # deprecated; env.thor.visibility is in its place
NO_DISPLAY = ":0"  # a name is needed even where nothing is shown
WAIT = 5.0  # seconds for a killed process to be gone


class BoundedController(Controller):
    """ai2thor's controller over servers that always come to an end."""

    def _build_server(self, host: str, port: int, width: int, height: int) -> None:
        if self.server is not None:
            return
        common = {"width": width, "height": height, "timeout": self.server_timeout, "depth_format": self.depth_format}
        if self.server_class is WsgiServer:
            self.server = BoundedWsgiServer(host=host, port=port, **common)
        else:
            self.server = BoundedFifoServer(**common)

    def step(self, action: Any = None, **arguments: Any) -> Event:
        """Without pictures there is no screen, and a build that waits for it to change may wait for ever."""
        if self.headless and action == "ChangeResolution":
            return self.last_event
        return super().step(action, **arguments)

    def unity_command(self, width: int, height: int, headless: bool) -> list[str]:
        """Return a GPU is named to CloudRendering alone; for others ai2thor would look for vulkaninfo all the same."""
        if self._build.platform is not CloudRendering:
            self.gpu_device = None
        return super().unity_command(width, height, headless)


def launch(options: ThorOptions, data: str | None, scene: str) -> Controller:
    """Return a controller whose process has answered and shows ``scene``. Raises `ThorError`; then nothing is left behind."""
    arguments = _arguments(options, data)
    controller = BoundedController.__new__(BoundedController)
    controller.server = controller.unity_pid = controller._build = None
    try:
        with ExitStack() as undo, _without_log_handlers():
            undo.callback(end, controller)
            controller.__init__(scene=scene, **arguments)
            undo.pop_all()
    except Exception as error:
        raise _named(error) from error
    return controller


def _named(error: Exception) -> ThorStart:
    """What our error behind it says, or the first line of what the client does."""
    found = ours(error)
    if found is not None:
        return ThorStart(found.what, action=found.action, seconds=found.seconds)
    said = str(error).strip().partition("\n")[0]
    if "no build exists" in said:
        said = f"its build is neither in ~/.ai2thor/releases nor to be downloaded from here ({said})"
    return ThorStart(f"{type(error).__name__}: {said}")


def end(controller: Controller) -> None:
    """Kill the process and wait for it; close pipes, thread and port; remove the pipes' folder. More than once is fine.

    The client's atexit hook keeps every controller alive, so what is large goes now.
    """
    server = controller.server
    if server is not None:
        process = server.unity_proc
        with suppress(OSError):
            server.stop()
        kill(process)
        if process is not None:
            with suppress(TimeoutExpired):
                process.wait(WAIT)
        if isinstance(server, FifoServer):
            server.tmp_dir.cleanup()
            server.raw_metadata = server.raw_files = None
        server.last_event = None
    if controller._build is not None:
        with suppress(AttributeError):  # it holds no lock yet
            controller._build.unlock()
    controller.last_event = None


@contextmanager
def _without_log_handlers() -> Iterator[None]:
    """ai2thor logs through the root logger, which gives itself a handler on the first word unless it has one."""
    handler = logging.NullHandler()
    logging.root.addHandler(handler)
    try:
        yield
    finally:
        logging.root.removeHandler(handler)


def _arguments(options: ThorOptions, data: str | None) -> dict[str, Any]:
    command = options.command(data)
    display = options.display or os.environ.get("DISPLAY")
    platform = options.platform
    if VISIBILITY in os.environ:
        raise ConfigError(f"{VISIBILITY} is set, and AI2-THOR 5 refuses what the client makes of it: unset it")
    if command is None and platform is None and display is None and not options.headless and system() == "Linux":
        platform = "CloudRendering"
    return {
        "local_executable_path": command,
        "platform": None if command or platform is None else STR_PLATFORM_MAP[platform],
        "headless": options.headless,
        "gpu_device": options.gpu if command is None and platform == "CloudRendering" else None,
        "x_display": display or (NO_DISPLAY if command or options.headless else None),
        "server_class": WsgiServer if options.server == "wsgi" else FifoServer,
        "width": options.width,
        "height": options.height,
        "quality": options.quality,
        "server_timeout": options.timeout,
        "server_start_timeout": options.start_timeout,
        "fieldOfView": options.field_of_view,
        "visibilityDistance": options.visibility,
        "gridSize": options.grid,
        "snapToGrid": True,
    }

"""Launch and shutdown of ai2thor's controller. This module imports ai2thor, so import it only to start a process."""

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

from envs.alfred.thor.errors import ThorStart, thor_error
from envs.alfred.thor.options import ThorOptions
from envs.alfred.thor.servers import BoundedFifoServer, BoundedWsgiServer, kill
from keep_agent.errors import ConfigError

VISIBILITY_VARIABLE = "AI2THOR_VISIBILITY_DISTANCE"  # deprecated; env.thor.visibility replaces it
DUMMY_DISPLAY = ":0"  # ai2thor needs a display name even without a display
KILL_TIMEOUT = 5.0  # seconds to wait for a killed process


class BoundedController(Controller):
    """Controller of ai2thor whose servers have time limits."""

    def _build_server(self, host: str, port: int, width: int, height: int) -> None:
        if self.server is not None:
            return
        common = {"width": width, "height": height, "timeout": self.server_timeout, "depth_format": self.depth_format}
        if self.server_class is WsgiServer:
            self.server = BoundedWsgiServer(host=host, port=port, **common)
        else:
            self.server = BoundedFifoServer(**common)

    def step(self, action: Any = None, **arguments: Any) -> Event:
        """Skip ChangeResolution if headless: without a screen, AI2-THOR may wait forever for the change."""
        if self.headless and action == "ChangeResolution":
            return self.last_event
        return super().step(action, **arguments)

    def unity_command(self, width: int, height: int, headless: bool) -> list[str]:
        """Drop the GPU number unless the platform is CloudRendering: with a number, ai2thor runs vulkaninfo first."""
        if self._build.platform is not CloudRendering:
            self.gpu_device = None
        return super().unity_command(width, height, headless)


def launch(options: ThorOptions, data: str | None, scene: str) -> Controller:
    """Start a process in ``scene`` and return its controller. If the start fails, end it and raise `ThorStart`."""
    arguments = _arguments(options, data)
    controller = BoundedController.__new__(BoundedController)
    controller.server = controller.unity_pid = controller._build = None
    try:
        with ExitStack() as cleanup, _with_temporary_log_handler():
            cleanup.callback(end, controller)
            controller.__init__(scene=scene, **arguments)
            cleanup.pop_all()
    except Exception as error:
        if fault := thor_error(error):
            raise ThorStart(fault.reason, action=fault.action, seconds=fault.seconds) from error
        message = str(error).strip().partition("\n")[0]
        if "no build exists" in message:
            message = f"there is no build in ~/.ai2thor/releases, and this machine cannot download one ({message})"
        raise ThorStart(f"{type(error).__name__}: {message}") from error
    return controller


def end(controller: Controller) -> None:
    """Kill the process and wait for its end; close pipes, thread and port; remove the pipes' folder.

    May be called more than once. ai2thor's atexit hook holds every controller, so large attributes are cleared here.
    """
    server = controller.server
    if server is not None:
        process = server.unity_proc
        with suppress(OSError):
            server.stop()
        kill(process)
        if process is not None:
            with suppress(TimeoutExpired):
                process.wait(KILL_TIMEOUT)
        if isinstance(server, FifoServer):
            server.tmp_dir.cleanup()
            server.raw_metadata = server.raw_files = None
        server.last_event = None
    if controller._build is not None:
        with suppress(AttributeError):  # the executable has no lock yet
            controller._build.unlock()
    controller.last_event = None


@contextmanager
def _with_temporary_log_handler() -> Iterator[None]:
    """Give the root logger a temporary handler: without any, ai2thor's first log message would install one."""
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
    if VISIBILITY_VARIABLE in os.environ:
        raise ConfigError(f"{VISIBILITY_VARIABLE} is set, and AI2-THOR 5 refuses every action because of it: unset it")
    if command is None and platform is None and display is None and not options.headless and system() == "Linux":
        platform = "CloudRendering"
    return {
        "local_executable_path": command,
        "platform": None if command or platform is None else STR_PLATFORM_MAP[platform], "headless": options.headless,
        "gpu_device": options.gpu if command is None and platform == "CloudRendering" else None,
        "x_display": display or (DUMMY_DISPLAY if command or options.headless else None),
        "server_class": WsgiServer if options.server == "wsgi" else FifoServer, "width": options.width,
        "height": options.height, "quality": options.quality, "server_timeout": options.timeout,
        "server_start_timeout": options.start_timeout, "fieldOfView": options.field_of_view,
        "visibilityDistance": options.visibility, "gridSize": options.grid, "snapToGrid": True,
    }  # fmt: skip

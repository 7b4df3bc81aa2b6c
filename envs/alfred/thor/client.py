"""Client that starts, restarts and calls one AI2-THOR process. A call returns a reply or raises a `ThorError`."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

from envs.alfred.thor.errors import ThorAnswer, ThorError, ThorGone, ThorRefusal, ThorTimeout, thor_error
from envs.alfred.thor.options import ThorOptions

if TYPE_CHECKING:
    import numpy as np
    from ai2thor.controller import Controller
    from ai2thor.server import Event

log = logging.getLogger(__name__)

EMPTY_SCENE = "Procedural"  # AI2-THOR's empty scene, in which houses are built
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Reply:
    """The result of an action."""

    ok: bool
    message: str  # the reason of a failure, or ""
    value: Any  # AI2-THOR's actionReturn, the result of a query
    metadata: Mapping[str, Any]
    frame: np.ndarray | None  # (height, width, 3) uint8, RGB
    camera_frame: np.ndarray | None = None  # image of the camera that was added last
    unknown: bool = False  # whether the build (AI2-THOR's executable) lacks the action or an argument

    @property
    def objects(self) -> list[dict[str, Any]]:
        return self.metadata["objects"]


class ThorClient:
    """Client of AI2-THOR. It counts ``calls``, their total ``seconds``, and ``launches`` (starts of a process)."""

    def __init__(self, options: ThorOptions, data: str | None = None) -> None:
        """Store the options; no process starts yet. ``data``: folder json_2.1.0, for the stand-in (`STAND_IN`)."""
        self.options = options
        self._scene = EMPTY_SCENE  # initial scene of a new process
        self.calls = 0
        self.seconds = 0.0
        self.launches = 0
        self._data = data
        self._controller: Controller | None = None

    @property
    def alive(self) -> bool:
        """Whether a process is running."""
        return self._controller is not None

    def start(self, scene: str | None = None) -> None:
        """Start the process in ``scene`` (default: the last scene), unless it is running. Raises `ThorStart`."""
        self._scene = scene or self._scene
        if self._controller is None:
            from envs.alfred.thor.launch import launch  # lazy: it imports ai2thor

            self.launches += 1
            self._controller = launch(self.options, self._data, self._scene)

    def restart(self) -> None:
        """Replace the process by a new one. Raises `ThorStart`."""
        self.close()
        self.start()

    def reset(self, scene: str | dict[str, Any]) -> Reply:
        """Reset to ``scene``: a scene's name in the build, or a house for CreateHouse. Raises `ThorError`."""
        name = EMPTY_SCENE if isinstance(scene, dict) else scene
        self.start(name)
        scenes, full_name = self._call(
            "GetScenesInBuild", lambda build: (build.scenes_in_build, build.normalize_scene(name))
        )
        if scenes and full_name not in scenes:  # some builds list no scenes
            raise ThorRefusal(f"this build has no scene {name}", action="Reset")
        action = f"Reset to {name}"
        return _require_success(action, self._call(action, lambda controller: _reply(controller.reset(scene))))

    def step(self, action: str, **arguments: Any) -> Reply:
        """Execute an action; the reply tells whether it succeeded. Raises a `ThorError` after ending the process."""
        return self._call(action, lambda controller: _step_reply(controller, action, arguments))

    def require(self, action: str, **arguments: Any) -> Reply:
        """Execute an action that must succeed. Raises `ThorRefusal` if it fails."""
        return _require_success(action, self.step(action, **arguments))

    def close(self) -> None:
        """End the process if it runs."""
        controller, self._controller = self._controller, None
        if controller is not None:
            from envs.alfred.thor.launch import end

            end(controller)

    def _call(self, action: str, call: Callable[[Controller], T]) -> T:
        controller = self._controller
        if controller is None:
            raise ThorGone("no process is running", action=action)
        began = time.perf_counter()
        try:
            return call(controller)
        except Exception as error:
            fault = _thor_error(error)
            fault.action, fault.seconds = fault.action or action, time.perf_counter() - began
            self.close()  # else a late reply would be taken for the reply to the next action
            log.info("%s", fault)
            if fault is error:
                raise
            raise fault from error
        except BaseException:  # such as KeyboardInterrupt; as above, no late reply may remain
            self.close()
            raise
        finally:
            self.calls += 1
            self.seconds += time.perf_counter() - began


def _require_success(action: str, reply: Reply) -> Reply:
    """Return a successful reply. Raises `ThorRefusal` for a failed one."""
    if not reply.ok:
        raise ThorRefusal(reply.message or "it refused without a message", action=action)
    return reply


def _thor_error(error: Exception) -> ThorError:
    """Return an error of ai2thor's client as a ThorError."""
    if isinstance(error, TimeoutError) and not thor_error(error):
        return ThorTimeout("no reply in time")
    cause = error.__context__ or error
    return thor_error(error) or ThorAnswer(f"{type(cause).__name__}: {cause}")


def _step_reply(controller: Controller, action: str, arguments: dict[str, Any]) -> Reply:
    try:
        return _reply(controller.step(action, **arguments))
    except ThorError:
        raise
    except ValueError as error:  # ai2thor's error for an action or argument that the build lacks
        event = controller.last_event
        return Reply(False, str(error), None, event.metadata, event.frame, unknown=True)


def _reply(event: Event) -> Reply:
    """Return the reply of an event. Raises `ThorAnswer` if its success flag is not a boolean but, say, "false"."""
    metadata = event.metadata
    success = metadata["lastActionSuccess"]
    if not isinstance(success, bool):
        raise ThorAnswer(f"lastActionSuccess={success!r:.80} is neither true nor false")
    cameras = event.third_party_camera_frames
    image = cameras[-1][:, :, :3] if cameras else None  # CloudRendering has a fourth channel
    return Reply(success, metadata["errorMessage"] or "", metadata["actionReturn"], metadata, event.frame, image)

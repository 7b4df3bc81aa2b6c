"""One AI2-THOR behind a few calls: started when needed, restarted when lost, every call an answer or a named error."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

from envs.alfred.thor.errors import ThorAnswer, ThorError, ThorGone, ThorRefusal, ThorTimeout, ours
from envs.alfred.thor.options import ThorOptions

if TYPE_CHECKING:
    import numpy as np
    from ai2thor.controller import Controller
    from ai2thor.server import Event

log = logging.getLogger(__name__)

EMPTY = "Procedural"  # the scene that houses are built in
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Reply:
    """What came of an action."""

    ok: bool
    message: str  # why not
    value: Any  # actionReturn
    metadata: Mapping[str, Any]
    frame: np.ndarray | None  # (height, width, 3) uint8, RGB
    third_party: np.ndarray | None = None  # of the last other camera
    unknown: bool = False  # the build has no such action, or not with these arguments

    @property
    def objects(self) -> list[dict[str, Any]]:
        return self.metadata["objects"]


class Thor:
    """A simulator with its options. ``trips`` and ``seconds`` count what the client and the process took."""

    def __init__(self, options: ThorOptions, data: str | None = None) -> None:
        """``data``: a folder json_2.1.0 for the stand-in. Nothing is started yet."""
        self.options = options
        self._scene = EMPTY  # what a new process shows first
        self.trips = 0
        self.seconds = 0.0
        self.launches = 0
        self._data = data
        self._controller: Controller | None = None

    @property
    def alive(self) -> bool:
        """Whether there is a process that can be asked."""
        return self._controller is not None

    def start(self, scene: str | None = None) -> None:
        """Make sure that it runs; a new one shows ``scene``, else the last one. Raises `ThorStart`."""
        self._scene = scene or self._scene
        if self._controller is None:
            from envs.alfred.thor.launch import launch  # here: it imports ai2thor

            self.launches += 1
            self._controller = launch(self.options, self._data, self._scene)

    def restart(self) -> None:
        """Return a new process, whatever became of the old one. Raises `ThorStart`."""
        self.close()
        self.start()

    def reset(self, scene: str | dict[str, Any]) -> Reply:
        """Return the room as the build has it: its name, or a house as ProcTHOR describes them. Raises `ThorError`."""
        name = EMPTY if isinstance(scene, dict) else scene
        self.start(name)
        if not self._ask("GetScenesInBuild", lambda controller: _has(controller, name)):
            raise ThorRefusal(f"this build has no scene {name}", action="Reset")
        action = f"Reset to {name}"
        return _insisted(action, self._ask(action, lambda controller: _reply(controller.reset(scene))))

    def step(self, action: str, **arguments: Any) -> Reply:
        """One action; a refusal is a reply that is not ok. Raises `ThorError`, after which the process is gone."""
        return self._ask(action, lambda controller: _stepped(controller, action, arguments))

    def insist(self, action: str, **arguments: Any) -> Reply:
        """One action that has to work. Raises `ThorRefusal` if it does not."""
        return _insisted(action, self.step(action, **arguments))

    def close(self) -> None:
        """End the process, if there is one."""
        controller, self._controller = self._controller, None
        if controller is not None:
            from envs.alfred.thor.launch import end

            end(controller)

    def _ask(self, action: str, call: Callable[[Controller], T]) -> T:
        controller = self._controller
        if controller is None:
            raise ThorGone("it does not run", action=action)
        began = time.perf_counter()
        try:
            return call(controller)
        except Exception as error:
            named = self._lost(error, action, time.perf_counter() - began)
            if named is error:
                raise
            raise named from error
        except BaseException:  # a keyboard interrupt: the answer would be taken for that of the next action
            self.close()
            raise
        finally:
            self.trips += 1
            self.seconds += time.perf_counter() - began

    def _lost(self, error: Exception, action: str, seconds: float) -> ThorError:
        """Whatever it was, the conversation is out of step: the process goes, and the error gets a name."""
        self.close()
        found = _named(error)
        found.action, found.seconds = found.action or action, seconds
        log.info("%s", found)
        return found


def _has(controller: Controller, scene: str) -> bool:
    """Return whether the build has a scene; one that does not tell its scenes is taken to have it."""
    scenes = controller.scenes_in_build
    return not scenes or controller.normalize_scene(scene) in scenes


def _insisted(action: str, reply: Reply) -> Reply:
    """Raises `ThorRefusal` unless it worked."""
    if not reply.ok:
        raise ThorRefusal(reply.message or "it refused without a word", action=action)
    return reply


def _named(error: Exception) -> ThorError:
    """Our error behind what the client made of it."""
    found = ours(error)
    if found is not None:
        return found
    if isinstance(error, TimeoutError):
        return ThorTimeout("no answer in time")
    cause = error.__context__ or error
    return ThorAnswer(f"{type(cause).__name__}: {cause}")


def _stepped(controller: Controller, action: str, arguments: dict[str, Any]) -> Reply:
    try:
        return _reply(controller.step(action, **arguments))
    except ThorError:
        raise
    except ValueError as error:  # so the client tells of an action or argument that the build does not know
        event = controller.last_event
        return Reply(False, str(error), None, event.metadata, event.frame, unknown=True)


def _reply(event: Event) -> Reply:
    """Raises `ThorAnswer` where it does not say whether the action worked: text such as "false" would count as true."""
    metadata = event.metadata
    worked = metadata["lastActionSuccess"]
    if not isinstance(worked, bool):
        raise ThorAnswer(f"lastActionSuccess={worked!r:.80} is neither true nor false")
    others = event.third_party_camera_frames
    return Reply(
        worked,
        metadata["errorMessage"] or "",
        metadata["actionReturn"],
        metadata,
        event.frame,
        others[-1][:, :, :3] if others else None,  # CloudRendering has a fourth channel
    )

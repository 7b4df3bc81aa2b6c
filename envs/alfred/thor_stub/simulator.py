"""Simulator in the stand-in for AI2-THOR: it executes an action, and returns metadata and images."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping
from dataclasses import dataclass, field
from functools import cache
from inspect import Parameter, signature
from types import MappingProxyType
from typing import Any

from envs.alfred.objects import types
from envs.alfred.thor_stub.actions import handling, moving, posing, scenery
from envs.alfred.thor_stub.actions.refusals import Refusal, exception, missing_arguments
from envs.alfred.thor_stub.house import EMPTY_SCENE
from envs.alfred.thor_stub.metadata import MetadataWriter
from envs.alfred.thor_stub.rooms import Rooms
from envs.alfred.thor_stub.session import Session
from keep_agent.errors import KeepError

Action = dict[str, Any]
ActionFunction = Callable[..., Any]

ACTIONS: Mapping[str, ActionFunction] = MappingProxyType(
    {
        "AddThirdPartyCamera": scenery.add_camera, "ChangeQuality": scenery.change_quality,
        "ChangeResolution": scenery.change_resolution, "CleanObject": handling.clean, "CloseObject": handling.close,
        "CreateHouse": scenery.create_house, "Crouch": moving.crouch, "DirtyObject": handling.dirty,
        "Done": moving.pass_, "DropHandObject": handling.drop, "DropHeldObject": handling.drop,
        "EmptyLiquidFromObject": handling.empty, "FillObjectWithLiquid": handling.fill,
        "GetInteractablePoses": moving.interactable, "GetMapViewCameraProperties": scenery.map_view_properties,
        "GetReachablePositions": moving.reachable, "GetScenesInBuild": scenery.scenes_in_build,
        "Initialize": scenery.initialize, "LookDown": moving.look_down, "LookUp": moving.look_up,
        "MoveAhead": moving.move_ahead, "MoveBack": moving.move_back, "MoveLeft": moving.move_left,
        "MoveRight": moving.move_right, "OpenObject": handling.open_, "Pass": moving.pass_,
        "PickupObject": handling.pick_up, "PutObject": handling.put, "Reset": scenery.reset,
        "RotateLeft": moving.rotate_left, "RotateRight": moving.rotate_right,
        "SetObjectPoses": posing.set_object_poses, "SetObjectStates": posing.set_object_states,
        "SliceObject": handling.slice_, "Stand": moving.stand, "Teleport": moving.teleport,
        "TeleportFull": moving.teleport_full, "ToggleMapView": scenery.toggle_map_view,
        "ToggleObjectOff": handling.toggle_off, "ToggleObjectOn": handling.toggle_on,
        "UpdateThirdPartyCamera": scenery.update_camera,
    }
)  # fmt: skip
QUERIES = frozenset({"GetInteractablePoses", "GetReachablePositions"})  # may be answered by a patch, see `ActionReply`
POSE_ACTIONS = QUERIES | {name for name, do in ACTIONS.items() if do.__module__ == moving.__name__}  # change no object
IGNORED_ARGUMENTS = types(
    """action sequenceId agentId renderImage renderObjectImage renderClassImage renderNormalsImage
    renderInstanceSegmentation"""
)
BAD_ARGUMENTS = (TypeError, KeyError, ValueError, AttributeError, ArithmeticError)  # raised for unexpected arguments


@dataclass(frozen=True, slots=True)
class ActionReply:
    """Reply to an action. Images are RGB, three bytes per pixel, bottom row first."""

    metadata: dict[str, Any]
    patch: dict[str, Any] | None = None  # the result alone; if present, pipes send it instead of the metadata
    image: bytes | None = None
    camera_images: tuple[bytes, ...] = ()


@dataclass(slots=True)
class Images:
    """Cache of a session's last images: drawn at the first request after each change."""

    _state: Hashable = None
    _agent: bytes = b""
    _cameras: tuple[bytes, ...] = ()

    def of(self, session: Session) -> tuple[bytes, tuple[bytes, ...]]:
        """Return the agent's image and the images of the additional cameras."""
        if session.state != self._state:
            from envs.alfred.thor_stub import picture  # lazy: slow to import, and not always needed

            self._agent = picture.first_person(session)
            self._cameras = tuple(picture.camera_image(session, camera) for camera in session.cameras)
            self._state = session.state
        return self._agent, self._cameras


@dataclass(slots=True)
class Simulator:
    """Simulator that executes one action at a time."""

    session: Session
    images: bool = True
    unknown: frozenset[str] = frozenset()  # names of actions that are treated as unknown
    _writer: MetadataWriter = field(default_factory=MetadataWriter)
    _images: Images = field(default_factory=Images)

    @classmethod
    def of(cls, scenes: Rooms, images: bool = True, unknown: frozenset[str] = frozenset()) -> Simulator:
        """Return a simulator in the empty room."""
        return cls(Session(scenes, scenes.make(EMPTY_SCENE)), images, unknown)

    def first_reply(self) -> ActionReply:
        """Return the message that AI2-THOR sends before the first action."""
        return self._reply({"action": ""}, None, None)

    def handle(self, action: Action) -> ActionReply:
        """Execute an action; the reply reports any error."""
        try:
            return self._reply(action, self._do(action), None)
        except Refusal as refusal:
            return self._reply(action, None, refusal)
        except KeepError as error:
            return self.refuse(action, str(error))
        except BAD_ARGUMENTS as error:
            return self._reply(action, None, exception(type(error).__name__, str(error)))

    def refuse(self, action: Action, message: str, code: str = "") -> ActionReply:
        """Return the reply to an action that fails without being executed."""
        return self._reply(action, None, Refusal(message, code))

    def _do(self, action: Action) -> Any:
        name = action.get("action", "")
        if name not in ACTIONS or name in self.unknown:
            raise Refusal(f"Invalid action: {name}", "InvalidAction")
        arguments = _arguments(name, action)
        if name not in POSE_ACTIONS:
            self.session.room.version += 1
        return ACTIONS[name](self.session, **arguments)

    def _reply(self, action: Action, value: Any, refusal: Refusal | None) -> ActionReply:
        outcome = {
            "lastAction": action.get("action", ""), "lastActionSuccess": refusal is None, "actionReturn": value,
            "errorCode": refusal.code if refusal else "", "errorMessage": refusal.message if refusal else "",
        }  # fmt: skip
        agent = self._writer.agent(self.session) | outcome
        metadata = {
            "agents": [agent],
            "activeAgentId": 0,
            "thirdPartyCameras": agent["thirdPartyCameras"],
            "sequenceId": action.get("sequenceId", 0),
        }
        is_query = action.get("action") in QUERIES and self.session.settings.patches
        patch = outcome | {"agentId": 0} if is_query else None
        if self.images and self.session.settings.images and action.get("renderImage", True):
            return ActionReply(metadata, patch, *self._images.of(self.session))
        return ActionReply(metadata, patch)


def _arguments(name: str, action: Action) -> Action:
    """Return the action's own arguments. Raises Refusal for unknown or missing ones."""
    known, needed, open_ended = _parameters(name)
    arguments = {key: value for key, value in action.items() if key in known or key not in IGNORED_ARGUMENTS}
    wrong, expected = [f"'{key}'" for key in arguments if key not in known], ", ".join(known)
    if wrong and not open_ended:
        message = (
            f'\n\tAction: "{name}" called with invalid argument(s): {", ".join(wrong)}'
            f"\n\tExpected arguments: {expected}\n\tYour arguments: {', '.join(arguments)}"
            f"\n\tValid ways to call {name}: ({expected})"
        )
        raise Refusal(message, "InvalidArgument")
    if missing := [key for key in needed if key not in arguments]:
        raise missing_arguments(name, *missing)
    return arguments


@cache
def _parameters(name: str) -> tuple[tuple[str, ...], tuple[str, ...], bool]:
    """Return (known names, required names, whether the action ignores unknown names)."""
    parameters = list(signature(ACTIONS[name]).parameters.values())[1:]
    keywords = [keyword for keyword in parameters if keyword.kind is Parameter.KEYWORD_ONLY]
    needed = tuple(keyword.name for keyword in keywords if keyword.default is Parameter.empty)
    return tuple(keyword.name for keyword in keywords), needed, len(keywords) < len(parameters)

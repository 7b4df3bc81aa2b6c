"""The build without its process: an action goes in, metadata and images come out."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cache
from inspect import Parameter, signature
from types import MappingProxyType
from typing import Any

from envs.alfred.objects import types
from envs.alfred.thor_stub.actions import handling, moving, posing, scenery
from envs.alfred.thor_stub.actions.refusals import Refused, missing_arguments, thrown, unknown_action, unknown_arguments
from envs.alfred.thor_stub.frames import Frames
from envs.alfred.thor_stub.house import EMPTY
from envs.alfred.thor_stub.metadata import Reporter
from envs.alfred.thor_stub.session import Scenes, Session
from keep_agent.errors import KeepError

Action = dict[str, Any]
Do = Callable[..., Any]

ACTIONS: Mapping[str, Do] = MappingProxyType(
    {
        "AddThirdPartyCamera": scenery.add_camera,
        "ChangeQuality": scenery.change_quality,
        "ChangeResolution": scenery.change_resolution,
        "CleanObject": handling.clean,
        "CloseObject": handling.close,
        "CreateHouse": scenery.create_house,
        "Crouch": moving.crouch,
        "DirtyObject": handling.dirty,
        "Done": moving.nothing,
        "DropHandObject": handling.drop,
        "DropHeldObject": handling.drop,
        "EmptyLiquidFromObject": handling.empty,
        "FillObjectWithLiquid": handling.fill,
        "GetInteractablePoses": moving.interactable,
        "GetMapViewCameraProperties": scenery.map_view_properties,
        "GetReachablePositions": moving.reachable,
        "GetScenesInBuild": scenery.scenes_in_build,
        "Initialize": scenery.initialize,
        "LookDown": moving.look_down,
        "LookUp": moving.look_up,
        "MoveAhead": moving.move_ahead,
        "MoveBack": moving.move_back,
        "MoveLeft": moving.move_left,
        "MoveRight": moving.move_right,
        "OpenObject": handling.open_,
        "Pass": moving.nothing,
        "PickupObject": handling.pick_up,
        "PutObject": handling.put,
        "Reset": scenery.reset,
        "RotateLeft": moving.rotate_left,
        "RotateRight": moving.rotate_right,
        "SetObjectPoses": posing.set_object_poses,
        "SetObjectStates": posing.set_object_states,
        "SliceObject": handling.slice_,
        "Stand": moving.stand,
        "Teleport": moving.teleport,
        "TeleportFull": moving.teleport_full,
        "ToggleMapView": scenery.toggle_map_view,
        "ToggleObjectOff": handling.toggle_off,
        "ToggleObjectOn": handling.toggle_on,
        "UpdateThirdPartyCamera": scenery.update_camera,
    }
)
QUESTIONS = frozenset({"GetInteractablePoses", "GetReachablePositions"})  # answered by a patch, where that is allowed
HARMLESS = QUESTIONS | {name for name, do in ACTIONS.items() if do.__module__ == moving.__name__}  # no object changes
TOLERATED = types(
    """action sequenceId agentId renderImage renderObjectImage renderClassImage renderNormalsImage
    renderInstanceSegmentation"""
)
WRONG = (TypeError, KeyError, ValueError, AttributeError, ArithmeticError)  # an argument of an unexpected form


@dataclass(frozen=True, slots=True)
class Answer:
    """What goes back. Images are RGB, three bytes a pixel, the bottom row first."""

    metadata: dict[str, Any]
    patch: dict[str, Any] | None = None  # stands for all of it, where the channel has such a thing
    image: bytes | None = None
    others: tuple[bytes, ...] = ()  # of further cameras


@dataclass(slots=True)
class Simulator:
    """Handles one action after another."""

    session: Session
    images: bool = True
    unknown: frozenset[str] = frozenset()  # actions this build is to lack
    _reporter: Reporter = field(default_factory=Reporter)
    _frames: Frames = field(default_factory=Frames)

    @classmethod
    def of(cls, scenes: Scenes, images: bool = True, unknown: frozenset[str] = frozenset()) -> Simulator:
        """In the empty room."""
        return cls(Session(scenes, scenes.make(EMPTY)), images, unknown)

    def first(self) -> Answer:
        """What the build says before it is asked anything."""
        return self._answer({"action": ""}, None, None)

    def handle(self, action: Action) -> Answer:
        """Carry one action out. Whatever is wrong with it is in the answer."""
        try:
            return self._answer(action, self._do(action), None)
        except Refused as refusal:
            return self._answer(action, None, refusal)
        except KeepError as error:
            return self.refuse(action, str(error))
        except WRONG as error:
            return self._answer(action, None, thrown(type(error).__name__, str(error)))

    def refuse(self, action: Action, message: str, code: str = "") -> Answer:
        """Return the answer to an action that fails and is not carried out."""
        return self._answer(action, None, Refused(message, code))

    def _do(self, action: Action) -> Any:
        name = action.get("action", "")
        if name not in ACTIONS or name in self.unknown:
            raise unknown_action(name)
        arguments = _arguments(name, action)
        if name not in HARMLESS:
            self.session.stage.version += 1
        return ACTIONS[name](self.session, **arguments)

    def _answer(self, action: Action, value: Any, refusal: Refused | None) -> Answer:
        outcome = {
            "lastAction": action.get("action", ""),
            "lastActionSuccess": refusal is None,
            "actionReturn": value,
            "errorCode": refusal.code if refusal else "",
            "errorMessage": refusal.message if refusal else "",
        }
        agent = self._reporter.agent(self.session) | outcome
        metadata = {
            "agents": [agent],
            "activeAgentId": 0,
            "thirdPartyCameras": agent["thirdPartyCameras"],
            "sequenceId": action.get("sequenceId", 0),
        }
        question = action.get("action") in QUESTIONS and self.session.settings.patches
        patch = outcome | {"agentId": 0} if question else None
        if self.images and self.session.settings.images and action.get("renderImage", True):
            return Answer(metadata, patch, *self._frames.of(self.session))
        return Answer(metadata, patch)


def _arguments(name: str, action: Action) -> Action:
    """Return the action's own arguments. Raises Refused for wrong ones."""
    known, needed, open_ended = _parameters(name)
    given = {key: value for key, value in action.items() if key in known or key not in TOLERATED}
    wrong = [key for key in given if key not in known]
    if wrong and not open_ended:
        raise unknown_arguments(name, wrong, list(known), list(given))
    missing = [key for key in needed if key not in given]
    if missing:
        raise missing_arguments(name, missing)
    return given


@cache
def _parameters(name: str) -> tuple[tuple[str, ...], tuple[str, ...], bool]:
    """(known, needed, whether others are passed over)"""
    found = list(signature(ACTIONS[name]).parameters.values())[1:]
    named = [one for one in found if one.kind is Parameter.KEYWORD_ONLY]
    needed = tuple(one.name for one in named if one.default is Parameter.empty)
    return tuple(one.name for one in named), needed, len(named) < len(found)

"""Actions of VirtualHome scripts, and their preconditions: LoTA-Bench's and a stricter version.

``lota``: the benchmark's conditions (LLMTaskPlanning at 97c46cc, check_step). Objects can be put into a closed
container. Only a machine in the state CLOSED can be switched on, so a lamp, which has no door, cannot be.
``strict``: nothing can be put into a closed container, and machines without a door can be switched on.
Under both rules, an agent with two full hands cannot open, close or switch anything.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Literal

from envs.wah.graph import Node
from envs.wah.language.names import spoken_name
from envs.wah.state import HomeState
from keep_agent.errors import SkillError

WALK, GRAB, OPEN, CLOSE = "walk", "grab", "open", "close"
SWITCH_ON, SWITCH_OFF, PUT_IN, PUT_ON, SIT = "switchon", "switchoff", "putin", "putback", "sit"
VERBS = (WALK, GRAB, OPEN, CLOSE, SWITCH_ON, SWITCH_OFF, PUT_IN, PUT_ON, SIT)


@dataclass(frozen=True, slots=True)
class Action:
    """Verb and two node ids: ``thing`` (object, furniture or room) and ``place`` (destination of a put, else 0)."""

    verb: str
    thing: int
    place: int = 0

    def line(self, name: str, place_name: str = "") -> str:
        """Return the simulator's script line; ``name`` and ``place_name``: class names of the two nodes."""
        second = f" <{place_name}> ({self.place})" if self.place else ""
        return f"<char0> [{self.verb}] <{name}> ({self.thing}){second}"


Rules = Literal["lota", "strict"]
RULES: tuple[Rules, ...] = ("lota", "strict")
HANDS_FULL = "your hands are full"
# By verb: the needed property, the failure text if it is missing, the needed state, the failure text in another state.
_TRANSITIONS: Mapping[str, tuple[str, str, str, str]] = {
    OPEN: ("CAN_OPEN", "cannot be opened", "CLOSED", "is already open"),
    CLOSE: ("CAN_OPEN", "cannot be closed", "OPEN", "is already closed"),
    SWITCH_ON: ("HAS_SWITCH", "has no switch", "OFF", "is already on"),
    SWITCH_OFF: ("HAS_SWITCH", "has no switch", "ON", "is already off"),
}


def refusal(home: HomeState, action: Action, rules: Rules) -> str:
    """Return the reason why the action is impossible now; "" if possible. Raises SkillError for an unknown verb."""
    if action.verb not in _CHECKS:
        raise SkillError(f"{action.verb!r} is not a verb of this world; use one of {', '.join(_CHECKS)}")
    return _CHECKS[action.verb](home, action, rules == "strict")


def _name(node: Node) -> str:
    return f"the {spoken_name(node.class_name)}"


def _distance(home: HomeState, thing: int) -> str:
    return "" if home.close(thing) else f"{_name(home.graph[thing])} is not close"


def _full_hands(home: HomeState) -> str:
    return HANDS_FULL if len(home.inventory) >= 2 else ""


def _in_hand(home: HomeState, thing: int) -> str:
    return f"you are holding {_name(home.graph[thing])}" if thing in home.inventory else ""


def _walk(home: HomeState, action: Action, strict: bool) -> str:
    return _in_hand(home, action.thing) if strict else ""


def _grab(home: HomeState, action: Action, strict: bool) -> str:
    node = home.graph[action.thing]
    if not node.grabbable:
        return f"{_name(node)} cannot be picked up"
    in_hand = _in_hand(home, node.id) if strict else ""
    return in_hand or _distance(home, node.id) or _enclosed(home, node, strict) or _full_hands(home)


def _enclosed(home: HomeState, node: Node, strict: bool) -> str:
    """Return a failure text if a container prevents grabbing, else "". Only ``strict`` also checks outer containers."""
    containers = home.graph.containers(node.id)
    if strict:
        outermost = home.hidden_in(node.id)
        containers = [] if outermost is None else [outermost]
    closed = [container for container in containers if home.graph[container].closed]
    return f"{_name(node)} is in {_name(home.graph[closed[0]])}, which is closed" if closed else ""


def _change_state(home: HomeState, action: Action, strict: bool) -> str:
    node = home.graph[action.thing]
    needed_property, unable, state_before, already = _TRANSITIONS[action.verb]
    if needed_property not in node.properties:
        return f"{_name(node)} {unable}"
    if state_before not in node.states:
        return f"{_name(node)} {already}"
    door = _door(node, strict) if action.verb == SWITCH_ON else ""
    return door or _distance(home, node.id) or _full_hands(home)


def _door(node: Node, strict: bool) -> str:
    if "OPEN" in node.states:
        return f"{_name(node)} is open, close it first"
    return "" if strict or node.closed else f"{_name(node)} has no door that is closed"


def _put(home: HomeState, action: Action, strict: bool) -> str:
    """Check a put action. Only ``strict`` refuses a held or closed place."""
    place, inside = home.graph[action.place], action.verb == PUT_IN
    if not (place.container if inside else place.surface):
        return f"nothing can be put {'in' if inside else 'on'} {_name(place)}"
    if action.thing not in home.inventory:
        return f"you are not holding {_name(home.graph[action.thing])}"
    in_hand = _in_hand(home, place.id) if strict else ""
    closed = f"{_name(place)} is closed" if inside and strict and place.closed else ""
    return in_hand or _distance(home, place.id) or closed


def _sit(home: HomeState, action: Action, strict: bool) -> str:
    node = home.graph[action.thing]
    if "SITTABLE" not in node.properties:
        return f"one cannot sit on {_name(node)}"
    return f"you are sitting on {_name(node)}" if home.sitting == node.id else _distance(home, node.id)


_CHECKS: Mapping[str, Callable[[HomeState, Action, bool], str]] = {
    WALK: _walk, GRAB: _grab, **dict.fromkeys((OPEN, CLOSE, SWITCH_ON, SWITCH_OFF), _change_state),
    **dict.fromkeys((PUT_IN, PUT_ON), _put), SIT: _sit,
}  # fmt: skip

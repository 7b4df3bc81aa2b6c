"""May an action be done now? LoTA-Bench's checks (LLMTaskPlanning at 97c46cc, check_step), and the strict ones.

``lota``: exactly what the benchmark asks, nothing else: a container need not be open to be put into; only what is
CLOSED can be switched on, so that a thing without a door cannot. ``strict``: a closed container refuses, things without
a door can be switched on, one may open and close with full hands no more than before.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Literal

from envs.wah.action import CLOSE, GRAB, OPEN, PUT_IN, PUT_ON, SIT, SWITCH_OFF, SWITCH_ON, WALK, Action
from envs.wah.graph import Node
from envs.wah.language.names import spoken
from envs.wah.state import HomeState
from keep_agent.errors import SkillError

Rules = Literal["lota", "strict"]
RULES: tuple[Rules, ...] = ("lota", "strict")
HANDS_FULL = "your hands are full"


def refusal(home: HomeState, action: Action, rules: Rules) -> str:
    """Why the action cannot be done now; "" if it can. Raises SkillError for a verb there is no check for."""
    if action.verb not in _CHECKS:
        raise SkillError(f"{action.verb!r} is no verb of this world; use one of {', '.join(_CHECKS)}")
    return _CHECKS[action.verb](home, action, rules == "strict")


def _name(node: Node) -> str:
    return f"the {spoken(node.class_name)}"


def _far(home: HomeState, thing: int) -> str:
    return "" if home.close(thing) else f"{_name(home.graph[thing])} is not close"


def _busy(home: HomeState) -> str:
    return HANDS_FULL if len(home.held) >= 2 else ""


def _walk(home: HomeState, action: Action, strict: bool) -> str:
    carried = strict and action.thing in home.held
    return f"you are holding {_name(home.graph[action.thing])}" if carried else ""


def _grab(home: HomeState, action: Action, strict: bool) -> str:
    node = home.graph[action.thing]
    if not node.grabbable:
        return f"{_name(node)} cannot be picked up"
    if strict and node.id in home.held:
        return f"you are holding {_name(node)}"
    return _far(home, node.id) or _enclosed(home, node, strict) or _busy(home)


def _enclosed(home: HomeState, node: Node, strict: bool) -> str:
    """The benchmark looks at what a thing is directly in."""
    inside = home.graph.containers(node.id)
    if strict:
        hiding = home.hidden_in(node.id)
        inside = [] if hiding is None else [hiding]
    shut = [outer for outer in inside if home.graph[outer].shut]
    return f"{_name(node)} is in {_name(home.graph[shut[0]])}, which is closed" if shut else ""


def _unready(node: Node, able: bool, cannot: str, state: str, already: str) -> str:
    """Why a thing has not the state that an action begins in."""
    if not able:
        return f"{_name(node)} {cannot}"
    return "" if state in node.states else f"{_name(node)} is already {already}"


def _out_of_hand(home: HomeState, node: Node) -> str:
    """Why nothing can be done to a thing with a free hand."""
    return _far(home, node.id) or _busy(home)


def _open(home: HomeState, action: Action, strict: bool) -> str:
    node = home.graph[action.thing]
    return _unready(node, node.openable, "cannot be opened", "CLOSED", "open") or _out_of_hand(home, node)


def _close(home: HomeState, action: Action, strict: bool) -> str:
    node = home.graph[action.thing]
    return _unready(node, node.openable, "cannot be closed", "OPEN", "closed") or _out_of_hand(home, node)


def _switch_on(home: HomeState, action: Action, strict: bool) -> str:
    node = home.graph[action.thing]
    why = _unready(node, node.switchable, "has no switch", "OFF", "on")
    return why or _ajar(node, strict) or _out_of_hand(home, node)


def _ajar(node: Node, strict: bool) -> str:
    if "OPEN" in node.states:
        return f"{_name(node)} is open, close it first"
    return "" if strict or "CLOSED" in node.states else f"{_name(node)} has no door that is closed"


def _switch_off(home: HomeState, action: Action, strict: bool) -> str:
    node = home.graph[action.thing]
    return _unready(node, node.switchable, "has no switch", "ON", "off") or _out_of_hand(home, node)


def _held(home: HomeState, thing: int) -> str:
    return "" if thing in home.held else f"you are not holding {_name(home.graph[thing])}"


def _carried(home: HomeState, place: int, strict: bool) -> str:
    """The benchmark leaves it to the simulator that nothing is put in or on what is in the other hand."""
    return f"you are holding {_name(home.graph[place])}" if strict and place in home.held else ""


def _put_in(home: HomeState, action: Action, strict: bool) -> str:
    place = home.graph[action.place]
    if not place.container:
        return f"nothing can be put in {_name(place)}"
    shut = f"{_name(place)} is closed" if strict and place.shut else ""
    return _held(home, action.thing) or _carried(home, place.id, strict) or _far(home, place.id) or shut


def _put_on(home: HomeState, action: Action, strict: bool) -> str:
    place = home.graph[action.place]
    if not place.surface:
        return f"nothing can be put on {_name(place)}"
    return _held(home, action.thing) or _carried(home, place.id, strict) or _far(home, place.id)


def _sit(home: HomeState, action: Action, strict: bool) -> str:
    node = home.graph[action.thing]
    if "SITTABLE" not in node.properties:
        return f"one cannot sit on {_name(node)}"
    if home.sitting == node.id:
        return f"you are sitting on {_name(node)}"
    return _far(home, node.id)


_CHECKS: Mapping[str, Callable[[HomeState, Action, bool], str]] = MappingProxyType(
    {
        WALK: _walk,
        GRAB: _grab,
        OPEN: _open,
        CLOSE: _close,
        SWITCH_ON: _switch_on,
        SWITCH_OFF: _switch_off,
        PUT_IN: _put_in,
        PUT_ON: _put_on,
        SIT: _sit,
    }
)

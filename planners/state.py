"""What `planners.kv.KVPlanner.dump` gives, checked before anything is changed by it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from keep_agent.errors import DataError
from planners.prompt import Turn


@dataclass(frozen=True, slots=True)
class PlannerState:
    """A planner without its memory's content, which `memory` holds as it came."""

    instruction: str
    skills: str
    now: str
    turns: tuple[Turn, ...]
    told: int
    done: int
    tasks: int
    acting: bool
    memory: Mapping[str, Any]


KINDS = {
    "style": str, "instruction": str, "skills": str, "now": str, "turns": list, "told": int, "done": int, "tasks": int,
    "acting": bool, "memory": dict,
}  # fmt: skip


def read_state(state: Mapping[str, Any], style: str) -> PlannerState:
    """Raises DataError for what no planner has dumped, or one of another prompt style."""
    for key, kind in KINDS.items():
        if not isinstance(state, Mapping) or type(state.get(key)) is not kind:
            raise DataError(f"this is no planner's memory: {key} is no {kind.__name__}; give one that was saved")
    if state["style"] != style:
        raise DataError(
            f"this memory is written in prompt.style={state['style']}, the planner reads {style}; load it with "
            f"prompt.style={state['style']}"
        )
    turns = state["turns"]
    if any(not isinstance(turn, list) or [type(word) for word in turn] != [str, str] for turn in turns):
        raise DataError("this is no planner's memory: a turn is no pair of skill and failure; give one that was saved")
    if (
        not 0 <= state["told"] <= len(turns)
        or not 0 <= min(state["done"], state["tasks"]) <= max(state["done"], state["tasks"]) < 1 << 53
    ):
        raise DataError(f"this is no planner's memory: it has told {state['told']} of {len(turns)} turns")
    values = {key: state[key] for key in KINDS if key not in ("style", "turns")}
    return PlannerState(turns=tuple(Turn(*turn) for turn in turns), **values)

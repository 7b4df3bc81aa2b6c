"""A planner at one moment, as plain data and back; that is checked before anything is changed by it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from keep_agent.errors import DataError
from memory.segments.snapshot import Snapshot
from planners.prompts.text import Turn


@dataclass(frozen=True, slots=True)
class PlannerState:
    """What a planner remembers and what is under way. Keys and values are not in it."""

    style: str
    instruction: str
    skills: str
    goal: str
    now: str
    turns: tuple[Turn, ...]  # of the task, but for the first ones, as many as ``past``
    past: int
    told: int
    done: int
    tasks: int
    acting: bool
    memory: Snapshot

    def to_json(self) -> dict[str, Any]:
        turns = [[turn.skill, turn.ok, turn.message] for turn in self.turns]
        return {key: getattr(self, key) for key in KINDS} | {"turns": turns, "memory": self.memory.to_json()}


KINDS = {
    "style": str, "instruction": str, "skills": str, "goal": str, "now": str, "turns": list, "past": int, "told": int,
    "done": int, "tasks": int, "acting": bool, "memory": dict,
}  # fmt: skip


def read_state(state: Mapping[str, Any], style: str) -> PlannerState:
    """Raises DataError for what no planner has dumped, or one of another prompt style."""
    state = {"goal": "", "past": 0, **state} if isinstance(state, Mapping) else {}  # 0.1 saved no goal, 0.2 no past
    for key, kind in KINDS.items():
        if type(state.get(key)) is not kind:
            raise DataError(f"this is no planner's memory: {key} is no {kind.__name__}; give one that was saved")
    if state["style"] != style:
        raise DataError(
            f"this memory is written in prompt.style={state['style']}, the planner reads {style}; load it with "
            f"prompt.style={state['style']}"
        )
    turns = tuple(map(_turn, state["turns"]))
    if (
        not 0 <= state["past"] <= state["told"] <= state["past"] + len(turns)
        or not 0 <= min(state["done"], state["tasks"]) <= max(state["done"], state["tasks"], state["told"]) < 1 << 53
    ):
        raise DataError(
            f"this is no planner's memory: it has told {state['told']} of {state['past']} + {len(turns)} turns"
        )
    values = {key: state[key] for key in KINDS if key not in ("turns", "memory")}
    return PlannerState(turns=turns, memory=Snapshot.from_json(state["memory"]), **values)


def _turn(saved: Any) -> Turn:
    """A turn as it was saved: skill, whether it worked, message; up to 0.2 skill and failure, "" for none."""
    match saved:
        case [str(skill), bool(ok), str(message)]:
            return Turn(skill, ok, message)
        case [str(skill), str(failure)]:
            return Turn(skill, not failure, failure)
    raise DataError(
        f"this is no planner's memory: the turn {saved!r:.80} is not skill, whether it worked and message; give one "
        "that was saved"
    )

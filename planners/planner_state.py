"""Planner state as plain data: saved as JSON, and validated before it is loaded."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from keep_agent.errors import DataError
from memory.segments.snapshot import Snapshot
from planners.prompts.task_log import TaskLog
from planners.prompts.text import Turn


@dataclass(frozen=True, slots=True)
class PlannerState:
    """Memory and current task of a planner, without the KV cache."""

    style: str
    instruction: str
    skills: str
    goal: str
    agent_line: str
    log: TaskLog
    acting: bool
    memory: Snapshot

    def to_json(self) -> dict[str, Any]:
        log = self.log
        turns = [[turn.skill, turn.ok, turn.message] for turn in log.turns]
        values = [self.style, self.instruction, self.skills, self.goal, self.agent_line, turns]
        values += [log.dropped, log.archived, log.numbered_turns, log.tasks, self.acting, self.memory.to_json()]
        return dict(zip(TYPES, values, strict=True))


TYPES = {
    "style": str, "instruction": str, "skills": str, "goal": str, "now": str, "turns": list, "past": int, "told": int,
    "done": int, "tasks": int, "acting": bool, "memory": dict,
}  # fmt: skip


def read_state(state: Mapping[str, Any], style: str) -> PlannerState:
    """Parse a saved state. Raises DataError if it is invalid or its prompt style is not ``style``."""
    state = {"goal": "", "past": 0, **state} if isinstance(state, Mapping) else {}  # not saved up to version 0.2
    for key, kind in TYPES.items():
        if type(state.get(key)) is not kind:
            raise DataError(f"this is not a saved planner memory: {key} must be a {kind.__name__}; give a saved one")
    if state["style"] != style:
        raise DataError(
            f"this memory was saved with prompt.style={state['style']}, but the planner has {style}; load it with "
            f"prompt.style={state['style']}"
        )
    log = TaskLog([_turn(turn) for turn in state["turns"]], *(state[key] for key in ("past", "told", "done", "tasks")))
    if (
        not 0 <= log.dropped <= log.archived <= log.length
        or not 0 <= min(log.numbered_turns, log.tasks) <= max(log.numbered_turns, log.tasks, log.archived) < 1 << 53
    ):
        raise DataError(
            f"this is not a saved planner memory: its counts contradict each other (past={log.dropped}, "
            f"turns={len(log.turns)}, told={log.archived}, done={log.numbered_turns}, tasks={log.tasks}); "
            "give a saved one"
        )
    texts = (state[key] for key in ("instruction", "skills", "goal", "now"))
    return PlannerState(style, *texts, log, state["acting"], Snapshot.from_json(state["memory"]))


def _turn(value: Any) -> Turn:
    """Parse a turn [skill, success, message]. Version 0.2 saved [skill, message], with "" after a success."""
    match value:
        case [str(skill), bool(ok), str(message)]:
            return Turn(skill, ok, message)
        case [str(skill), str(failure)]:
            return Turn(skill, not failure, failure)
    raise DataError(
        f"this is not a saved planner memory: a turn is [skill, success, message], not {value!r:.80}; give a saved one"
    )

"""Snapshot validation: refuses a memory of the right form that no agent of ours would have saved."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from keep_agent.agent.fact_validation import MOST, PLANNER_IDS
from keep_agent.agent.request_validation import LONGEST, SKILL, on_one_line
from keep_agent.errors import CapacityError, DataError

LARGEST = 1 << 40  # of any number in it
LINE = 2 * 65 * (MOST + 2)  # characters of the agent's own: a type and a name for each thing it sees
SEGMENTS = 10_000_000  # ever; groups are counted on
SHARES = 4  # segments for each thing that may be remembered: its lines, now and before, a skill and a task
TEXT, SMALL = 128, 1 << 20  # characters: of a segment on average; that any memory may have
KINDS = {"did": ("history", "done"), "task": ("task", "tasks")}


def check_snapshot(state: Mapping[str, Any]) -> None:
    """Raises DataError. ``state`` has the form that `Agent.dump` gives."""
    planner = state["planner"]
    memory = planner["memory"]
    wrong = {
        "a number is too large": any(number >= LARGEST for number in _numbers(state)),
        "more groups than segments were ever founded": not memory["founded"] <= memory["created"] <= SEGMENTS,
        "its instruction is too long": len(planner["instruction"]) > LONGEST or len(planner["now"]) > LINE,
        "a skill or its message cannot be": any(not _is_turn(turn[0], turn[-1]) for turn in planner["turns"]),
        "the open decision's skill cannot be": state["open"] is not None and not _is_turn(state["open"][0], ""),
        "a thing has the name of a skill or a task": any(
            not _is_named(one[0], one[1], planner) for one in memory["segments"]
        ),
    }
    for problem in (problem for problem, found in wrong.items() if found):
        raise DataError(f"this memory is none that an agent saved: {problem}; give one that was saved, unchanged")


def check_size(texts: Sequence[str], limit: int | None) -> None:
    """Raises CapacityError for more segments, or longer ones, than an agent of ``limit`` things would have."""
    if limit is None:
        return
    most, characters = SHARES * limit, sum(map(len, texts))
    if len(texts) > most or characters > max(SMALL, TEXT * most):
        raise CapacityError(
            f"this memory has {len(texts)} segments of {characters} characters, too many for {limit} things: raise the "
            "limit"
        )


def _numbers(value: Any) -> Iterator[int]:
    """All of them, however deep they stand."""
    left = [value]
    while left:
        match left.pop():
            case Mapping() as inner:
                left += inner.values()
            case list() as inner:
                left += inner
            case int(number):
                yield number


def _is_turn(skill: str, message: str) -> bool:
    return 0 < len(skill) <= SKILL and on_one_line(skill) and len(message) <= LONGEST


def _is_named(id: str, category: str, planner: Mapping[str, Any]) -> bool:
    """What the planner writes itself has its names, as many as it has counted, and nothing else has them."""
    found = PLANNER_IDS.fullmatch(id)
    if found is None:
        return category not in ("history", "task")
    kind, counted = KINDS[found[1]]
    return category == kind and int(found[2][:15]) <= planner[counted]

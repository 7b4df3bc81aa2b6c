"""A memory that somebody else may have written: what no agent of ours would have saved, though its form is right."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from keep_agent.asked import LONGEST, SKILL
from keep_agent.errors import DataError
from keep_agent.facts import OURS

LARGEST = 1 << 40  # of any number in it
LINE = 16_000  # characters of the agent's own
SEGMENTS = 10_000_000  # ever; groups are counted on
KINDS = {"did": ("history", "done"), "task": ("task", "tasks")}


def check_foreign(state: Mapping[str, Any]) -> None:
    """Raises DataError. ``state`` has the form that `Agent.dump` gives."""
    planner = state["planner"]
    memory = planner["memory"]
    wrong = {
        "a number is too large": any(number >= LARGEST for number in _numbers(state)),
        "more groups than segments were ever founded": not memory["founded"] <= memory["created"] <= SEGMENTS,
        "its instruction is too long": len(planner["instruction"]) > LONGEST or len(planner["now"]) > LINE,
        "a skill or its failure cannot be": any(not _is_turn(*turn) for turn in planner["turns"]),
        "the open decision's skill cannot be": state["open"] is not None and not _is_turn(state["open"][0], ""),
        "a thing has the name of a skill or a task": any(
            not _is_named(one[0], one[1], planner) for one in memory["segments"]
        ),
    }
    for problem in (problem for problem, found in wrong.items() if found):
        raise DataError(f"this memory is none that an agent saved: {problem}; give one that was saved, unchanged")


def _numbers(value: Any) -> list[int]:
    if isinstance(value, Mapping):
        return [number for one in value.values() for number in _numbers(one)]
    if isinstance(value, list):
        return [number for one in value for number in _numbers(one)]
    return [value] if isinstance(value, int) else []


def _is_turn(skill: str, failure: str) -> bool:
    return 0 < len(skill) <= SKILL and skill.isprintable() and len(failure) <= LONGEST


def _is_named(id: str, category: str, planner: Mapping[str, Any]) -> bool:
    """What the planner writes itself has its names, as many as it has counted, and nothing else has them."""
    found = OURS.fullmatch(id)
    if found is None:
        return category not in ("history", "task")
    kind, counted = KINDS[found[1]]
    return category == kind and int(found[2][:15]) <= planner[counted]

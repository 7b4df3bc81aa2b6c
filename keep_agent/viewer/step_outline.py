"""A step in a few words: what the slider's track, the list of episodes and a comparison need of it."""

from __future__ import annotations

import math
from dataclasses import dataclass

from keep_agent.rollout.trace import Entry


@dataclass(frozen=True, slots=True)
class Outline:
    """One step; ``None`` where its trace does not say."""

    task: int
    step: int  # of the task
    skill: str
    ok: bool
    goal: tuple[int, int] | None
    ttft_ms: float | None
    computed: float | None  # computed rows' share of rows x layers
    cold: bool
    flips: int
    restarted: bool


def outline(entry: Entry) -> Outline:
    """Raises one of `keep_agent.files.MISSHAPEN` where the entry is no step."""
    goal = entry.get("goal")
    return Outline(
        task=int(entry["task"]),
        step=int(entry["step"]),
        skill=str(entry["skill"]),
        ok=bool(entry["ok"]),
        goal=(int(goal[0]), int(goal[1])) if goal else None,
        ttft_ms=_finite(entry.get("timings", {}).get("ttft")),
        computed=_finite(_computed(entry)),
        cold=bool(entry.get("cold", False)),
        flips=len(entry.get("flips", ())),
        restarted=bool(entry.get("restarted", False)),
    )


def _finite(value: float | None) -> float | None:
    if value is not None and not math.isfinite(value):
        raise ValueError(f"{value} is no number")
    return value


def _computed(entry: Entry) -> float | None:
    active = entry.get("active_rows")
    rows = len(entry.get("token_ids", ()))
    return round(sum(active) / (rows * len(active)), 4) if active and rows else None

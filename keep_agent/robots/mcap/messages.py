"""From a trace's entries, or a session's events, to what an MCAP log holds of them."""

from __future__ import annotations

import base64
from collections.abc import Callable, Iterator, Mapping, Sequence
from math import isfinite
from pathlib import PurePath
from typing import Any

from keep_agent.robots.task.events import Event, Executed, Feedback, Finished, Observed, Planned, Started
from keep_agent.rollout.trace import Entry, fact_entry
from planners.prompts.text import UNEXPLAINED

Message = tuple[str, Mapping[str, Any]]  # a channel's key, and what is said on it
INFO, WARNING, ERROR = 2, 3, 4  # of foxglove.Log
FORMATS = {".jpg": "jpeg", ".png": "png"}
DECISION = ("episode", "instruction", "task", "step", "skill", "ok", "message", "goal", "timings")
MEMORY = ("active_rows", "units", "segments", "hops", "flips", "cold")


def stamp(at: int) -> dict[str, int]:
    """A time in nanoseconds, as Foxglove's schemas have it."""
    return {"sec": at // 10**9, "nsec": at % 10**9}


def of_entry(entry: Entry, at: int, read: Callable[[str], bytes | None]) -> Iterator[Message]:
    """``at``: nanoseconds. ``read`` gives a picture by its path in the run's folder; None if it is gone."""
    match entry["event"]:
        case "episode":
            asked = "".join(f": {task['instruction']}" for task in entry["tasks"])  # an agent hears of its tasks later
            yield log(at, f"episode {entry['episode']}{asked}")
        case "step":
            yield from _step(entry, at)
        case "task":
            yield log(at, f"{'success' if entry['success'] else 'no success'}: {entry['stop']}", name="task")
        case "crash":
            yield log(at, entry["traceback"], ERROR, "crash")
    picture = read(entry["frame"]) if "frame" in entry else None
    if picture is not None:
        yield image(at, picture, FORMATS.get(PurePath(entry["frame"]).suffix, "jpeg"))


def of_event(event: Event, at: int) -> Iterator[Message]:
    """Of what happens now. What a planner tells of its prompt is in its decision's trace."""
    match event:
        case Started():
            yield log(at, event.instruction, name="task")
        case Observed():
            yield facts([fact_entry(fact) for fact in event.facts])
        case Planned():
            decision = event.decision
            yield "decision", {"skill": decision.skill, "step": decision.number, "scores": _scores(decision.scores)}
            if "units" in decision.trace:
                yield memory(decision.trace)
        case Feedback():
            yield log(at, event.text, name=event.skill)
        case Executed():
            yield _of_outcome(at, event.skill, event.outcome.ok, event.outcome.message)
        case Finished():
            yield log(at, str(event.report), INFO if event.report.success else WARNING, "task")


def log(at: int, message: str, level: int = INFO, name: str = "keep") -> Message:
    return "log", {"timestamp": stamp(at), "level": level, "message": message, "name": name, "file": "", "line": 0}


def facts(rows: Sequence[Mapping[str, Any]], episode: str = "") -> Message:
    return "facts", {"episode": episode, "facts": list(rows)}


def memory(entry: Mapping[str, Any]) -> Message:
    """How the prompt came about: what its rows are, which were computed, and what attention hopped to."""
    units = entry["units"]
    kept = {name: entry[name] for name in MEMORY if name in entry}
    counts = {"tokens": len(entry["token_ids"]), "context": entry["context"], "query": entry["query"]}
    hits = sum(unit["tokens"] for unit in units if unit["hit"])
    return "memory", counts | {"hits": hits} | kept


def image(at: int, data: bytes, format: str) -> Message:
    encoded = base64.b64encode(data).decode("ascii")
    return "frame", {"timestamp": stamp(at), "frame_id": "camera", "data": encoded, "format": format}


def _step(entry: Entry, at: int) -> Iterator[Message]:
    if entry["facts"]:
        yield facts(entry["facts"], entry["episode"])
    if "units" in entry:
        yield memory(entry)
    scores = {"scores": _scores(entry.get("scores", ()))}
    yield "decision", {name: entry[name] for name in DECISION if name in entry} | scores
    if not entry["ok"]:
        yield _of_outcome(at, entry["skill"], entry["ok"], entry["message"])


def _of_outcome(at: int, skill: str, ok: bool, message: str) -> Message:
    level, silent = (INFO, "it worked") if ok else (WARNING, UNEXPLAINED)
    return log(at, message or silent, level, skill)


def _scores(scores: Sequence[Sequence[Any]]) -> list[dict[str, Any]]:
    return [{"skill": skill, "score": score} for skill, score in scores if isfinite(score)]

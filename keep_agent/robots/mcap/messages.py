"""MCAP channels with their JSON schemas, and the messages for entries of a trace and events of a session.

``foxglove.Log`` and ``foxglove.CompressedImage`` follow Foxglove's published schemas: https://docs.foxglove.dev/docs/visualization/message-schemas
"""

from __future__ import annotations

import base64
from collections.abc import Callable, Iterator, Mapping, Sequence
from math import isfinite
from pathlib import PurePath
from typing import Any

from keep_agent.robots.task.events import Event, Executed, Feedback, Finished, Observed, Planned, Started
from keep_agent.rollout.trace import Entry, fact_entry
from planners.prompts.text import UNEXPLAINED

Schema = Mapping[str, Any]

TEXT: Schema = {"type": "string"}
NUMBER: Schema = {"type": "number"}
INTEGER: Schema = {"type": "integer"}
BOOLEAN: Schema = {"type": "boolean"}
TIME: Schema = {"type": "object", "title": "time", "properties": {"sec": INTEGER, "nsec": INTEGER}}


def _record(title: str, properties: Mapping[str, Schema], required: str) -> Schema:
    return {"title": title, "type": "object", "properties": dict(properties), "required": required.split()}


def _list(items: Schema) -> Schema:
    return {"type": "array", "items": items}


def _fields(schema: Schema, names: str) -> dict[str, Schema]:
    return dict.fromkeys(names.split(), schema)


SCORE = _record("keep.Score", {"skill": TEXT, "score": NUMBER}, "skill score")
DECISION = _record(
    "keep.Decision",
    _fields(TEXT, "episode instruction skill message")
    | _fields(INTEGER, "task step")
    | {"ok": BOOLEAN, "goal": _list(INTEGER), "scores": _list(SCORE)}
    | {"timings": {"type": "object", "additionalProperties": NUMBER}},
    "skill",
)
FACT = _record(
    "keep.Fact",
    _fields(TEXT, "id category type place holds") | _fields(_list(TEXT), "sees states") | {"gone": BOOLEAN},
    "id category type",
)
FACTS = _record("keep.Facts", {"episode": TEXT, "facts": _list(FACT)}, "facts")
MEMORY = _record(
    "keep.Memory",
    _fields(INTEGER, "tokens context query hits")
    | {"cold": BOOLEAN, "active_rows": _list(INTEGER)}
    | _fields(_list({"type": "object"}), "units segments hops flips"),
    "tokens units segments",
)
LOG = _record(
    "foxglove.Log",
    {"timestamp": TIME} | _fields(INTEGER, "level line") | _fields(TEXT, "message name file"),
    "timestamp level message",
)
BYTES: Schema = {"type": "string", "contentEncoding": "base64"}
IMAGE = _record(
    "foxglove.CompressedImage",
    {"timestamp": TIME, "data": BYTES} | _fields(TEXT, "frame_id format"),
    "timestamp data format",
)


# schemas by channel key; the channel's topic is /keep/KEY
CHANNELS = {"decision": DECISION, "facts": FACTS, "memory": MEMORY, "log": LOG, "frame": IMAGE}
Message = tuple[str, Mapping[str, Any]]  # channel key, content
INFO, WARNING, ERROR = 2, 3, 4  # levels of foxglove.Log
FORMATS = {".jpg": "jpeg", ".png": "png"}
DECISION_FIELDS = ("episode", "instruction", "task", "step", "skill", "ok", "message", "goal", "timings")
MEMORY_FIELDS = ("active_rows", "units", "segments", "hops", "flips", "cold")


def timestamp(at: int) -> dict[str, int]:
    """Return a time in nanoseconds as Foxglove's schemas represent it."""
    return {"sec": at // 10**9, "nsec": at % 10**9}


def entry_messages(entry: Entry, at: int, read: Callable[[str], bytes | None]) -> Iterator[Message]:
    """Yield the messages for a trace entry. ``at``: time in ns; ``read`` returns a picture file's bytes, or None."""
    match entry["event"]:
        case "episode":
            instructions = "".join(f": {task['instruction']}" for task in entry["tasks"])  # an agent's trace lists none
            yield log(at, f"episode {entry['episode']}{instructions}")
        case "step":
            yield from _step(entry, at)
        case "task":
            yield log(at, f"{'success' if entry['success'] else 'no success'}: {entry['stop']}", name="task")
        case "crash":
            yield log(at, entry["traceback"], ERROR, "crash")
    picture = read(entry["frame"]) if "frame" in entry else None
    if picture is not None:
        data, format = base64.b64encode(picture).decode("ascii"), FORMATS.get(PurePath(entry["frame"]).suffix, "jpeg")
        yield "frame", {"timestamp": timestamp(at), "frame_id": "camera", "data": data, "format": format}


def event_messages(event: Event, at: int) -> Iterator[Message]:
    """Yield the messages for a session event; ``at`` is its time in ns. `Decision.trace` gives the memory message."""
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
    return "log", {"timestamp": timestamp(at), "level": level, "message": message, "name": name, "file": "", "line": 0}


def facts(rows: Sequence[Mapping[str, Any]], episode: str = "") -> Message:
    return "facts", {"episode": episode, "facts": list(rows)}


def memory(entry: Mapping[str, Any]) -> Message:
    """Return the memory message of a prompt: token counts, memory units, segments and hops (attention between them)."""
    units = entry["units"]
    fields = {name: entry[name] for name in MEMORY_FIELDS if name in entry}
    counts = {"tokens": len(entry["token_ids"]), "context": entry["context"], "query": entry["query"]}
    hits = sum(unit["tokens"] for unit in units if unit["hit"])
    return "memory", counts | {"hits": hits} | fields


def _step(entry: Entry, at: int) -> Iterator[Message]:
    if entry["facts"]:
        yield facts(entry["facts"], entry["episode"])
    if "units" in entry:
        yield memory(entry)
    scores = {"scores": _scores(entry.get("scores", ()))}
    yield "decision", {name: entry[name] for name in DECISION_FIELDS if name in entry} | scores
    if not entry["ok"]:
        yield _of_outcome(at, entry["skill"], entry["ok"], entry["message"])


def _of_outcome(at: int, skill: str, ok: bool, message: str) -> Message:
    level, default = (INFO, "it worked") if ok else (WARNING, UNEXPLAINED)
    return log(at, message or default, level, skill)


def _scores(scores: Sequence[Sequence[Any]]) -> list[dict[str, Any]]:
    return [{"skill": skill, "score": score} for skill, score in scores if isfinite(score)]

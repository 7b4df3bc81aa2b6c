"""The channels of an episode's log, with JSON schemas.

``foxglove.Log`` and ``foxglove.CompressedImage`` follow Foxglove's published schemas: https://docs.foxglove.dev/docs/visualization/message-schemas
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

Schema = Mapping[str, Any]

TEXT: Schema = {"type": "string"}
NUMBER: Schema = {"type": "number"}
WHOLE: Schema = {"type": "integer"}
TRUTH: Schema = {"type": "boolean"}
TIME: Schema = {"type": "object", "title": "time", "properties": {"sec": WHOLE, "nsec": WHOLE}}


def _record(title: str, properties: Mapping[str, Schema], required: str) -> Schema:
    return {"title": title, "type": "object", "properties": dict(properties), "required": required.split()}


def _list(items: Schema) -> Schema:
    return {"type": "array", "items": items}


def _fields(schema: Schema, names: str) -> dict[str, Schema]:
    """Several fields of one schema."""
    return dict.fromkeys(names.split(), schema)


SCORE = _record("keep.Score", {"skill": TEXT, "score": NUMBER}, "skill score")
DECISION = _record(
    "keep.Decision",
    _fields(TEXT, "episode instruction skill message")
    | _fields(WHOLE, "task step")
    | {"ok": TRUTH, "goal": _list(WHOLE), "scores": _list(SCORE)}
    | {"timings": {"type": "object", "additionalProperties": NUMBER}},
    "skill",
)
FACT = _record(
    "keep.Fact",
    _fields(TEXT, "id category type place holds") | _fields(_list(TEXT), "sees states") | {"gone": TRUTH},
    "id category type",
)
FACTS = _record("keep.Facts", {"episode": TEXT, "facts": _list(FACT)}, "facts")
MEMORY = _record(
    "keep.Memory",
    _fields(WHOLE, "tokens context query hits")
    | {"cold": TRUTH, "active_rows": _list(WHOLE)}
    | _fields(_list({"type": "object"}), "units segments hops flips"),
    "tokens units segments",
)
LOG = _record(
    "foxglove.Log",
    {"timestamp": TIME} | _fields(WHOLE, "level line") | _fields(TEXT, "message name file"),
    "timestamp level message",
)
BYTES: Schema = {"type": "string", "contentEncoding": "base64"}
IMAGE = _record(
    "foxglove.CompressedImage",
    {"timestamp": TIME, "data": BYTES} | _fields(TEXT, "frame_id format"),
    "timestamp data format",
)


@dataclass(frozen=True, slots=True)
class Channel:
    topic: str
    schema: Schema

    @property
    def name(self) -> str:
        return self.schema["title"]

    @property
    def text(self) -> bytes:
        return json.dumps(self.schema).encode()


CHANNELS = {
    "decision": Channel("/keep/decision", DECISION),
    "facts": Channel("/keep/facts", FACTS),
    "memory": Channel("/keep/memory", MEMORY),
    "log": Channel("/keep/log", LOG),
    "frame": Channel("/keep/frame", IMAGE),
}

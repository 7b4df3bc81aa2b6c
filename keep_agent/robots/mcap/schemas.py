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
WORDS: Schema = {"type": "array", "items": TEXT}
TIME: Schema = {"type": "object", "title": "time", "properties": {"sec": WHOLE, "nsec": WHOLE}}


def _record(title: str, properties: Mapping[str, Schema], required: tuple[str, ...] = ()) -> Schema:
    return {"title": title, "type": "object", "properties": dict(properties), "required": list(required)}


DECISION = _record(
    "keep.Decision",
    {
        "episode": TEXT,
        "instruction": TEXT,
        "task": WHOLE,
        "step": WHOLE,
        "skill": TEXT,
        "ok": TRUTH,
        "message": TEXT,
        "goal": {"type": "array", "items": WHOLE},
        "scores": {
            "type": "array",
            "items": _record("keep.Score", {"skill": TEXT, "score": NUMBER}, ("skill", "score")),
        },
        "timings": {"type": "object", "additionalProperties": NUMBER},
    },
    ("skill",),
)
FACT = _record(
    "keep.Fact",
    {"id": TEXT, "category": TEXT, "type": TEXT, "place": TEXT, "holds": TEXT}
    | {"sees": WORDS, "states": WORDS, "gone": TRUTH},
    ("id", "category", "type"),
)
FACTS = _record("keep.Facts", {"episode": TEXT, "facts": {"type": "array", "items": FACT}}, ("facts",))
MEMORY = _record(
    "keep.Memory",
    {
        "tokens": WHOLE,
        "context": WHOLE,
        "query": WHOLE,
        "hits": WHOLE,
        "cold": TRUTH,
        "active_rows": {"type": "array", "items": WHOLE},
        "units": {"type": "array", "items": {"type": "object"}},
        "segments": {"type": "array", "items": {"type": "object"}},
        "hops": {"type": "array", "items": {"type": "object"}},
        "flips": {"type": "array", "items": {"type": "object"}},
    },
    ("tokens", "units", "segments"),
)
LOG = _record(
    "foxglove.Log",
    {"timestamp": TIME, "level": WHOLE, "message": TEXT, "name": TEXT, "file": TEXT, "line": WHOLE},
    ("timestamp", "level", "message"),
)
IMAGE = _record(
    "foxglove.CompressedImage",
    {"timestamp": TIME, "frame_id": TEXT, "data": {"type": "string", "contentEncoding": "base64"}, "format": TEXT},
    ("timestamp", "data", "format"),
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

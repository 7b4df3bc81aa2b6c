"""Segment: one remembered fact as text, with its version and the step of its last change."""

from __future__ import annotations

from dataclasses import dataclass

CATEGORIES = ("object", "receptacle", "agent", "history", "task", "session", "turn")


@dataclass(frozen=True, slots=True)
class Segment:
    id: str
    category: str  # one of CATEGORIES
    text: str  # one line, ends with a newline
    version: int  # 1 at creation, +1 at every change of text
    created: int  # running number within its store: the order of first appearance
    last_changed: int  # step at which this version was written
    parent: str | None = None  # id of the amended segment (prompt style `linked`) or a chat line's date line

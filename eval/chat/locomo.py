"""LoCoMo (arXiv 2402.17753): dated sessions of two people over months, with five categories of questions.

A file is one JSON object per conversation, gzipped or not, or the published list of objects, which hold their sessions
under the key ``conversation``.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from eval.chat.conversation import ADVERSARIAL, Conversation, Question, Session, Turn
from eval.chat.field_reader import REMEDY, field
from keep_agent.errors import DataError

CATEGORIES = {1: "multi-hop", 2: "temporal", 3: "open-domain", 4: "single-hop", 5: ADVERSARIAL}
_SESSION = re.compile(r"session_(\d+)")
_TURN = re.compile(r"D\d+:\d+")


def locomo(row: Mapping[str, Any], id: str, where: str) -> Conversation:
    """Parse a conversation; ``where`` names its place in error messages. Raises DataError."""
    talk = field(row, "conversation", dict, where) if "conversation" in row else row
    numbers = sorted(int(match[1]) for key in talk if (match := _SESSION.fullmatch(key)))
    if not numbers:
        raise DataError(f"{where}: there is no field 'session_1', so this is no LoCoMo conversation; {REMEDY}")
    sessions = tuple(_session(talk, number, where) for number in numbers)
    entries = enumerate(field(row, "qa", list, where), 1)
    return Conversation(id, sessions, tuple(_question(qa, f"q{i}", f"{where}, qa {i}") for i, qa in entries))


def _session(talk: Mapping[str, Any], number: int, where: str) -> Session:
    name = f"session_{number}"
    turns = [_turn(turn, f"{where}, {name}, turn {i}") for i, turn in enumerate(field(talk, name, list, where), 1)]
    return Session(f"D{number}", field(talk, f"{name}_date_time", str, where), tuple(turns))


def _turn(turn: Any, where: str) -> Turn:
    """Parse a turn; the caption of a picture becomes part of its text."""
    text = field(turn, "text", str, where)
    caption = field(turn, "blip_caption", str, where) if "blip_caption" in turn else ""
    text = f"{text} (shows {caption})" if caption else text
    return Turn(field(turn, "dia_id", str, where), field(turn, "speaker", str, where), text)


def _question(qa: Any, id: str, where: str) -> Question:
    number = field(qa, "category", int, where)
    if number not in CATEGORIES:
        raise DataError(f"{where}: category {number} is unknown; it should be 1 to 5")
    category = CATEGORIES[number]
    unanswered = category == ADVERSARIAL and "answer" not in qa
    answer = "" if unanswered else str(field(qa, "answer", (str, int, float), where))
    if category == "open-domain":
        answer = answer.partition(";")[0].strip()  # the reason follows the semicolon
    ids = " ".join(map(str, field(qa, "evidence", list, where)))
    evidence = tuple(dict.fromkeys(_TURN.findall(ids)))
    return Question(id, field(qa, "question", str, where), answer, category, evidence=evidence)

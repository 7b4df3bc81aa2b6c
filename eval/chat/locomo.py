"""LoCoMo (arXiv 2402.17753): two people, dated sessions over months, five kinds of questions.

One JSON object per conversation, gzipped or not, or the published list of such objects, in which the sessions lie one
level deeper, under ``conversation``.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from eval.chat.conversation import ADVERSARIAL, Conversation, Question, Session, Turn
from eval.chat.field_reader import field
from keep_agent.errors import DataError

CATEGORIES = {1: "multi-hop", 2: "temporal", 3: "open-domain", 4: "single-hop", 5: ADVERSARIAL}
_SESSION = re.compile(r"session_(\d+)")
_TURN = re.compile(r"D\d+:\d+")


def locomo(row: Mapping[str, Any], id: str, where: str) -> Conversation:
    """A conversation of the published format; ``where`` names its place for errors. Raises DataError."""
    told = field(row, "conversation", dict, where) if "conversation" in row else row
    numbers = sorted(int(match[1]) for key in told if (match := _SESSION.fullmatch(key)))
    if not numbers:
        raise DataError(f"{where}: there is no field 'session_1', so this is no LoCoMo conversation")
    sessions = tuple(_session(told, number, where) for number in numbers)
    asked = field(row, "qa", list, where)
    questions = tuple(_question(qa, f"q{number}", f"{where}, qa {number}") for number, qa in enumerate(asked, 1))
    return Conversation(id, sessions, questions)


def _session(told: Mapping[str, Any], number: int, where: str) -> Session:
    name = f"session_{number}"
    turns = [_turn(turn, f"{where}, {name}, turn {i}") for i, turn in enumerate(field(told, name, list, where), 1)]
    return Session(f"D{number}", field(told, f"{name}_date_time", str, where), tuple(turns))


def _turn(turn: Any, where: str) -> Turn:
    """A picture is told by its caption."""
    text = field(turn, "text", str, where)
    caption = field(turn, "blip_caption", str, where) if "blip_caption" in turn else ""
    shown = f"{text} (shows {caption})" if caption else text
    return Turn(field(turn, "dia_id", str, where), field(turn, "speaker", str, where), shown)


def _question(qa: Any, id: str, where: str) -> Question:
    number = field(qa, "category", int, where)
    if number not in CATEGORIES:
        raise DataError(f"{where}: category {number} is unknown; it should be 1 to 5")
    category = CATEGORIES[number]
    unanswered = category == ADVERSARIAL and "answer" not in qa
    answer = "" if unanswered else str(field(qa, "answer", (str, int, float), where))
    if category == "open-domain":
        answer = answer.partition(";")[0].strip()  # behind it stands why
    told = " ".join(map(str, field(qa, "evidence", list, where)))
    evidence = tuple(dict.fromkeys(_TURN.findall(told)))
    return Question(id, field(qa, "question", str, where), answer, category, evidence=evidence)

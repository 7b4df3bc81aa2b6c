"""LongMemEval (arXiv 2410.10813): each question has its own haystack of dated chats between a user and an assistant."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from eval.chat.conversation import ADVERSARIAL, Conversation, Question, Session, Turn
from eval.chat.field_reader import field
from keep_agent.errors import DataError

ABSTENTION = "_abs"  # suffix of the ids of unanswerable questions
_DATED = re.compile(r"\d{4}/\d\d/\d\d")


def longmemeval(row: Mapping[str, Any], where: str) -> Conversation:
    """Parse one instance: its sessions and its question. Raises DataError."""
    id = field(row, "question_id", str, where)
    chats, dates = field(row, "haystack_sessions", list, where), field(row, "haystack_dates", list, where)
    if len(chats) != len(dates):
        raise DataError(
            f"{where}: {len(chats)} haystack_sessions but {len(dates)} haystack_dates; each needs the other"
        )
    sessions, evidence = [], []
    for number, index in enumerate(_order(dates), 1):
        turns, date = chats[index], dates[index]
        place = f"{where}, haystack_sessions {index + 1}"
        if not isinstance(turns, list):
            raise DataError(f"{place}: a list of turns was expected, not {type(turns).__name__}")
        session = [_turn(turn, f"D{number}:{i}", f"{place}, turn {i}") for i, turn in enumerate(turns, 1)]
        evidence += [t.id for t, turn in zip(session, turns, strict=True) if turn.get("has_answer")]
        sessions.append(Session(f"D{number}", str(date), tuple(session)))
    category = ADVERSARIAL if id.endswith(ABSTENTION) else field(row, "question_type", str, where)
    answer = "" if category == ADVERSARIAL else str(field(row, "answer", (str, int, float), where))
    date = field(row, "question_date", str, where) if "question_date" in row else ""
    question = Question(id, field(row, "question", str, where), answer, category, (), tuple(evidence), date)
    return Conversation(id, tuple(sessions), (question,))


def _order(dates: Sequence[Any]) -> list[int]:
    """Order the sessions by date; the file that contains only evidence sessions is not sorted."""
    order = list(range(len(dates)))
    return sorted(order, key=lambda i: dates[i]) if all(_DATED.match(str(date)) for date in dates) else order


def _turn(turn: Any, id: str, where: str) -> Turn:
    return Turn(id, field(turn, "role", str, where), field(turn, "content", str, where))

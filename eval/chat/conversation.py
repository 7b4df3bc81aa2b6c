"""Conversations that are remembered, and questions about them. Plain data; loaders and generators make it."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass

from keep_agent.errors import ConfigError, DataError, did_you_mean

UNITS = ("turn", "session")
ADVERSARIAL = "adversarial"  # the category of questions that the conversation does not answer


def one_line(text: str) -> str:
    """A segment is one line: no newline may come from outside."""
    return " ".join(text.split())


@dataclass(frozen=True, slots=True)
class Turn:
    id: str  # unique within its conversation
    speaker: str
    text: str


@dataclass(frozen=True, slots=True)
class Session:
    """Turns said on one occasion; ``date`` as the source writes it, "" if it does not."""

    id: str
    date: str
    turns: tuple[Turn, ...]


@dataclass(frozen=True, slots=True)
class Question:
    """One question. With ``choices`` it is multiple choice, and ``answer`` is one of them."""

    id: str
    text: str
    answer: str  # "" where nothing but abstaining is right
    category: str
    choices: tuple[str, ...] = ()
    evidence: tuple[str, ...] = ()  # ids of the turns, or sessions, that tell the answer
    date: str = ""  # when it is asked

    @property
    def adversarial(self) -> bool:
        return self.category == ADVERSARIAL


@dataclass(frozen=True, slots=True)
class Conversation:
    """What one memory holds while ``questions`` are asked.

    Conversations of one ``group`` follow one another in the same memory: what was encoded for one stays for the next.
    ``lived``: whoever is asked was there when it was held; else it is put before them together with the question, and
    the rows of that prompt stay for the next as well.
    """

    id: str
    sessions: tuple[Session, ...]
    questions: tuple[Question, ...]
    group: str = ""
    lived: bool = True

    def __post_init__(self) -> None:
        ids = [turn.id for session in self.sessions for turn in session.turns] + [s.id for s in self.sessions]
        if len(set(ids)) < len(ids):
            twice = next(id for id in ids if ids.count(id) > 1)
            raise DataError(f"conversation {self.id}: two turns or sessions are called {twice!r}; ids must differ")
        for question in self.questions:
            if question.choices and question.answer not in question.choices:
                raise DataError(
                    f"conversation {self.id}: the answer {question.answer!r} of question {question.id} is none of its "
                    f"{len(question.choices)} choices"
                )


def together(one: Conversation, other: Conversation) -> bool:
    """Are they remembered in one memory, because they are of one group or the same?"""
    return one is other or (one.group != "" and one.group == other.group)


@dataclass(frozen=True, slots=True)
class Piece:
    """A segment to be written: one line."""

    id: str
    category: str
    text: str
    parent: str | None = None


def check_unit(unit: str) -> str:
    """``unit``, if it is one of `UNITS`. Raises ConfigError."""
    if unit not in UNITS:
        raise ConfigError(f"unit={unit} is unknown; choose one of: {', '.join(UNITS)}{did_you_mean(str(unit), UNITS)}")
    return unit


def pieces(session: Session, unit: str) -> list[Piece]:
    """The segments of a session: one per turn behind one for the date, or all of it as one (``unit=session``)."""
    told = [(turn.id, f"{turn.speaker}: {one_line(turn.text)}") for turn in session.turns if turn.text.strip()]
    head = f"conversation on {one_line(session.date)}" if session.date else ""
    if unit == "session":
        text = " | ".join([*([head] if head else []), *(line for _, line in told)])
        return [Piece(session.id, "session", text + "\n")] if told else []
    header = [Piece(session.id, "session", head + "\n")] if head and told else []
    parent = session.id if header else None
    return header + [Piece(id, "turn", line + "\n", parent) for id, line in told]


Asked = tuple[Conversation, Question]


def draw(conversations: Sequence[Conversation], limit: int | None, seed: int) -> list[Asked]:
    """All questions in order, or ``limit`` of them drawn with ``seed``, in the same order."""
    questions = [(conversation, question) for conversation in conversations for question in conversation.questions]
    if limit is None or limit >= len(questions):
        return questions
    return [questions[i] for i in sorted(random.Random(seed).sample(range(len(questions)), limit))]

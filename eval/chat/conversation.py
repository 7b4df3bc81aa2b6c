"""Conversations and questions about them: plain data, produced by loaders and generators."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass

from keep_agent.errors import ConfigError, DataError, did_you_mean

UNITS = ("turn", "session")  # parts of a conversation that can be one segment (one text of the memory)
ADVERSARIAL = "adversarial"  # category of questions without an answer in the conversation


def one_line(text: str) -> str:
    """Join the words of a text into one line, since a segment has only one newline, at its end."""
    return " ".join(text.split())


@dataclass(frozen=True, slots=True)
class Turn:
    id: str  # unique within its conversation
    speaker: str
    text: str


@dataclass(frozen=True, slots=True)
class Session:
    """Turns of one occasion; ``date`` is written as in the source, or "" if it is unknown."""

    id: str
    date: str
    turns: tuple[Turn, ...]


@dataclass(frozen=True, slots=True)
class Question:
    """Question about a conversation. With ``choices`` it is multiple choice, and ``answer`` is one of them."""

    id: str
    text: str
    answer: str  # "" if the only correct answer is that it is unknown
    category: str
    choices: tuple[str, ...] = ()
    evidence: tuple[str, ...] = ()  # ids of the turns that contain the answer
    date: str = ""  # date on which the question is asked, or "" if it is unknown

    @property
    def adversarial(self) -> bool:
        return self.category == ADVERSARIAL


@dataclass(frozen=True, slots=True)
class Conversation:
    """Sessions that fill one memory, and the questions asked about them.

    Consecutive conversations of one ``group`` share a memory: each reuses keys and values of earlier conversations. If
    the conversation is ``incremental``, a method may store rows (keys and values of tokens) after each session, but not
    the rows of a question's prompt. Otherwise the method stores only the rows of questions' prompts.
    """

    id: str
    sessions: tuple[Session, ...]
    questions: tuple[Question, ...]
    group: str = ""
    incremental: bool = True

    def __post_init__(self) -> None:
        ids = [turn.id for session in self.sessions for turn in session.turns] + [s.id for s in self.sessions]
        if len(set(ids)) < len(ids):
            twice = next(id for id in ids if ids.count(id) > 1)
            raise DataError(f"conversation {self.id}: two turns or sessions have the id {twice!r}; ids must differ")
        for question in self.questions:
            if question.choices and question.answer not in question.choices:
                raise DataError(
                    f"conversation {self.id}: the answer {question.answer!r} of question {question.id} is not one of "
                    f"its {len(question.choices)} choices; correct the data"
                )

    def shares_memory(self, conversation: Conversation) -> bool:
        """Return whether this and ``conversation`` use one memory: they are identical, or their group is the same."""
        return self is conversation or (self.group != "" and self.group == conversation.group)


@dataclass(frozen=True, slots=True)
class Line:
    """Segment to store in the memory: one line of text."""

    id: str
    category: str
    text: str
    parent: str | None = None  # id of the line with the session's date, if there is such a line


def check_unit(unit: str) -> str:
    """Return ``unit`` if it is one of `UNITS`. Raises ConfigError otherwise."""
    if unit not in UNITS:
        raise ConfigError(f"unit={unit} is unknown; choose one of: {', '.join(UNITS)}{did_you_mean(str(unit), UNITS)}")
    return unit


def lines_of(session: Session, unit: str) -> list[Line]:
    """Split a session into segments: one for the date and one per turn; with ``unit=session`` one for everything."""
    lines = [(turn.id, f"{turn.speaker}: {one_line(turn.text)}") for turn in session.turns if turn.text.strip()]
    head = [f"conversation on {one_line(session.date)}"] if session.date and lines else []
    if unit == "session":
        return [Line(session.id, "session", " | ".join([*head, *dict(lines).values()]) + "\n")] if lines else []
    header = [Line(session.id, "session", text + "\n") for text in head]
    return header + [Line(id, "turn", line + "\n", session.id if header else None) for id, line in lines]


Item = tuple[Conversation, Question]  # one evaluated question, with its conversation


def draw(conversations: Sequence[Conversation], limit: int | None, seed: int) -> list[Item]:
    """Return all questions, or ``limit`` of them drawn with ``seed``, in their original order."""
    questions = [(conversation, question) for conversation in conversations for question in conversation.questions]
    if limit is None or limit >= len(questions):
        return questions
    return [questions[i] for i in sorted(random.Random(seed).sample(range(len(questions)), limit))]

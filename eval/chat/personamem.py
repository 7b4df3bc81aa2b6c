"""PersonaMem (arXiv 2504.14225): multiple choice, in a CSV file of questions and a JSONL file of shared contexts.

A question refers to the first ``end_index_in_shared_context`` messages of its context. A system message begins a
session.
"""

from __future__ import annotations

import ast
import csv
import io
import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from eval.chat.conversation import Conversation, Question, Session, Turn
from eval.chat.field_reader import REMEDY, field
from keep_agent.errors import DataError
from keep_agent.files import parsed, read_text

_LABEL = re.compile(r"^\s*\(?([a-z])[).]\s*", re.IGNORECASE)


def personamem(questions: Path) -> list[Conversation]:
    """Load the questions; those with the same messages form one conversation. Raises DataError."""
    contexts_file = questions.with_name(questions.stem.replace("questions", "shared_contexts") + ".jsonl")
    contexts = _contexts(contexts_file)
    groups: dict[tuple[str, int], list[Question]] = {}
    for number, row in enumerate(csv.DictReader(io.StringIO(read_text(questions, REMEDY))), 1):
        where = f"{questions}, question {number}"
        context, end = (field(row, key, str, where) for key in ("shared_context_id", "end_index_in_shared_context"))
        if context not in contexts:
            raise DataError(f"{where}: shared_context_id {context!r} is not in {contexts_file}")
        if not end.isdecimal():
            raise DataError(f"{where}: the field 'end_index_in_shared_context' should be a number, but it is {end!r}")
        groups.setdefault((context, int(end)), []).append(_question(row, where))
    conversations = []
    for (context, end), group in sorted(groups.items()):
        sessions = _sessions(contexts[context][:end], f"{contexts_file}, {context}")
        conversations.append(Conversation(f"{context}:{end}", sessions, tuple(group), group=context))
    return conversations


def _contexts(path: Path) -> dict[str, list[Any]]:
    """Read the messages by context id; each line is an object of one key."""
    contexts: dict[str, list[Any]] = {}
    for number, line in enumerate(read_text(path, REMEDY).split("\n"), 1):
        row = parsed(line, f"{path}:{number}", REMEDY) if line.strip() else {}
        for key in row:
            contexts[key] = field(row, key, list, f"{path}:{number}")
    return contexts


def _sessions(messages: Sequence[Any], where: str) -> tuple[Session, ...]:
    sessions: list[list[Turn]] = []
    for number, message in enumerate(messages, 1):
        place = f"{where}, message {number}"
        role, text = field(message, "role", str, place), field(message, "content", str, place)
        if role == "system" or not sessions:
            sessions.append([])
        sessions[-1].append(Turn(f"D{len(sessions)}:{number}", role, text))
    return tuple(Session(f"D{number}", "", tuple(turns)) for number, turns in enumerate(sessions, 1))


def _question(row: Mapping[str, Any], where: str) -> Question:
    labelled = _options(field(row, "all_options", str, where), where)
    right = _LABEL.match(field(row, "correct_answer", str, where))
    choices = tuple(_LABEL.sub("", option).strip() for option in labelled)
    letters = [match[1].lower() if (match := _LABEL.match(option)) else "" for option in labelled]
    if right is None or right[1].lower() not in letters:
        raise DataError(f"{where}: correct_answer {row['correct_answer']!r} is none of the labels {letters}")
    answer = choices[letters.index(right[1].lower())]
    id, text = field(row, "question_id", str, where), field(row, "user_question_or_message", str, where)
    return Question(id, text, answer, field(row, "question_type", str, where), choices)


def _options(text: str, where: str) -> list[str]:
    """Parse the list of choices, in JSON or Python syntax."""
    for read in (json.loads, ast.literal_eval):
        try:
            options = read(text)
        except (ValueError, SyntaxError, RecursionError, MemoryError):  # the last two: too deep nesting
            continue
        if isinstance(options, list) and options and all(isinstance(option, str) for option in options):
            return options
    raise DataError(f"{where}: the field 'all_options' should be a list of texts, but it is {text[:60]!r}")

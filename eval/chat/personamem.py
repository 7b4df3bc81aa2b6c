"""Multiple choice after PersonaMem (arXiv 2504.14225): a CSV of questions beside a JSONL of shared contexts.

A question sees the first ``end_index_in_shared_context`` messages of its context. A system message begins a session.
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
    """Questions that see the same messages make one conversation. Raises DataError."""
    contexts_file = questions.with_name(questions.stem.replace("questions", "shared_contexts") + ".jsonl")
    contexts = _contexts(contexts_file)
    seen: dict[tuple[str, int], list[Question]] = {}
    for number, row in enumerate(csv.DictReader(io.StringIO(read_text(questions, REMEDY))), 1):
        where = f"{questions}, question {number}"
        context, end = (
            field(row, "shared_context_id", str, where),
            field(row, "end_index_in_shared_context", str, where),
        )
        if context not in contexts:
            raise DataError(f"{where}: shared_context_id {context!r} is not in {contexts_file}")
        if not end.isdecimal():
            raise DataError(f"{where}: the field 'end_index_in_shared_context' should be a number, but it is {end!r}")
        seen.setdefault((context, int(end)), []).append(_question(row, where))
    return [
        Conversation(f"{context}:{end}", _sessions(contexts[context][:end], f"{contexts_file}, {context}"),
                     tuple(asked), group=context)
        for (context, end), asked in sorted(seen.items())
    ]  # fmt: skip


def _contexts(path: Path) -> dict[str, list[Any]]:
    """Messages by context id: one object with one key per line."""
    found: dict[str, list[Any]] = {}
    for number, line in enumerate(read_text(path, REMEDY).split("\n"), 1):
        row = parsed(line, f"{path}:{number}", REMEDY) if line.strip() else {}
        for key in row:
            found[key] = field(row, key, list, f"{path}:{number}")
    return found


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
    """The list of choices, written as JSON or as Python writes a list."""
    for read in (json.loads, ast.literal_eval):
        try:
            options = read(text)
        except (ValueError, SyntaxError, RecursionError, MemoryError):  # the last two: nested too deeply
            continue
        if isinstance(options, list) and options and all(isinstance(option, str) for option in options):
            return options
    raise DataError(f"{where}: the field 'all_options' should be a list of texts, but it is {text[:60]!r}")

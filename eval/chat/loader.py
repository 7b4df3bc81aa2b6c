"""Loader of conversations: files of LoCoMo, LongMemEval and PersonaMem, or a folder of such files."""

from __future__ import annotations

import ast
import csv
import io
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

from eval.chat.conversation import ADVERSARIAL, Conversation, Question, Session, Turn
from keep_agent.errors import DataError, check_once
from keep_agent.files import parsed, read_json, read_text

T = TypeVar("T")
ENDINGS = (".json", ".json.gz")
REMEDY = "fetch it again, or give data=FILE_OR_FOLDER"


def field(row: Any, name: str, kind: type[T] | tuple[type, ...], where: str) -> T:
    """Return ``row[name]`` of type ``kind``. Raises DataError; its text begins with ``where`` (file and entry)."""
    if not isinstance(row, Mapping):
        raise DataError(f"{where}: an object with the field {name!r} was expected, not {type(row).__name__}")
    if name not in row:
        raise DataError(f"{where}: the field {name!r} is missing")
    value = row[name]
    if not isinstance(value, kind) or isinstance(value, bool):
        kinds = kind if isinstance(kind, tuple) else (kind,)
        types = " or ".join(k.__name__ for k in kinds)
        raise DataError(f"{where}: the field {name!r} should be {types}, but it is {type(value).__name__}")
    return value


CATEGORIES = {1: "multi-hop", 2: "temporal", 3: "open-domain", 4: "single-hop", 5: ADVERSARIAL}
_SESSION = re.compile(r"session_(\d+)")
_TURN = re.compile(r"D\d+:\d+")


def locomo(row: Mapping[str, Any], id: str, where: str) -> Conversation:
    """Parse a conversation; ``where`` is its place (file and entry) in error messages. Raises DataError."""
    talk = field(row, "conversation", dict, where) if "conversation" in row else row
    numbers = sorted(int(match[1]) for key in talk if (match := _SESSION.fullmatch(key)))
    if not numbers:
        raise DataError(f"{where}: there is no field 'session_1', so this is not a LoCoMo conversation; {REMEDY}")
    sessions = []
    for number in numbers:
        name = f"session_{number}"
        entries = enumerate(field(talk, name, list, where), 1)
        turns = tuple(_locomo_turn(turn, f"{where}, {name}, turn {i}") for i, turn in entries)
        sessions.append(Session(f"D{number}", field(talk, f"{name}_date_time", str, where), turns))
    entries = enumerate(field(row, "qa", list, where), 1)
    questions = tuple(_locomo_question(qa, f"q{i}", f"{where}, qa {i}") for i, qa in entries)
    return Conversation(id, tuple(sessions), questions)


def _locomo_turn(turn: Any, where: str) -> Turn:
    """Parse a turn; the caption of its picture becomes part of its text."""
    text = field(turn, "text", str, where)
    caption = field(turn, "blip_caption", str, where) if "blip_caption" in turn else ""
    text = f"{text} (shows {caption})" if caption else text
    return Turn(field(turn, "dia_id", str, where), field(turn, "speaker", str, where), text)


def _locomo_question(qa: Any, id: str, where: str) -> Question:
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


ABSTENTION = "_abs"  # suffix of the ids of unanswerable questions
_DATED = re.compile(r"\d{4}/\d\d/\d\d")


def longmemeval(row: Mapping[str, Any], where: str) -> Conversation:
    """Parse an entry: a question, and the chat sessions before it. Raises DataError."""
    id = field(row, "question_id", str, where)
    chats, dates = field(row, "haystack_sessions", list, where), field(row, "haystack_dates", list, where)
    if len(chats) != len(dates):
        sizes = f"{len(chats)} haystack_sessions but {len(dates)} haystack_dates"
        raise DataError(f"{where}: {sizes}; give one date per session")
    order = list(enumerate(dates))
    if all(_DATED.match(str(date)) for date in dates):  # sort by date: LongMemEval's evidence-only file is unsorted
        order.sort(key=lambda pair: pair[1])
    sessions, evidence = [], []
    for number, (index, date) in enumerate(order, 1):
        turns, place = chats[index], f"{where}, haystack_sessions {index + 1}"
        if not isinstance(turns, list):
            raise DataError(f"{place}: a list of turns was expected, not {type(turns).__name__}")
        session = [_message(turn, f"D{number}:{i}", f"{place}, turn {i}") for i, turn in enumerate(turns, 1)]
        evidence += [t.id for t, turn in zip(session, turns, strict=True) if turn.get("has_answer")]
        sessions.append(Session(f"D{number}", str(date), tuple(session)))
    category = ADVERSARIAL if id.endswith(ABSTENTION) else field(row, "question_type", str, where)
    answer = "" if category == ADVERSARIAL else str(field(row, "answer", (str, int, float), where))
    date = field(row, "question_date", str, where) if "question_date" in row else ""
    question = Question(id, field(row, "question", str, where), answer, category, (), tuple(evidence), date)
    return Conversation(id, tuple(sessions), (question,))


def _message(turn: Any, id: str, where: str) -> Turn:
    return Turn(id, field(turn, "role", str, where), field(turn, "content", str, where))


_LABEL = re.compile(r"^\s*\(?([a-z])[).]\s*", re.IGNORECASE)


def personamem(questions: Path) -> list[Conversation]:
    """Load PersonaMem's questions; questions about the same messages form one conversation. Raises DataError."""
    contexts_file = questions.with_name(questions.stem.replace("questions", "shared_contexts") + ".jsonl")
    contexts: dict[str, list[Any]] = {}  # messages by context id; each line of the file is an object with one id as key
    for number, line in enumerate(read_text(contexts_file, REMEDY).split("\n"), 1):
        where = f"{contexts_file}:{number}"
        row = parsed(line, where, REMEDY) if line.strip() else {}
        contexts |= {key: field(row, key, list, where) for key in row}
    groups: dict[tuple[str, int], list[Question]] = {}
    for number, row in enumerate(csv.DictReader(io.StringIO(read_text(questions, REMEDY))), 1):
        where = f"{questions}, question {number}"
        context, end = (field(row, key, str, where) for key in ("shared_context_id", "end_index_in_shared_context"))
        if context not in contexts:
            raise DataError(f"{where}: shared_context_id {context!r} is not in {contexts_file}")
        if not end.isdecimal():
            raise DataError(f"{where}: the field 'end_index_in_shared_context' should be a number, but it is {end!r}")
        groups.setdefault((context, int(end)), []).append(_choice_question(row, where))
    conversations = []
    for (context, end), group in sorted(groups.items()):
        sessions = _context_sessions(contexts[context][:end], f"{contexts_file}, {context}")
        conversations.append(Conversation(f"{context}:{end}", sessions, tuple(group), group=context))
    return conversations


def _context_sessions(messages: Sequence[Any], where: str) -> tuple[Session, ...]:
    sessions: list[list[Turn]] = []
    for number, message in enumerate(messages, 1):
        turn = _message(message, "", f"{where}, message {number}")
        if turn.speaker == "system" or not sessions:
            sessions.append([])
        sessions[-1].append(replace(turn, id=f"D{len(sessions)}:{number}"))
    return tuple(Session(f"D{number}", "", tuple(turns)) for number, turns in enumerate(sessions, 1))


def _choice_question(row: Mapping[str, Any], where: str) -> Question:
    labelled = _options(field(row, "all_options", str, where), where)
    matches = [_LABEL.match(text) for text in (field(row, "correct_answer", str, where), *labelled)]
    right, *letters = (match[1].lower() if match else "" for match in matches)
    choices = tuple(_LABEL.sub("", option).strip() for option in labelled)
    if not right or right not in letters:
        raise DataError(f"{where}: correct_answer {row['correct_answer']!r} is not one of the labels {letters}")
    keys = "question_id", "user_question_or_message", "question_type"
    id, text, category = (field(row, key, str, where) for key in keys)
    return Question(id, text, choices[letters.index(right)], category, choices)


def _options(text: str, where: str) -> list[str]:
    for read in (json.loads, ast.literal_eval):
        try:
            options = read(text)
        except (ValueError, SyntaxError, RecursionError, MemoryError):  # the last two if lists are nested deeply
            continue
        if isinstance(options, list) and options and all(isinstance(option, str) for option in options):
            return options
    raise DataError(f"{where}: the field 'all_options' should be a list of texts, but it is {text[:60]!r}")


KNOWN_FORMATS = "LoCoMo's conversations, LongMemEval's list of questions, or PersonaMem's questions_*.csv"


def load_conversations(path: Path) -> list[Conversation]:
    """Load a file; or a folder's questions*.csv, else its JSON files, in order of name. Raises DataError."""
    files = [path]
    if path.is_dir():
        tables = sorted(path.glob("questions*.csv"))
        files = tables or sorted(file for file in path.iterdir() if file.name.endswith(ENDINGS))
    if not files:
        raise DataError(f"{path} holds no conversations; give a folder or file with {KNOWN_FORMATS}")
    conversations: list[Conversation] = []
    for file in files:
        if file.suffix == ".csv":
            conversations += personamem(file)
            continue
        content, name = read_json(file, REMEDY), file.name.partition(".")[0]
        if isinstance(content, list):
            rows = enumerate(content, 1)
            conversations += [_parse(row, f"{name}-{number}", f"{file}, entry {number}") for number, row in rows]
        else:
            conversations.append(_parse(content, name, str(file)))
    check_once([item.id for item in conversations], f"{path}: conversation", "give files without repetitions")
    return conversations


def _parse(row: Any, id: str, where: str) -> Conversation:
    if isinstance(row, Mapping) and "haystack_sessions" in row:
        return longmemeval(row, where)
    if isinstance(row, Mapping) and "qa" in row:
        return locomo(row, str(row.get("sample_id", id)), where)
    raise DataError(f"{where}: there is neither a field 'qa' nor 'haystack_sessions'; give {KNOWN_FORMATS}")

"""Loader of conversations from a file or folder in any supported format."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from eval.chat.conversation import Conversation
from eval.chat.field_reader import ENDINGS, REMEDY
from eval.chat.locomo import locomo
from eval.chat.longmemeval import longmemeval
from eval.chat.personamem import personamem
from keep_agent.errors import DataError, check_once
from keep_agent.files import read_json

KNOWN = "LoCoMo's conversations, LongMemEval's list of questions, or PersonaMem's questions_*.csv"


def load_conversations(path: Path) -> list[Conversation]:
    """Load the conversations of a file, or of a folder's files in the order of their names. Raises DataError."""
    files = [path] if not path.is_dir() else _files_of(path)
    conversations = [conversation for file in files for conversation in _load_file(file)]
    check_once([item.id for item in conversations], f"{path}: conversation", "give files without repetitions")
    return conversations


def _files_of(path: Path) -> list[Path]:
    tables = sorted(path.glob("questions*.csv"))
    files = tables or sorted(file for file in path.iterdir() if file.name.endswith(ENDINGS))
    if not files:
        raise DataError(f"{path} holds no conversations; give a folder or file with {KNOWN}")
    return files


def _load_file(path: Path) -> list[Conversation]:
    if path.suffix == ".csv":
        return personamem(path)
    content, name = read_json(path, REMEDY), path.name.partition(".")[0]
    if isinstance(content, list):
        return [_parse(row, f"{name}-{number}", f"{path}, entry {number}") for number, row in enumerate(content, 1)]
    return [_parse(content, name, str(path))]


def _parse(row: Any, id: str, where: str) -> Conversation:
    if isinstance(row, Mapping) and "haystack_sessions" in row:
        return longmemeval(row, where)
    if isinstance(row, Mapping) and "qa" in row:
        return locomo(row, str(row.get("sample_id", id)), where)
    raise DataError(f"{where}: there is neither a field 'qa' nor 'haystack_sessions'; give {KNOWN}")

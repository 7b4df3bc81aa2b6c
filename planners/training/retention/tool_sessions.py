"""Sessions of an agent that acts, as training files: what was said turn by turn, and what the actions were about."""

from __future__ import annotations

import gzip
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from keep_agent.errors import DataError
from keep_agent.files import reading
from memory.files.end_mark import read_marks
from memory.files.json_lines import Chain

REMEDY = "give sessions that eval.sessions wrote, with the file .end beside them, or chats as OpenAI's API has them"
ACTIONABLE = ("user", "tool", "function")
LAST = 32  # tokens that stand for the actionable words of a turn without any (arXiv 2606.09916)
Encode = Callable[[str], Sequence[int]]


@dataclass(frozen=True, slots=True)
class ToolTurn:
    """What a turn adds to the transcript, and the arguments of the action that follows it.

    The last ``query`` of ``ids`` are the actionable words, the first ``instruction`` of those a new instruction.
    ``begins``: the transcript starts anew with this turn; its first ``protected`` tokens are never dropped.
    """

    ids: tuple[int, ...]
    query: int
    arguments: tuple[str, ...]
    instruction: int = 0
    begins: bool = False
    protected: int = 0


@dataclass(frozen=True, slots=True)
class ToolSession:
    name: str
    turns: tuple[ToolTurn, ...]


def session_line(session: ToolSession) -> dict[str, Any]:
    """What a session file says of a session, as JSON."""
    turns = [
        {
            "ids": turn.ids,
            "query": turn.query,
            "instruction": turn.instruction,
            "begins": turn.begins,
            "protected": turn.protected,
            "arguments": turn.arguments,
        }
        for turn in session.turns
    ]
    return {"session": session.name, "turns": turns}


def read_sessions(path: Path, encode: Encode) -> Iterator[ToolSession]:
    """Sessions of a JSONL file (.gz or not): our own ``turns``, or chat ``messages`` with tool calls as OpenAI's API
    writes them.

    :raises DataError: naming file and line
    """
    opener, plain = (gzip.open, path.with_suffix("")) if path.suffix == ".gz" else (open, path)
    mark, number = next(iter(read_marks(plain)), None), 0
    chain = Chain() if mark is None else Chain(mark.start, True)
    with reading(path), opener(path, "rb") as lines:
        for number, line in enumerate(lines, 1):
            if not line.strip():
                continue
            entry, where = chain.open(line.rstrip(b"\n"), f"{path}:{number}", REMEDY), f"{path.name}:{number}"
            try:
                session = _session(entry, where, encode)
            except (ValueError, KeyError, TypeError, AttributeError) as error:
                what = f"{type(error).__name__}: {error}"
                raise DataError(f"{path}:{number} holds no tool-call session ({what}); {REMEDY}") from error
            yield session
    if mark is not None:
        mark.check_count(number, plain, REMEDY)
    elif not number:
        raise DataError(f"{path} is empty; {REMEDY}")


def _session(entry: Mapping[str, Any], where: str, encode: Encode) -> ToolSession:
    name = str(entry.get("session") or entry.get("id") or where)
    if "turns" in entry:
        return ToolSession(name, tuple(_turn(turn) for turn in entry["turns"]))
    return ToolSession(name, tuple(_of_messages(entry["messages"], encode)))


def _turn(turn: Mapping[str, Any]) -> ToolTurn:
    ids, arguments = tuple(map(int, turn["ids"])), tuple(map(str, turn["arguments"]))
    spans = int(turn["query"]), arguments, int(turn["instruction"])
    return ToolTurn(ids, *spans, bool(turn["begins"]), int(turn.get("protected", 0)))


def _of_messages(messages: Sequence[Mapping[str, Any]], encode: Encode) -> Iterator[ToolTurn]:
    """A turn ends where the model acts; its query span is the last message of a user, tool or function, and where there
    is none its last tokens.

    Messages of the system that come first are protected.
    """
    ids: list[int] = []
    query = instruction = protected = 0
    begins = True
    for message in messages:
        calls = message.get("tool_calls") or ()
        if message["role"] == "assistant" and calls and ids:
            asked = query or min(LAST, len(ids))
            yield ToolTurn(tuple(ids), asked, tuple(_arguments(calls)), instruction, begins, protected if begins else 0)
            ids, query, instruction, begins = [], 0, 0, False
        text = encode(f"{message['role']}: {_content(message)}\n")
        protected += len(text) if begins and message["role"] == "system" and protected == len(ids) else 0
        ids += text
        if message["role"] in ACTIONABLE:
            query, instruction = len(text), len(text) if message["role"] == "user" else 0
        elif query:
            query += len(text)  # the span runs to the end of the turn


def _content(message: Mapping[str, Any]) -> str:
    calls = message.get("tool_calls") or ()
    said = [call["function"]["name"] + " " + " ".join(_arguments([call])) for call in calls]
    return " ".join([str(message.get("content") or ""), *said]).strip()


def _arguments(calls: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    """The values, however nested, of the calls' arguments as strings."""
    for call in calls:
        given = call["function"]["arguments"]
        with suppress(ValueError):  # not JSON: the text itself is the argument
            given = json.loads(given) if isinstance(given, str) else given
        yield from _leaves(given)


def _leaves(value: Any) -> Iterator[str]:
    if isinstance(value, Mapping):
        for inner in value.values():
            yield from _leaves(inner)
    elif isinstance(value, list):
        for inner in value:
            yield from _leaves(inner)
    elif value is not None:
        yield str(value)

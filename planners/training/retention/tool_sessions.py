"""Session files of a tool-using agent: the tokens of every turn, and the arguments of its actions."""

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

REMEDY = "give sessions that eval.sessions wrote, together with their .end files, or chats in OpenAI's format"
ACTIONABLE_ROLES = ("user", "tool", "function")
DEFAULT_SPAN = 32  # length of the query span in a turn without a message of ACTIONABLE_ROLES (arXiv 2606.09916)
TURN_KEYS = ("ids", "query", "instruction", "begins", "protected", "arguments")  # fields of a turn in a file
Encode = Callable[[str], Sequence[int]]


@dataclass(frozen=True, slots=True)
class ToolTurn:
    """New tokens of a turn, and the arguments of the action that follows it.

    The last ``query`` tokens are the query span; the first ``instruction`` tokens of the span are a new instruction.
    ``begins``: the turn begins a transcript, whose first ``protected`` tokens are never evicted.
    """

    ids: tuple[int, ...]
    query: int
    arguments: tuple[str, ...]
    instruction: int = 0
    begins: bool = False
    protected: int = 0


@dataclass(frozen=True, slots=True)
class ToolSession:
    """A named sequence of turns."""

    name: str
    turns: tuple[ToolTurn, ...]


def session_line(session: ToolSession) -> dict[str, Any]:
    """Return the JSON object of a session in a session file."""
    turns = [{key: getattr(turn, key) for key in TURN_KEYS} for turn in session.turns]
    return {"session": session.name, "turns": turns}


def read_sessions(path: Path, encode: Encode) -> Iterator[ToolSession]:
    """Read the sessions of a JSONL file, plain or .gz: lines of `session_line`, or chat ``messages`` of OpenAI's API.

    :raises DataError: a line holds no session, or the file is empty or damaged
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
                cause = f"{type(error).__name__}: {error}"
                raise DataError(f"{path}:{number} is not a session with tool calls ({cause}); {REMEDY}") from error
            yield session
    if mark is not None:
        mark.check_count(number, plain, REMEDY)
    elif not number:
        raise DataError(f"{path} is empty; {REMEDY}")


def _session(entry: Mapping[str, Any], where: str, encode: Encode) -> ToolSession:
    name = str(entry.get("session") or entry.get("id") or where)
    turns = map(_turn, entry["turns"]) if "turns" in entry else _message_turns(entry["messages"], encode)
    return ToolSession(name, tuple(turns))


def _turn(turn: Mapping[str, Any]) -> ToolTurn:
    ids, arguments = tuple(map(int, turn["ids"])), tuple(map(str, turn["arguments"]))
    spans = int(turn["query"]), arguments, int(turn["instruction"])
    return ToolTurn(ids, *spans, bool(turn["begins"]), int(turn.get("protected", 0)))


def _message_turns(messages: Sequence[Mapping[str, Any]], encode: Encode) -> Iterator[ToolTurn]:
    """Divide messages into turns, each of which ends before an action. System messages at the start are never evicted.

    The query span begins at the last message of a user, tool or function; without one, it has up to `DEFAULT_SPAN`.
    """
    ids: list[int] = []
    query = instruction = protected = 0
    begins = True
    for message in messages:
        calls = message.get("tool_calls") or ()
        if message["role"] == "assistant" and calls and ids:
            span = query or min(DEFAULT_SPAN, len(ids))
            yield ToolTurn(tuple(ids), span, tuple(_arguments(calls)), instruction, begins, protected if begins else 0)
            ids, query, instruction, begins = [], 0, 0, False
        text = encode(f"{message['role']}: {_content(message)}\n")
        protected += len(text) if begins and message["role"] == "system" and protected == len(ids) else 0
        ids += text
        if message["role"] in ACTIONABLE_ROLES:
            query, instruction = len(text), len(text) if message["role"] == "user" else 0
        elif query:
            query += len(text)  # the span extends to the end of the turn


def _content(message: Mapping[str, Any]) -> str:
    calls = message.get("tool_calls") or ()
    texts = [call["function"]["name"] + " " + " ".join(_arguments([call])) for call in calls]
    return " ".join([str(message.get("content") or ""), *texts]).strip()


def _arguments(calls: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    """Yield the leaf values of the calls' arguments as strings."""
    for call in calls:
        value = call["function"]["arguments"]
        with suppress(ValueError):  # text that is not JSON is one argument
            value = json.loads(value) if isinstance(value, str) else value
        yield from _leaves(value)


def _leaves(value: Any) -> Iterator[str]:
    if isinstance(value, Mapping | list):
        for item in value.values() if isinstance(value, Mapping) else value:
            yield from _leaves(item)
    elif value is not None:
        yield str(value)

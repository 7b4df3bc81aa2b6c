from __future__ import annotations

import gzip
import json
from pathlib import Path

import pytest

from keep_agent.errors import DataError
from planners.training.retention.tool_sessions import ToolSession, ToolTurn, read_sessions, session_line


def call(name: str, arguments: str) -> dict:
    return {"function": {"name": name, "arguments": arguments}}


CHAT = {
    "id": "chat-1",
    "messages": [
        {"role": "system", "content": "help"},
        {"role": "user", "content": "weather in Rome?"},
        {"role": "assistant", "content": "", "tool_calls": [call("weather", '{"city": "Rome", "days": [1, "two"]}')]},
        {"role": "tool", "content": "sunny"},
        {"role": "assistant", "content": "let me look again", "tool_calls": [call("map", "no json")]},
        {"role": "tool", "content": "a map"},
        {"role": "assistant", "content": "it is sunny"},
    ],
}


def encode(text: str) -> list[int]:
    return list(text.encode())


def session_of(file: Path, chat: dict) -> ToolSession:
    file.write_text(json.dumps(chat))
    (session,) = read_sessions(file, encode)
    return session


def test_sessions_are_read_as_written(tmp_path: Path) -> None:
    turns = ToolTurn((1, 2, 3), 2, ("mug_1",), 1, True), ToolTurn((4,), 1, ())
    session = ToolSession("one", turns)
    for name in ("s.jsonl", "s.jsonl.gz"):
        opener = gzip.open if name.endswith("gz") else open
        with opener(tmp_path / name, "wt") as file:
            file.write(json.dumps(session_line(session)) + "\n\n")
        assert list(read_sessions(tmp_path / name, encode)) == [session]


def test_a_turn_of_a_chat_ends_before_an_action(tmp_path: Path) -> None:
    session = session_of(tmp_path / "chat.jsonl", CHAT)
    first, second = session.turns
    assert session.name == "chat-1" and bytes(first.ids).decode() == "system: help\nuser: weather in Rome?\n"
    assert bytes(first.ids[-first.query :]).decode() == "user: weather in Rome?\n"
    assert first.instruction == first.query and first.begins
    assert first.arguments == ("Rome", "1", "two")
    assert bytes(second.ids).decode() == "assistant: weather Rome 1 two\ntool: sunny\n"
    assert bytes(second.ids[-second.query :]).decode() == "tool: sunny\n"
    assert second.arguments == ("no json",) and not second.begins and not second.instruction


def test_the_query_span_of_a_turn_without_actionable_messages_is_its_last_tokens(tmp_path: Path) -> None:
    system = {"role": "system", "content": "you are a robot in a house with a mug"}
    asks = {"role": "assistant", "tool_calls": [call("go", "{}")]}
    messages = [system, asks, asks, {"role": "tool", "content": "there"}, asks]
    session = session_of(tmp_path / "chat.jsonl", {"messages": messages})
    assert [min(turn.query, 32) for turn in session.turns] == [32, len(session.turns[1].ids), len("tool: there\n")]


@pytest.mark.parametrize("line", ["{", "[]", '{"turns": [{"ids": [1]}]}', '{"messages": [{"content": "x"}]}'])
def test_files_without_sessions_are_refused(tmp_path: Path, line: str) -> None:
    file = tmp_path / "bad.jsonl"
    file.write_text(line)
    with pytest.raises(DataError, match=r"bad\.jsonl:1 .*give sessions"):
        list(read_sessions(file, encode))

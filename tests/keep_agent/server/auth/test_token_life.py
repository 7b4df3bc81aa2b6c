"""Tokens that expire or are removed while a server is up, and what becomes of their websockets."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path

import httpx
import pytest
from fastapi import APIRouter, WebSocket
from websockets.exceptions import ConnectionClosed, InvalidStatus
from websockets.sync.client import ClientConnection

from keep_agent.server.app import make_app
from keep_agent.server.auth.token_file import add_token, load_tokens, remove_token, write_tokens
from keep_agent.server.auth.tokens import Access, Entry, digest
from keep_agent.server.command import set_up_log
from tests.keep_agent.server.serving import LiveServer, bearer, serving

router = APIRouter()
ECHO = "/v1/agents/a/echo"


@router.websocket("/v1/agents/{agent}/echo")
async def echo(socket: WebSocket) -> None:
    await socket.accept()
    async for text in socket.iter_text():
        await socket.send_text(text)


@dataclass(frozen=True)
class Guarded:
    """A server, and its file of tokens: ``item`` for agent a, ``all`` for all agents."""

    server: LiveServer
    file: Path

    def get(self, token: str, path: str = "/v1/agents/a/nothing") -> httpx.Response:
        return self.server.http.get(path, headers=bearer(token))

    def socket(self, token: str) -> ClientConnection:
        return self.server.websocket(ECHO, **bearer(token))


def item(expires: datetime | None = None) -> Entry:
    return Entry(Access("one", frozenset({"a"})), digest("one"), expires)


@pytest.fixture
def guarded(tmp_path: Path) -> Iterator[Guarded]:
    file = tmp_path / "tokens.json"
    write_tokens(file, [item(), Entry(Access("all"), digest("all"))])
    with serving(make_app([router], tokens=load_tokens(file, {}))) as server:
        yield Guarded(server, file)


def test_a_removed_token_is_void_without_a_restart(guarded: Guarded) -> None:
    assert guarded.get("one").status_code == 404
    remove_token(guarded.file, "one")
    assert guarded.get("one").status_code == 401
    assert guarded.get("all").status_code == 404
    add_token(guarded.file, Entry(Access("new"), digest("new")))
    assert guarded.get("new").status_code == 404


def test_a_websocket_ends_with_its_token(guarded: Guarded) -> None:
    with guarded.socket("one") as socket, guarded.socket("all") as second:
        socket.send("x")
        assert socket.recv() == "x"
        remove_token(guarded.file, "one")
        socket.send("y")
        with pytest.raises(ConnectionClosed) as closed:
            socket.recv()
        assert closed.value.rcvd is not None and closed.value.rcvd.code == 1008
        second.send("z")
        assert second.recv() == "z"
    with pytest.raises(InvalidStatus), guarded.socket("one"):
        pass


@pytest.mark.parametrize("damaged", ["{", "", None, '{"tokens": [{}]}'])
def test_a_file_that_is_damaged_later_changes_nothing(
    guarded: Guarded, damaged: str | None, caplog: pytest.LogCaptureFixture
) -> None:
    if damaged is None:
        guarded.file.unlink()
    else:
        guarded.file.write_text(damaged)
    for _ in range(3):
        assert (guarded.get("one").status_code, guarded.get("guess").status_code) == (404, 401)
    messages = [record.message for record in caplog.records if "stay valid" in record.message]
    assert len(messages) == 1 and str(guarded.file) in messages[0]
    write_tokens(guarded.file, [])
    assert guarded.get("one").status_code == 401


def test_a_change_that_could_not_be_read_at_first_counts_a_moment_later(
    guarded: Guarded, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*arguments: object) -> None:
        raise OSError(24, "Too many open files")

    remove_token(guarded.file, "one")
    with monkeypatch.context() as patch:
        patch.setattr("keep_agent.server.auth.token_file.read_json", refuse)
        assert guarded.get("one").status_code == 404
    assert guarded.get("one").status_code == 401


def test_a_token_expires(guarded: Guarded) -> None:
    current = datetime.now(UTC)
    for expires, code in ((current + timedelta(days=1), 404), (current - timedelta(seconds=1), 401), (None, 404)):
        add_token(guarded.file, item(expires), replace=True)
        assert guarded.get("one").status_code == code


def test_no_line_of_the_log_has_a_token(
    guarded: Guarded, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """uvicorn logs the whole address of every websocket, also of a refused one."""
    monkeypatch.setattr(logging.root, "handlers", [])
    monkeypatch.setattr(logging.root, "level", logging.WARNING)
    set_up_log()
    monkeypatch.setattr(logging.getLogger("uvicorn.error"), "level", logging.INFO)
    monkeypatch.setattr(logging.getLogger("uvicorn.error"), "propagate", True)
    monkeypatch.setattr(logging.getLogger("uvicorn"), "propagate", True)
    for query in ("token=SECRET", "%74oken=SECRET", "api_key=SECRET", "SECRET", "a='SECRET", 'a="SECRET'):
        guarded.server.denied(f"{ECHO}?{query}")
    with guarded.server.websocket(f"{ECHO}?step=3&token=SECRET&x=1", **bearer("one")) as socket:
        socket.send("x")
        assert socket.recv() == "x"
    logged = capsys.readouterr().err
    assert logged.count('/v1/agents/a/echo?***" 401') == 6 and '/v1/agents/a/echo?***" [accepted]' in logged
    assert "SECRET" not in logged

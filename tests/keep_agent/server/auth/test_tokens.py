"""Tokens: the file, the command, who may do what, and where a server without any may listen."""

from __future__ import annotations

import json
import re
import stat
import subprocess
import sys
from datetime import UTC, datetime, timedelta
from io import StringIO
from pathlib import Path

import pytest
from rich.console import Console

from keep_agent.errors import ConfigError, DataError
from keep_agent.server.auth.token_command import main
from keep_agent.server.auth.token_file import add_token, load_tokens, read_tokens
from keep_agent.server.auth.tokens import TOKEN_VARIABLE, Access, TokenEntry, Tokens, check_bind, digest
from keep_agent.server.error_handlers import Forbidden

GOOD = {"name": "n", "sha256": digest("x"), "agents": "*"}


def command(*arguments: str) -> str:
    out = StringIO()
    main(arguments, Console(file=out, width=40))
    return out.getvalue().strip()


def test_the_command_makes_a_token_for_its_agents(tmp_path: Path) -> None:
    file = tmp_path / "new" / "tokens.json"
    some = command("robots", "--agents", "a, b", "--file", str(file))
    everything = command("me", "--file", str(file))
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert some not in file.read_text() and everything not in file.read_text()
    tokens = load_tokens(file, {})
    assert not tokens.open
    access = tokens.find(some)
    assert access is not None and (access.may("a"), access.may("b"), access.may("c"), access.all) == (1, 1, 0, 0)
    assert tokens.find(everything).all  # type: ignore[union-attr]
    assert tokens.find("") is tokens.find(some + "x") is tokens.find(some[:-1]) is tokens.find(digest(some)) is None


def test_a_name_has_one_token(tmp_path: Path) -> None:
    file = tmp_path / "tokens.json"
    old = command("robots", "--file", str(file))
    with pytest.raises(ConfigError, match="--replace"):
        command("robots", "--file", str(file))
    new = command("robots", "--replace", "--file", str(file))
    tokens = load_tokens(file, {})
    assert tokens.find(old) is None and tokens.find(new) is not None
    command("robots", "--remove", "--file", str(file))
    tokens = load_tokens(file, {})
    assert tokens.find(new) is None and not tokens.open  # an empty file gives no access
    with pytest.raises(ConfigError, match="there are: none"):
        command("robots", "--remove", "--file", str(file))


@pytest.mark.parametrize(
    ("when", "until"),
    [("30d", timedelta(days=30)), ("12h", timedelta(hours=12)), ("45m", timedelta(minutes=45)),
     ("2999-01-31", datetime(2999, 1, 31, tzinfo=UTC)), ("2999-01-31T12:00:00Z", datetime(2999, 1, 31, 12, tzinfo=UTC)),
     ("2999-01-31T12:00:00+02:00", datetime(2999, 1, 31, 10, tzinfo=UTC))],
)  # fmt: skip
def test_a_token_may_expire(tmp_path: Path, when: str, until: timedelta | datetime) -> None:
    before = datetime.now(UTC).replace(microsecond=0)
    token = command("robots", "--expires", when, "--file", str(tmp_path / "t"))
    (entry,) = read_tokens(tmp_path / "t")
    first, last = (before + until, datetime.now(UTC) + until) if isinstance(until, timedelta) else (until, until)
    assert entry.expires is not None and first <= entry.expires <= last
    assert load_tokens(tmp_path / "t", {}).find(token) == entry.access


TIMES = ("", "30", "-3d", "3 d", "0d", "soon", "2020-01-31", "2999-02-31", "2999-01-31T12:00:00")
IDS = ("../x", "a,,b", "", "a/b", "CON")


@pytest.mark.parametrize(
    ("option", "value", "message"),
    [*(("--expires", time, "--expires") for time in TIMES), *(("--agents", id, "agent id") for id in IDS)],
)
def test_an_invalid_time_or_id_gets_no_token(tmp_path: Path, option: str, value: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        command("robots", f"{option}={value}", "--file", str(tmp_path / "t"))
    assert not (tmp_path / "t").exists()


ADDS = """
import sys
from pathlib import Path
from keep_agent.server.auth.token_file import add_token
from keep_agent.server.auth.tokens import Access, TokenEntry, digest
for number in range(20):
    name = f"{sys.argv[2]}-{number}"
    add_token(Path(sys.argv[1]), TokenEntry(Access(name), digest(name)))
"""


def test_parallel_additions_keep_all_tokens(tmp_path: Path) -> None:
    file = tmp_path / "tokens.json"
    writers = [subprocess.Popen([sys.executable, "-c", ADDS, str(file), str(item)]) for item in range(4)]
    assert [writer.wait() for writer in writers] == [0] * 4
    assert {entry.access.name for entry in read_tokens(file)} == {f"{a}-{b}" for a in range(4) for b in range(20)}


@pytest.mark.parametrize(
    "content",
    [
        "", "[]", "{", '{"tokens": 1}', '{"tokens": [1]}', "\udcff",
        *(json.dumps({"tokens": [GOOD | wrong]}) for wrong in (
            {"sha256": "x"}, {"sha256": "G" * 64}, {"agents": "a"}, {"agents": [1]}, {"agents": ["../x"]}, {"name": ""},
            {"more": 1}, {"name": 1}, {"expires": "soon"}, {"expires": 7}, {"expires": "2030-01-31T12:00:00"},
        )),
        json.dumps({"tokens": [GOOD, GOOD]}),
    ],
)  # fmt: skip
def test_a_damaged_file_is_named_and_not_overwritten(tmp_path: Path, content: str) -> None:
    file, damaged = tmp_path / "tokens.json", content.encode("utf-8", "surrogateescape")
    file.write_bytes(damaged)
    for use in (lambda: load_tokens(file, {}), lambda: add_token(file, TokenEntry(Access("m"), digest("t")))):
        with pytest.raises(DataError, match=r"tokens\.json"):
            use()
    assert file.read_bytes() == damaged


def test_a_missing_file_and_one_without_a_name_are_refused(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="keep-agent token"):
        load_tokens(tmp_path / "tokens.json", {})
    with pytest.raises(ConfigError, match=r"the file '\.' has no name; give one, such as tokens.json"):
        add_token(Path(), TokenEntry(Access("n"), digest("t")))


def test_the_environment_holds_a_token_for_all_agents(tmp_path: Path) -> None:
    assert load_tokens(None, {}).open
    tokens = load_tokens(None, {TOKEN_VARIABLE: "long-and-random"})
    assert not tokens.open and tokens.find("long-and-random").all  # type: ignore[union-attr]
    for missing in ("", " ", "a b", "é"):
        with pytest.raises(ConfigError, match=TOKEN_VARIABLE):
            load_tokens(None, {TOKEN_VARIABLE: missing})
    add_token(tmp_path / "f", TokenEntry(Access("n", frozenset({"a"})), digest("of-a")))
    combined = load_tokens(tmp_path / "f", {TOKEN_VARIABLE: "long-and-random"})
    assert combined.find("of-a") == Access("n", frozenset({"a"})) and combined.find("long-and-random") is not None
    assert [entry.access.name for entry in read_tokens(tmp_path / "f")] == ["n"]


def test_access_is_limited_to_the_tokens_agents() -> None:
    item, two = Access("1", frozenset({"a"})), Access("2", frozenset({"a", "b"}))
    assert [it.only_agent for it in (item, two, Access("all"), Access("none", frozenset()))] == ["a", *[None] * 3]
    with pytest.raises(Forbidden) as present:
        item.require("b")
    with pytest.raises(Forbidden) as nowhere:
        item.require("../unknown")
    assert str(present.value) == str(nowhere.value)
    with pytest.raises(Forbidden):
        two.require_all()


def test_a_public_address_needs_tokens_and_one_of_this_machine_none() -> None:
    for host in ("0.0.0.0", "::", "", "192.0.2.1", "::ffff:192.0.2.1", "8.8.8.8"):
        with pytest.raises(ConfigError, match=TOKEN_VARIABLE):
            check_bind(host, Tokens(open=True))
        check_bind(host, Tokens())
    for host in ("127.0.0.1", "localhost", "127.3.2.1"):
        check_bind(host, Tokens(open=True))


def test_a_name_of_a_public_address_needs_tokens(monkeypatch: pytest.MonkeyPatch) -> None:
    result = [(2, 1, 6, "", ("127.0.0.1", 0)), (2, 1, 6, "", ("192.0.2.7", 0))]
    monkeypatch.setattr("socket.getaddrinfo", lambda *_, **__: result)
    with pytest.raises(ConfigError, match=TOKEN_VARIABLE):
        check_bind("robot.example", Tokens(open=True))


def test_an_invalid_address_is_refused() -> None:
    for host in ("no.such.host.invalid", "a..b"):  # the second is not even a valid name
        with pytest.raises(ConfigError, match=rf"host='{re.escape(host)}' is not an address"):
            check_bind(host, Tokens(open=True))

"""Agent files: safe names, an index that is always checked, a budget and a time to live."""

from __future__ import annotations

import errno
import json
import os
import random
import shutil
import stat
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import example, given
from hypothesis import strategies as st

from keep_agent.errors import ConfigError, CorruptError, DataError
from memory.files import agent_files as agents
from memory.files.agent_files import entries, evict, forget, open_agent, save_agent
from memory.files.atomic import replace_file
from memory.files.block_file import write_blocks
from memory.files.names import is_safe

tricky = st.text("abAB019._-/\\\0~: \n%*é\u202e", max_size=8)
models = st.lists(st.text(min_size=1), unique=True, min_size=1)
ids = st.one_of(tricky, st.text(max_size=70), st.from_regex(r"[A-Za-z0-9_-][A-Za-z0-9._-]{0,63}", fullmatch=True))


def save(root: Path, agent: str, model: str = "m", tokens: int = 300, timestamp: float | None = None) -> Path:
    path = save_agent(root, agent, model, tokens, {"k": torch.ones(2, tokens)}, {"text": "hello"})
    if timestamp is not None:
        os.utime(path, (timestamp, timestamp))
    return path


@given(ids)
@example("..")
@example("a..b")
@example("con.txt")
@example("a\n")
@example("x" * 65)
def test_an_id_becomes_a_name_in_the_root_or_is_refused(agent: str) -> None:
    root = Path("/somewhere/root")
    try:
        path = agents.agent_path(root, agent, "model")
    except ConfigError as error:
        assert repr(agent) in str(error)
        return
    assert path.parent == root and path.resolve().parent == root.resolve()
    assert path.name.isascii() and path.name.isprintable() and not set(path.name) & set('/\\:*?"<>| ')
    assert not path.name.startswith(".") and len(path.name) < 120 and agents._owner(path) == agent


@given(st.lists(ids.filter(is_safe), unique=True, min_size=2), st.lists(st.text(min_size=1), unique=True, min_size=1))
@example(["Robot", "robot", "a", "a-b", "a.b"], ["m", "M"])
def test_no_two_agents_share_a_file_on_case_insensitive_disks(names: list[str], keys: list[str]) -> None:
    names = [*names, *(name.swapcase() for name in names if name.swapcase() not in names)]
    paths = {str(agents.agent_path(Path("r"), name, model)).lower() for name in set(names) for model in keys}
    assert len(paths) == len(set(names)) * len(keys)


@pytest.mark.parametrize("agent", [
    "", ".", "..", ".a", "a..b", "a/b", "a\\b", "/a", "a\0", "a b", "é", "a" * 65, "CON", "nul.txt", "com1",
    "Lpt9.x", "a\n",
])  # fmt: skip
def test_names_that_are_refused(tmp_path: Path, agent: str) -> None:
    for call in (save, forget, lambda root, name: open_agent(root, name, "m")):
        with pytest.raises(ConfigError, match="not a safe name"):
            call(tmp_path, agent)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("agent", ["a", "A-1", "_x", "-", "console", "com10", "a.b.c", "x" * 64, "nul-1"])
def test_names_that_are_accepted(tmp_path: Path, agent: str) -> None:
    save(tmp_path, agent)
    assert [entry.owner for entry in entries(tmp_path)] == [agent]
    assert open_agent(tmp_path, agent, "m").header["text"] == "hello"
    modes = {stat.S_IMODE(file.stat().st_mode) for file in tmp_path.iterdir()}
    assert modes == {0o600}, "files are private to the user"


def test_a_name_is_the_same_in_every_process() -> None:
    assert agents.agent_path(Path("r"), "Robot", "m") == Path("r/Robot-3bf6b51b.62c66a7a5dd70c31.safetensors")
    with pytest.raises(ConfigError, match="empty"):
        agents.agent_path(Path("r"), "Robot", "")


def test_files_are_opened_by_their_owner_only(tmp_path: Path) -> None:
    path = save(tmp_path, "mine")
    for agent, model in (("other", "m"), ("mine", "other")):
        with pytest.raises(DataError, match="there is no"):
            open_agent(tmp_path, agent, model)
        shutil.copy(path, agents.agent_path(tmp_path, agent, model))
        with pytest.raises(DataError, match="agent 'mine' for model 'm'"):
            open_agent(tmp_path, agent, model)
    with pytest.raises(ConfigError, match="are added to every header"):
        save_agent(tmp_path, "mine", "m", 1, {}, {"agent": "other"})
    assert {entry.model for entry in entries(tmp_path) if entry.owner == "other"} == {""}
    assert forget(tmp_path, "other") == 1


def test_forget_deletes_files_of_one_model_or_all(tmp_path: Path) -> None:
    for agent in ("a", "a-b", "A"):
        for model in ("m", "n"):
            save(tmp_path, agent, model)
    assert forget(tmp_path, "a", "n") == 1 and forget(tmp_path, "a", "n") == 0 and forget(tmp_path, "A") == 2
    remaining = {(entry.owner, entry.model) for entry in entries(tmp_path)}
    assert remaining == {("a", "m"), ("a-b", "m"), ("a-b", "n")} and forget(tmp_path / "missing", "a") == 0
    agents.agent_path(tmp_path, "a", "m").write_bytes(b"damaged")
    with pytest.raises(CorruptError):
        open_agent(tmp_path, "a", "m")
    assert forget(tmp_path, "a") == 1


def test_entries_list_all_files(tmp_path: Path) -> None:
    assert entries(tmp_path / "missing") == []
    old, new = save(tmp_path, "b", "model/x", 300, timestamp=1000.5), save(tmp_path, "a", "m", 5, timestamp=900)
    assert entries(tmp_path) == [
        agents.AgentFile(new.name, new.stat().st_size, "a", 900.0, "m", 5),
        agents.AgentFile(old.name, old.stat().st_size, "b", 1000.5, "model/x", 300),
    ]
    assert agents.total_bytes(tmp_path) == old.stat().st_size + new.stat().st_size
    rows = json.loads((tmp_path / agents.INDEX).read_text())["files"]
    assert [(row["owner"], row["tokens"], row["timestamp"]) for row in rows] == [("a", 5, 900.0), ("b", 300, 1000.5)]


def test_opening_a_file_counts_as_a_use(tmp_path: Path) -> None:
    save(tmp_path, "a", timestamp=1000)
    save(tmp_path, "b", timestamp=2000)
    open_agent(tmp_path, "a", "m")
    assert [entry.owner for entry in entries(tmp_path)] == ["b", "a"]
    agents.touch(agents.agent_path(tmp_path, "b", "m"))
    assert [entry.owner for entry in entries(tmp_path)] == ["a", "b"]


def test_headers_are_read_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for agent in "abc":
        save(tmp_path, agent)
    first = entries(tmp_path)
    opened_paths: list[Path] = []
    real = agents.open_blocks
    monkeypatch.setattr(agents, "open_blocks", lambda path: opened_paths.append(path) or real(path))
    state = (tmp_path / agents.INDEX).stat()
    assert entries(tmp_path) == first and opened_paths == []
    assert (tmp_path / agents.INDEX).stat().st_ino == state.st_ino  # the index is not written again
    changed = save(tmp_path, "b", tokens=7)
    assert {entry.owner: entry.tokens for entry in entries(tmp_path)} == {"a": 300, "b": 7, "c": 300}
    assert opened_paths == [changed]
    agents.agent_path(tmp_path, "a", "m").unlink()
    assert {entry.owner for entry in entries(tmp_path)} == {"b", "c"}
    assert {row["owner"] for row in json.loads((tmp_path / agents.INDEX).read_text())["files"]} == {"b", "c"}


def test_a_missing_or_damaged_index_is_rebuilt(tmp_path: Path) -> None:
    for agent in "abc":
        save(tmp_path, agent)
    expected = entries(tmp_path)
    index = tmp_path / agents.INDEX
    whole, chance = index.read_bytes(), random.Random(3)
    flips = [bytearray(whole) for _ in range(100)]
    for raw in flips:
        raw[chance.randrange(len(raw))] ^= 1 << chance.randrange(8)
    changed = whole.replace(b"300", b"301")
    rows = [{"agent": "a", "model": "m", "file": expected[0].key, "bytes": 9, "tokens": 300, "used": 1000.0}]
    earlier = json.dumps({"sum": agents._sum(rows), "files": rows}).encode()  # field names of an earlier version
    for raw in (b"", b"[]", b"{}", b"null", b"{\xff", whole[:-9], changed, earlier, *map(bytes, flips)):
        index.write_bytes(raw)
        assert entries(tmp_path) == expected
    index.unlink()
    assert entries(tmp_path) == expected and index.read_bytes() == whole


def test_a_root_without_an_index_works(tmp_path: Path) -> None:
    save(tmp_path, "a")
    (tmp_path / agents.INDEX).mkdir()  # the index cannot be written
    assert [entry.owner for entry in entries(tmp_path)] == ["a"] and forget(tmp_path, "a") == 1


def test_the_least_recently_used_are_evicted_and_pinned_ones_never(tmp_path: Path) -> None:
    for timestamp, agent in enumerate("dacb"):
        save(tmp_path, agent, timestamp=1000 + timestamp)
    size = agents.total_bytes(tmp_path) // 4
    assert evict(tmp_path, 4 * size) == []
    assert [entry.owner for entry in evict(tmp_path, 3 * size, pinned=["d"])] == ["a"]
    assert [entry.owner for entry in evict(tmp_path, 2 * size + 1)] == ["d"]
    assert evict(tmp_path, 0, pinned={"b", "c"}) == [] and agents.total_bytes(tmp_path) == 2 * size
    assert [entry.owner for entry in evict(tmp_path, 0)] == ["c", "b"] and agents.total_bytes(tmp_path) == 0
    with pytest.raises(ConfigError, match="-1"):
        evict(tmp_path, -1)


def test_a_quota_covers_all_files_of_an_agent(tmp_path: Path) -> None:
    for timestamp, (agent, model) in enumerate([("a", "m"), ("b", "m"), ("b", "n"), ("c", "m")]):
        save(tmp_path, agent, model, timestamp=1000 + timestamp)
    size = agents.total_bytes(tmp_path) // 4
    assert [(entry.owner, entry.model) for entry in evict(tmp_path, 0, quota_bytes=size)] == [("b", "m")]
    assert evict(tmp_path, 0, quota_bytes=size) == []
    assert [entry.owner for entry in evict(tmp_path, 2 * size, pinned=["a"], quota_bytes=size - 1)] == ["b"]


def test_files_expire_unless_their_agent_is_pinned(tmp_path: Path) -> None:
    for timestamp, agent in enumerate("dacb"):
        save(tmp_path, agent, timestamp=1000 + timestamp)
    assert [entry.owner for entry in evict(tmp_path, None, pinned=["a"], latest_expired=1002)] == ["d", "c"]
    size = agents.total_bytes(tmp_path) // 2
    assert [entry.owner for entry in evict(tmp_path, size, latest_expired=1001)] == ["a"], "then the budget applies"
    assert evict(tmp_path, None) == [] and evict(tmp_path, size, latest_expired=1002) == []


def test_foreign_files_stay(tmp_path: Path) -> None:
    path = save(tmp_path, "a")
    foreign = ["notes.safetensors", "a-00000000.0123456789abcdef.safetensors", path.stem + ".old.safetensors"]
    foreign.append(f"{path.name.split('.')[0]}.backup.safetensors")
    for name in foreign:
        write_blocks(tmp_path / name, {}, {})
    assert [entry.owner for entry in evict(tmp_path, 0)] == ["a"] and forget(tmp_path, "a") == 0
    assert {file.name for file in tmp_path.iterdir()} == {*foreign, agents.INDEX}


def test_damaged_files_count_and_are_evicted(tmp_path: Path) -> None:
    path = save(tmp_path, "a", timestamp=1000)
    save(tmp_path, "b", timestamp=1001)
    path.write_bytes(b"?" * 50)
    os.utime(path, (1000, 1000))
    first = entries(tmp_path)[0]
    assert (first.owner, first.model, first.tokens, first.nbytes) == ("a", "", 0, 50)
    assert [entry.owner for entry in evict(tmp_path, agents.total_bytes(tmp_path) - 1)] == ["a"]


def test_a_folder_in_the_place_of_a_file_is_ignored(tmp_path: Path) -> None:
    save(tmp_path, "b")
    place = agents.agent_path(tmp_path, "a", "m")
    place.mkdir()
    with pytest.raises(DataError, match="cannot be read .*directory.*: make it readable"):
        open_agent(tmp_path, "a", "m")
    assert [entry.owner for entry in entries(tmp_path)] == ["b"]
    assert forget(tmp_path, "a") == 0 and [entry.owner for entry in evict(tmp_path, 0)] == ["b"]
    assert place.is_dir()


def test_unreadable_files_count_and_are_evicted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path, real = save(tmp_path, "a", timestamp=1000), Path.open
    save(tmp_path, "b", timestamp=1001)

    def denied(file: Path, *arguments: Any, **options: Any) -> Any:  # denies even a superuser
        if file == path:
            raise PermissionError(errno.EACCES, "Permission denied")
        return real(file, *arguments, **options)

    for opener, model in ((denied, ""), (real, "m"), (denied, "m")):  # the last time, the index knows the model
        monkeypatch.setattr(Path, "open", opener)
        for _ in range(2):
            assert [(entry.owner, entry.model) for entry in entries(tmp_path)] == [("a", model), ("b", "m")]
    with pytest.raises(DataError, match="cannot be read .*denied.*: make it readable"):
        open_agent(tmp_path, "a", "m")
    assert [entry.owner for entry in evict(tmp_path, agents.total_bytes(tmp_path) - 1)] == ["a"]


def test_files_of_killed_writers_are_deleted_and_active_ones_stay(tmp_path: Path) -> None:
    path = save(tmp_path, "a")
    dead = path.with_name(f".{path.name}.x1y2z3_4.partial")
    dead.write_bytes(b"half")
    with replace_file(path) as stream:
        evict(tmp_path, 1 << 30)
        assert not dead.exists()
        stream.write(b"new")
    assert path.read_bytes() == b"new"

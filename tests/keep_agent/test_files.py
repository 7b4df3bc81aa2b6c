"""Damaged and odd files: every reader raises an error that names the file."""

from __future__ import annotations

import errno
import gzip
import json
import os
import shutil
from collections.abc import Callable
from itertools import product
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import pytest

from envs.alfred.data.official import _select
from envs.alfred.data.trajectories import SplitFiles, parse
from envs.alfworld.scene import Game
from envs.wah.data.records import records_of
from eval.chat.loader import load_conversations
from eval.common.episode_lines import begin_lines
from eval.loading.costs import Shape
from eval.loading.workload import read_times
from keep_agent.agent.memory_file import read_memory
from keep_agent.errors import CapacityError, CorruptError, DataError, KeepError, StorageError
from keep_agent.files import parsed, read_json, writing
from keep_agent.robots.mcap_log import episode_of
from keep_agent.rollout.run_folder import RunFolder, read_config
from keep_agent.rollout.trace import read_trace
from keep_agent.scenarios.field_checks import read_yaml
from memory.files.atomic import write_atomic
from planners.training.retention.tool_sessions import read_sessions
from planners.training.rollout_files import read_rollouts

CONTENTS = {
    "not UTF-8": b'{"a": "caf\xe9"}\n', "nested deeply": b"[" * 100_000 + b"\n",
    "half a surrogate pair": b'{"v": 1, "a": "\\ud83d"}\n', "cut off": b'{"a": [1, 2\n', "a list": b"[1]\n",
    "a number with 5,000 digits": b'{"a": 1' + b"0" * 5000 + b"}\n", "zeros": bytes(64) + b"\n",
}  # fmt: skip


def run_of(path: Path) -> Path:
    (path.parent / "config.json").write_text("{}")
    return path.parent


READERS: dict[str, tuple[str, Callable[[Path], object]]] = {
    "ALFRED's trajectories": ("traj_data.json", lambda p: [parse("s", *row) for row in SplitFiles("s", (p,)).read()]),
    "ALFRED's splits": (
        "splits/oct21.json", lambda p: _select(SimpleNamespace(root=p.parent.parent), "train", []) and pytest.fail()
    ),
    "Watch-And-Help's tasks": ("tasks.json", lambda p: [dict(row)["task_name"] for row, _ in records_of(p)]),
    "ALFWorld's games": ("game.tw-pddl", lambda p: Game(p).read()),
    "conversations": ("chat.json", load_conversations),
    "times per layer": ("times.json", read_times),
    "a model's shape": ("config.json", lambda p: Shape.from_name(str(p))),
    "an agent's memory": ("agent.memory", read_memory),
    "a scenario": ("scenario.yaml", lambda p: read_yaml(p).value["phases"]),
    "tool-call sessions": ("sessions.jsonl", lambda p: list(read_sessions(p, list))),
    "a run's config": ("config.json", lambda p: read_config(p.parent)),
    "a run's episodes": ("episodes.jsonl", lambda p: RunFolder.read(run_of(p))),
    "a run's trace": ("trace.jsonl", lambda p: list(read_trace(p))),
    "a trace for MCAP": ("trace.jsonl", lambda p: episode_of(p.parent)),
}  # fmt: skip


NO_YAML = ("not UTF-8", "nested deeply", "zeros")  # the others are YAML, and refused by their fields


@pytest.mark.parametrize(
    ("reader", "what"), [case for case in product(READERS, CONTENTS) if case[0] != "a scenario" or case[1] in NO_YAML]
)
def test_damaged_and_odd_content_is_refused_by_name(tmp_path: Path, reader: str, what: str) -> None:
    name, read = READERS[reader]
    path = tmp_path / name
    path.parent.mkdir(exist_ok=True)
    path.write_bytes(CONTENTS[what])
    with pytest.raises(KeepError, match=path.name):
        read(path)


@pytest.mark.parametrize("reader", READERS)
def test_a_folder_in_the_place_of_a_file_is_refused_by_name(tmp_path: Path, reader: str) -> None:
    if reader in ("conversations", "a model's shape", "ALFRED's splits", "a trace for MCAP"):
        pytest.skip("folders have a meaning there, or a sentence of their own")
    name, read = READERS[reader]
    (tmp_path / name).mkdir(parents=True)
    with pytest.raises(DataError, match=rf"{name} cannot be read \(Is a directory\)"):
        read(tmp_path / name)


@pytest.mark.parametrize(
    "content",
    [gzip.compress(b"{}" * 99, mtime=0)[:-9], b"\x1f\x8b" + bytes(30), b"{}", bytes(64), b""],
    ids=["cut", "zeros", "plain", "blank", "empty"],
)
def test_damaged_archives_are_refused_by_name(tmp_path: Path, content: bytes) -> None:
    readers = {"rollouts.jsonl.gz": read_rollouts, "sessions.jsonl.gz": lambda p: read_sessions(p, list),
               "tasks.json.gz": records_of, "chat.json.gz": load_conversations}  # fmt: skip
    for name, read in readers.items():
        (tmp_path / name).write_bytes(content)
        with pytest.raises(DataError, match=name):
            list(read(tmp_path / name))


def _lines_of(path: Path, config: dict[str, int]) -> list[dict[str, Any]]:
    with begin_lines(path, config) as (_, lines):
        return lines


def test_changed_sessions_and_results_and_those_of_other_settings_are_refused(tmp_path: Path) -> None:
    path, foreign = tmp_path / "lines.jsonl", tmp_path / "others.jsonl"
    for file, config in ((path, {"a": 1}), (foreign, {"a": 2})):
        with begin_lines(file, config) as (out, _):
            out.append([{"turns": [], "session": name} for name in ("a", "b")])
    readers = (lambda: _lines_of(path, {"a": 1}), lambda: list(read_sessions(path, list)))
    whole, end = path.read_bytes(), path.with_suffix(".end")
    marked = end.read_bytes()

    def check(match: str) -> None:
        for read in readers:
            with pytest.raises(CorruptError, match=match):
                read()
        path.write_bytes(whole)
        end.write_bytes(marked)

    assert [session.name for session in read_sessions(path, list)] == ["a", "b"]
    path.write_bytes(whole.replace(b'"a"', b'"c"'))
    check(r"lines\.jsonl:1 is damaged")
    shutil.copy(foreign, path)
    check(r"lines\.jsonl:1 is damaged, .* or the file belongs elsewhere")
    path.write_bytes(whole.splitlines(keepends=True)[0])
    check(r"lines\.jsonl lacks its last lines, 2 to 2, as lines\.end says")
    end.unlink()
    check(r"lines\.jsonl:1 is damaged, .* or the file belongs elsewhere")
    for file in (path, end):
        shutil.copy(foreign.with_suffix(file.suffix), file)
    with pytest.raises(CorruptError, match=r"lines\.end is damaged, or does not belong to lines\.jsonl\.json"):
        _lines_of(path, {"a": 1})


def test_nan_and_infinity_are_refused_if_finite() -> None:
    for text in ('{"x": NaN}', '{"x": [-Infinity]}', '{"x": 1e999}'):
        with pytest.raises(DataError, match="poses is not JSON"):
            parsed(text, "poses", "mend it", finite=True)
    assert parsed('{"x": -Infinity}', "scores", "mend it")["x"] == float("-inf")


@pytest.mark.parametrize(
    ("number", "kind"),
    [(errno.ENOSPC, CapacityError), (errno.EDQUOT, CapacityError), (errno.EFBIG, CapacityError),
     (errno.EROFS, StorageError), (errno.EACCES, StorageError), (errno.EIO, StorageError), (errno.EMFILE, OSError)],
)  # fmt: skip
def test_faults_of_the_file_system_are_sentences(number: int, kind: type[Exception]) -> None:
    with pytest.raises(kind, match="x.json" if kind is not OSError else "open files") as error, writing(Path("x.json")):
        raise OSError(number, os.strerror(number))
    assert isinstance(error.value, KeepError) == (kind is not OSError)


def test_a_file_keeps_its_content_if_it_cannot_be_replaced(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "x.json"
    write_atomic(path, json.dumps([1]))
    with monkeypatch.context() as patch, pytest.raises(StorageError, match=r"x\.json cannot be written"):
        patch.setattr(os, "fsync", Mock(side_effect=OSError(errno.EROFS, os.strerror(errno.EROFS))))
        write_atomic(path, json.dumps([2]))
    assert read_json(path) == [1]
    assert list(tmp_path.iterdir()) == [path]

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from rich.console import Console

from keep_agent.errors import ConfigError, DataError
from keep_agent.viewer.command import main
from keep_agent.viewer.server import application
from tests.keep_agent.viewer.traces import opening, step, write


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.168.1.4", "example.org"])
def test_public_host_is_refused(host: str, tmp_path: Path) -> None:
    write(tmp_path, [opening()])
    with pytest.raises(ConfigError, match=r"without a password.*127\.0\.0\.1"):
        main([str(tmp_path), "--host", host], Console())


@pytest.mark.parametrize(("folder", "text"), [("nowhere", "is not a folder"), (".", "no run under")])
def test_missing_run_is_an_error(folder: str, text: str, tmp_path: Path) -> None:
    with pytest.raises(DataError, match=text):
        main([str(tmp_path / folder)], Console())


def test_episode_is_written(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write(tmp_path / "run" / "deep", [opening(), step(), opening("f"), step(0, "f")])
    file = tmp_path / "out" / "page.html"
    main([str(tmp_path / "run"), "--html", str(file), "--episode", "f"], Console(width=200))
    assert "<title>f" in file.read_text(encoding="utf-8") and str(file) in capsys.readouterr().out


@pytest.mark.parametrize("place", [".", ""])
def test_folder_in_place_of_a_file_is_refused(place: str, tmp_path: Path) -> None:
    write(tmp_path, [opening(), step()])
    with pytest.raises(ConfigError, match="is a folder: name a file, such as "):
        main([str(tmp_path), "--html", place], Console())


def test_unknown_episode_is_an_error_with_the_known_ones(tmp_path: Path) -> None:
    write(tmp_path, [opening(), opening("f")])
    with pytest.raises(DataError, match="no episode 'x' .*there are: e, f"):
        main([str(tmp_path), "--html", str(tmp_path / "x.html"), "--episode", "x"], Console())


def test_damaged_trace_is_an_error_with_its_line(tmp_path: Path) -> None:
    trace = write(tmp_path, [opening(), step()]) / "trace.jsonl"
    trace.write_bytes(b"\xff" + trace.read_bytes())
    with pytest.raises(DataError, match=r"no episode under .*there are: none; .*trace\.jsonl:1 "):
        main([str(tmp_path), "--html", str(tmp_path / "x.html")], Console())


def test_missing_nicegui_is_an_error_with_the_extra(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "nicegui", None)
    monkeypatch.delitem(sys.modules, "keep_agent.viewer.pages", raising=False)
    with pytest.raises(ConfigError, match=r"pip install 'keep-agent\[server\]'"):
        application(tmp_path)

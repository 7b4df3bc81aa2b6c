"""Pictures of runs: files beside the trace, also after an interruption."""

from __future__ import annotations

import errno
import json
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from envs.worlds import spec_of
from eval import alfred
from eval.common import run as runs
from eval.workers import player
from keep_agent.guard import BAD_INPUT
from keep_agent.rollout.frames import FRAMES
from keep_agent.rollout.results import EpisodeResult
from keep_agent.rollout.run_folder import CONFIG, SUMMARY, TRACE, RunFolder
from keep_agent.rollout.trace import read_trace
from memory.files import atomic
from tests.eval.workers.runs import Command, pictures, the_run
from tests.keep_agent.rollout.pictures import Pictured
from tests.rewriting import change_object

SETTING = ("planner=random", "eval.episodes=3", "env.max_steps=4")


@pytest.fixture
def call(call: Command, monkeypatch: pytest.MonkeyPatch) -> Command:
    """Call ``eval.alfred`` in a world with pictures."""
    make_env = player.make_env
    monkeypatch.setattr(player, "make_env", lambda *arguments: Pictured(make_env(*arguments), restarts=(2,)))
    return partial(call, alfred.main)


def frame_names(folder: Path) -> list[str]:
    return [entry["frame"] for entry in read_trace(folder / TRACE) if "frame" in entry]


@pytest.mark.parametrize(("format", "magic"), [("jpeg", b"\xff\xd8\xff"), ("png", b"\x89PNG")])
def test_the_trace_names_every_picture(call: Command, format: str, magic: bytes) -> None:
    code, out, _ = call(*SETTING, f"eval.frames={format}", "env.stream=2")
    assert code == 0 and "the simulator was restarted in 3 of 3 episodes" in " ".join(out.split())
    folder = the_run()
    entries = [entry for entry in read_trace(folder / TRACE) if entry["event"] in ("episode", "step")]
    assert len(frame_names(folder)) == len(entries) > 3 and sorted(frame_names(folder)) == sorted(pictures(folder))
    assert all(content.startswith(magic) for content in pictures(folder).values())
    summary = json.loads((folder / SUMMARY).read_text())
    assert (summary["restarted_episodes"], summary["crashed"]) == (3, 0)
    assert sum("restarted" in entry for entry in entries) == 3


@pytest.mark.parametrize("setting", ["eval.frames=null", "eval.trace=false"])
def test_without_pictures_no_file_is_written(call: Command, setting: str) -> None:
    assert call(*SETTING, setting)[0] == 0
    assert not (the_run() / FRAMES).exists()
    assert setting == "eval.trace=false" or not frame_names(the_run())


def test_a_resumed_run_has_the_same_pictures(call: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    call(*SETTING, "eval.out=whole")
    commit = RunFolder.commit

    def interrupted(run: RunFolder, result: EpisodeResult, entries: Any, frames: Any) -> None:
        if run.results:  # after writing the second episode's pictures, before its line
            frames.write(run.path)
            raise KeyboardInterrupt
        commit(run, result, entries, frames)

    with monkeypatch.context() as patch:
        patch.setattr(RunFolder, "commit", interrupted)
        assert call(*SETTING, "eval.out=part")[0] == 130
    assert len(list((the_run("part") / FRAMES).iterdir())) == 2
    assert call(f"eval.resume={the_run('part')}")[0] == 0
    assert pictures(the_run("part")) == pictures(the_run("whole"))
    part, whole = (list(read_trace(the_run(name) / TRACE)) for name in ("part", "whole"))
    assert part == whole


def test_a_full_disk_is_one_line_and_the_run_can_be_resumed(call: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(path: Path) -> None:
        if FRAMES in path.parts:
            raise OSError(errno.ENOSPC, "No space left on device")
        sync(path)

    sync = atomic.sync
    with monkeypatch.context() as patch:
        patch.setattr(atomic, "sync", full)
        code, _, err = call(*SETTING)
    folder = next(Path("outputs").iterdir())
    assert code == BAD_INPUT and err.count("\n") == 1 and f"and continue with eval.resume={folder.resolve()}" in err
    assert "frames/" in err and "No space left" in err and not pictures(folder) and not (folder / TRACE).exists()
    assert call(f"eval.resume={folder}")[0] == 0
    assert sorted(frame_names(folder)) == sorted(pictures(folder)) != []


def test_a_run_older_than_the_setting_is_resumed_without_pictures(call: Command) -> None:
    call(*SETTING, "eval.episodes=1", "eval.frames=null")

    def older(config: dict[str, Any]) -> None:
        del config["eval"]["frames"]
        config["eval"]["episodes"] = config["episodes"] = 2  # as if interrupted after the first episode

    change_object(the_run() / CONFIG, older)
    assert call(f"eval.resume={the_run()}")[0] == 0
    assert len(RunFolder.read(the_run())) == 2 and not (the_run() / FRAMES).exists()


def test_a_run_without_restarts_does_not_mention_them(call: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Pictured, "_with_restarts", lambda _, info: info)
    code, out, _ = call(*SETTING)
    assert code == 0 and "restarted" not in out and "random in Alfred-v0: embedded" in out
    assert json.loads((the_run() / SUMMARY).read_text())["restarted_episodes"] == 0


def test_the_title_names_the_world(call: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    world = spec_of("keep_agent:Alfred-v0")
    monkeypatch.setattr(type(world), "label", lambda _, env: f"a simulator of {env['skills']}")
    assert "random in a simulator of lota: embedded" in call(*SETTING)[1]


@pytest.mark.parametrize(
    ("crash", "restarts", "text"),
    [("", 0, ""), ("no", 0, ", 1 crashed"), ("", 2, ", 1 restarted"), ("no", 1, ", 1 crashed, 1 restarted")],
)
def test_the_progress_text_counts_crashes_and_restarts(tmp_path: Path, crash: str, restarts: int, text: str) -> None:
    results = [EpisodeResult(0, "a", (), (), 0.0, crash, restarts), EpisodeResult(1, "b", (), (), 0.0)]
    assert runs._progress_text(RunFolder(tmp_path, {}, results)) == f"success 0.0 %{text}"

from __future__ import annotations

import json
import shutil
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from threading import Barrier

import pytest

from keep_agent.errors import ConfigError, CorruptError, DataError
from keep_agent.rollout import run_folder
from keep_agent.rollout.results import EpisodeResult, StepNumbers, TaskOutcome
from keep_agent.rollout.run_folder import CONFIG, EPISODES, SUMMARY, TRACE, RunFolder, find_runs, read_config
from tests.rewriting import Change, as_of_version_0_2, change_lines


def result(index: int, success: bool = True) -> EpisodeResult:
    task = TaskOutcome(f"t{index}", "pick", "Pick “it” up.", success, 1, 2, 3, 3, "success" if success else "done")
    step = StepNumbers(layers=3, parts={"update": 0.25, "encode": 1.5}, ttft_ms=1.75, prompt_tokens=10, token_layers=12)
    return EpisodeResult(index, f"e{index}", (task,), (step, StepNumbers()), 0.5)


def entry(index: int) -> dict:
    return {"v": 1, "event": "step", "episode": f"e{index}"}


END = "episodes.end"


@pytest.fixture
def run(tmp_path: Path) -> RunFolder:
    """Make a run of three episodes; the file ``before`` beside it holds the mark before the last episode."""
    folder = RunFolder.create(tmp_path / "run", {"planner": {"name": "keep"}})
    for index in range(3):
        shutil.copy(folder.path / END, tmp_path / "before")
        folder.commit(result(index), [entry(index), entry(index)])
    folder.release()
    return folder


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda row: row.update(seconds="x"), "seconds is 'x': .* number"),
        (lambda row: row.update(timed_on=5), "timed_on is 5: .* string"),
        (lambda row: row.update(tasks=None), "NoneType"),
        (lambda row: row.update(tasks=[]), "an episode must have a task"),
        (lambda row: row.update(more=1), "'more'"),
        (lambda row: row["tasks"][0].update(success=1), "tasks.0.success is 1: .* boolean"),
        (lambda row: row["tasks"][0].pop("met"), "'met'"),
        (lambda row: row["steps"][0].update(prompt_tokens=None), "steps.0.prompt_tokens is None: .* integer"),
        (lambda row: row["steps"][0].update(cold=[]), r"steps.0.cold is \[\]: .* boolean"),
        (lambda row: row["steps"][0]["parts"].update(encode="1"), "steps.0.parts.encode is '1': .* number"),
    ],
)
def test_invalid_value_is_refused_by_its_name(run: RunFolder, change: Change, words: str) -> None:
    change_lines(run.path / EPISODES, lambda row: None, change)
    for use in (RunFolder.read, RunFolder.resume):
        with pytest.raises(DataError, match=f"episodes.jsonl:2 is not a valid EpisodeResult .*{words}") as caught:
            use(run.path)
        assert "\n" not in str(caught.value)


def test_lines_without_restarts_of_older_versions_can_be_read(run: RunFolder) -> None:
    as_of_version_0_2(run.path)
    path = run.path / EPISODES
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    assert [row.pop("restarts") for row in rows] == [0, 0, 0]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    assert RunFolder.read(run.path) == [result(0), result(1), result(2)]
    RunFolder.resume(run.path).commit(replace(result(3), restarts=2))
    assert [result.restarts for result in RunFolder.read(run.path)] == [0, 0, 0, 2]


@pytest.mark.parametrize("cut", [1, 20, 200])
def test_killed_run_loses_only_the_unmarked_episode(run: RunFolder, cut: int) -> None:
    marks = (run.path / EPISODES).read_bytes()
    (run.path / EPISODES).write_bytes(marks[:-cut])
    (run.path.parent / "before").replace(run.path / END)
    again = RunFolder.resume(run.path)
    assert again.finished == {0, 1}
    episodes = [json.loads(line)["episode"] for line in (run.path / TRACE).read_text().splitlines()]
    assert episodes == ["e0", "e0", "e1", "e1"]
    again.commit(result(2), [entry(2)])
    assert RunFolder.read(run.path) == [result(0), result(1), result(2)]


def test_damaged_line_is_an_error(run: RunFolder) -> None:
    path = run.path / EPISODES
    lines = path.read_text().splitlines()
    path.write_text("\n".join([lines[0], "{}", lines[2]]) + "\n")
    with pytest.raises(CorruptError, match=r"episodes\.jsonl:2 is damaged.*restore"):
        RunFolder.resume(run.path)


@pytest.mark.usefixtures("garbage_stays")
def test_failed_run_can_be_resumed_while_its_error_is_kept(run: RunFolder) -> None:
    run.release()

    def fails() -> None:
        with RunFolder.resume(run.path):
            raise DataError("of something else")

    with pytest.raises(DataError) as caught:
        fails()
    assert caught.value
    RunFolder.resume(run.path).release()


def test_simultaneous_runs_have_unique_folders(tmp_path: Path) -> None:
    start = Barrier(8)

    def begin(number: int) -> RunFolder:
        start.wait()
        return RunFolder.create(tmp_path / "run", {"number": number})

    with ThreadPoolExecutor(8) as pool:
        folders = list(pool.map(begin, range(8)))
    assert {folder.path.name for folder in folders} == {"run", *(f"run-{number}" for number in range(2, 9))}
    assert [read_config(folder.path) for folder in folders] == [{"number": number} for number in range(8)]


def test_failed_write_leaves_no_summary(run: RunFolder, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(self: Path, target: Path) -> Path:
        raise OSError("disk is gone")

    with monkeypatch.context() as patch:
        patch.setattr(Path, "replace", broken)
        with pytest.raises(OSError, match="disk is gone"):
            run.write_summary({"success_rate": 1.0})
    assert not (run.path / SUMMARY).exists()
    assert json.loads(run.write_summary({"success_rate": 1.0}).read_text())["success_rate"] == 1.0
    last = json.loads((run.path / EPISODES).read_text().splitlines()[-1])["sum"].removeprefix("crc32:")
    assert run_folder.read_summary(run.path) == {"success_rate": 1.0, "committed": 3, "last": last}


def test_run_of_another_command_is_refused_and_unchanged(run: RunFolder) -> None:
    class AnswerFolder(RunFolder):
        lines = "answers.jsonl"

    before = (run.path / TRACE).read_bytes()
    with pytest.raises(DataError, match=r"holds episodes\.jsonl, so another command made it"):
        AnswerFolder.resume(run.path)
    assert (run.path / TRACE).read_bytes() == before


def test_other_weights_are_refused(tmp_path: Path) -> None:
    run = RunFolder.create(tmp_path / "run", {"weights": "aa"})
    run.check_weights("aa")
    with pytest.raises(ConfigError, match="run was made by a model with other weights"):
        run.check_weights("bb")
    run.config["trained"] = "cc"
    run.check_weights("aa", "cc")
    with pytest.raises(ConfigError, match="another retention head"):
        run.check_weights("aa", "dd")


def test_folder_without_a_run_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="nowhere"):
        RunFolder.resume(tmp_path / "nowhere")
    with pytest.raises(DataError, match="no run under"):
        find_runs(tmp_path)
    (tmp_path / CONFIG).write_text("{")
    with pytest.raises(DataError, match="not JSON"):
        read_config(tmp_path)


def test_partial_file_of_a_killed_run_is_removed_and_a_partial_folder_is_no_run(run: RunFolder) -> None:
    (run.path / f".{SUMMARY}.0a1b2c3d.partial").write_text("{")
    RunFolder.resume(run.path)
    assert {path.name for path in run.path.iterdir()} == {CONFIG, EPISODES, END, TRACE}
    shutil.copytree(run.path, run.path.parent / ".merged.0a1b2c3d.partial")
    assert find_runs(run.path.parent) == find_runs(run.path) == [run.path]


def test_run_is_locked_until_release(run: RunFolder) -> None:
    again = RunFolder.resume(run.path)
    with pytest.raises(ConfigError, match="another process is writing .*; wait until it ends, or stop it"):
        RunFolder.resume(run.path)
    assert len(RunFolder.read(run.path)) == len(run.results)  # reading needs no lock
    again.release()
    assert RunFolder.resume(run.path).finished == again.finished

from __future__ import annotations

from pathlib import Path

import pytest

from keep_agent.errors import DataError
from keep_agent.viewer.runs import RunLibrary, picture
from tests.keep_agent.viewer.traces import opening, step, write


def test_key_of_a_run_is_its_path_from_the_root(tmp_path: Path) -> None:
    write(tmp_path / "a", [opening()])
    write(tmp_path / "deep" / "b", [opening()])
    write(tmp_path / ".hidden", [opening()])
    write(tmp_path / "a" / "frames" / "c", [opening()])
    assert [run.key for run in RunLibrary(tmp_path).runs()] == ["a", "deep/b"]
    assert [run.key for run in RunLibrary(tmp_path / "a").runs()] == ["."]


def test_new_run_is_found_and_known_runs_keep_their_index(tmp_path: Path) -> None:
    write(tmp_path / "a", [opening()])
    library = RunLibrary(lambda: tmp_path)
    before = library.run("a").index
    write(tmp_path / "b", [opening()])
    assert library.run("b").path == tmp_path / "b"
    assert library.run("a").index is before


@pytest.mark.parametrize("key", ["..", "../a", "/etc", "a/../a", "", "a/", "b"])
def test_path_is_no_key(key: str, tmp_path: Path) -> None:
    write(tmp_path / "root" / "a", [opening()])
    write(tmp_path / "a", [opening()])
    with pytest.raises(DataError, match="choose one from the list"):
        RunLibrary(tmp_path / "root").run(key)


def test_deleted_run_is_an_error(tmp_path: Path) -> None:
    run = write(tmp_path / "a", [opening(), step()])
    library = RunLibrary(tmp_path)
    library.run("a")
    (run / "trace.jsonl").unlink()
    with pytest.raises(DataError, match="no run 'a'"):
        library.run("a")


@pytest.mark.parametrize(
    ("config", "method"),
    [('{"planner": {"name": "epic"}}', "epic"), ('{"planner": "keep"}', "keep"), ("{}", ""), ("[]", ""), ("{", "")],
)
def test_method_is_the_planner_of_the_config(config: str, method: str, tmp_path: Path) -> None:
    write(tmp_path, [opening()])
    (tmp_path / "config.json").write_text(config)
    assert RunLibrary(tmp_path).run(".").method == method


@pytest.fixture
def run(tmp_path: Path) -> Path:
    run = tmp_path / "run"
    (run / "frames" / "e").mkdir(parents=True)
    (run / "frames" / "e" / "0000.jpg").write_bytes(b"jpeg")
    (run / "frames" / "e" / "notes.txt").write_text("secret")
    (run / "config.json").write_text("{}")
    (tmp_path / "secret.jpg").write_bytes(b"secret")
    return run


@pytest.mark.parametrize(
    "name",
    [
        "../secret.jpg", "frames/../../secret.jpg", "frames/e/../../../secret.jpg", "frames/e/notes.txt", "config.json",
        "frames", "", ".", "frames/e/0000.jpg/..", "/absolute/secret.jpg",
    ],
)  # fmt: skip
def test_other_files_are_refused(run: Path, name: str) -> None:
    with pytest.raises(DataError, match="is not a picture in"):
        picture(run, name.replace("/absolute", str(run.parent)))


def test_links_out_of_the_folder_are_refused(run: Path, tmp_path: Path) -> None:
    (run / "frames" / "e" / "link.jpg").symlink_to(tmp_path / "secret.jpg")
    (linked := tmp_path / "linked").mkdir()
    (linked / "frames").symlink_to(tmp_path)
    for folder, name in ((run, "frames/e/link.jpg"), (linked, "frames/secret.jpg")):
        with pytest.raises(DataError, match="is not a picture in"):
            picture(folder, name)

"""Library of runs: their search and keys; and their pictures, of which only those in the run's folder are served."""

from __future__ import annotations

from pathlib import Path

import pytest

from keep_agent.errors import DataError
from keep_agent.viewer.runs import Library, check_root, picture
from tests.keep_agent.viewer.traces import opening, step, write


def test_runs_are_found_below_a_root_and_named_by_their_way_there(tmp_path: Path) -> None:
    write(tmp_path / "a", [opening()])
    write(tmp_path / "deep" / "b", [opening()])
    write(tmp_path / ".hidden", [opening()])
    write(tmp_path / "a" / "frames" / "c", [opening()])
    assert [run.key for run in Library(tmp_path).runs()] == ["a", "deep/b"]
    assert [run.key for run in Library(tmp_path / "a").runs()] == ["."]


def test_a_run_that_appears_later_is_found_and_known_ones_keep_their_index(tmp_path: Path) -> None:
    write(tmp_path / "a", [opening()])
    library = Library(lambda: tmp_path)
    before = library.run("a").index
    write(tmp_path / "b", [opening()])
    assert library.run("b").path == tmp_path / "b"
    assert library.run("a").index is before


@pytest.mark.parametrize("key", ["..", "../a", "/etc", "a/../a", "", "a/", "b"])
def test_a_key_is_looked_up_and_never_walked(key: str, tmp_path: Path) -> None:
    write(tmp_path / "root" / "a", [opening()])
    write(tmp_path / "a", [opening()])
    with pytest.raises(DataError, match="choose one from the list"):
        Library(tmp_path / "root").run(key)


def test_a_run_that_is_deleted_is_gone(tmp_path: Path) -> None:
    run = write(tmp_path / "a", [opening(), step()])
    library = Library(tmp_path)
    library.run("a")
    (run / "trace.jsonl").unlink()
    with pytest.raises(DataError, match="no run 'a'"):
        library.run("a")


@pytest.mark.parametrize(
    ("config", "method"),
    [('{"planner": {"name": "epic"}}', "epic"), ('{"planner": "keep"}', "keep"), ("{}", ""), ("[]", ""), ("{", "")],
)
def test_the_method_is_the_configs(config: str, method: str, tmp_path: Path) -> None:
    write(tmp_path, [opening()])
    (tmp_path / "config.json").write_text(config)
    assert Library(tmp_path).run(".").method == method


def test_what_is_no_run_is_refused_in_words(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="is no folder"):
        check_root(tmp_path / "nowhere")
    with pytest.raises(DataError, match="no run under"):
        check_root(tmp_path)
    write(tmp_path / "deep", [opening()])
    check_root(tmp_path)


@pytest.fixture
def run(tmp_path: Path) -> Path:
    run = tmp_path / "run"
    (run / "frames" / "e").mkdir(parents=True)
    (run / "frames" / "e" / "0000.jpg").write_bytes(b"jpeg")
    (run / "frames" / "e" / "notes.txt").write_text("secret")
    (run / "config.json").write_text("{}")
    (tmp_path / "secret.jpg").write_bytes(b"secret")
    return run


def test_a_picture_is_found(run: Path) -> None:
    assert picture(run, "frames/e/0000.jpg").read_bytes() == b"jpeg"


@pytest.mark.parametrize(
    "name",
    [
        "../secret.jpg",
        "frames/../../secret.jpg",
        "frames/e/../../../secret.jpg",
        "frames/e/notes.txt",
        "config.json",
        "frames",
        "",
        ".",
        "frames/e/0000.jpg/..",
    ],
)
def test_anything_else_is_not_shown(run: Path, name: str) -> None:
    with pytest.raises(DataError, match="is no picture in"):
        picture(run, name)


def test_an_absolute_name_leads_nowhere(run: Path, tmp_path: Path) -> None:
    with pytest.raises(DataError, match="is no picture in"):
        picture(run, str(tmp_path / "secret.jpg"))


def test_links_that_lead_out_are_not_followed(run: Path, tmp_path: Path) -> None:
    (run / "frames" / "e" / "link.jpg").symlink_to(tmp_path / "secret.jpg")
    with pytest.raises(DataError, match="is no picture in"):
        picture(run, "frames/e/link.jpg")
    linked = tmp_path / "other"
    linked.mkdir()
    (linked / "frames").symlink_to(tmp_path)
    with pytest.raises(DataError, match="is no picture in"):
        picture(linked, "frames/secret.jpg")


def test_a_missing_one_is_named(run: Path) -> None:
    with pytest.raises(DataError, match="is not there"):
        picture(run, "frames/e/0009.jpg")

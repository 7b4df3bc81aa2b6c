"""Only pictures in the run's own folder are ever handed out."""

from __future__ import annotations

from pathlib import Path

import pytest

from keep_agent.errors import DataError
from keep_agent.viewer.pictures import picture


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
    other = tmp_path / "other"
    other.mkdir()
    (other / "frames").symlink_to(tmp_path)
    with pytest.raises(DataError, match="is no picture in"):
        picture(other, "frames/secret.jpg")


def test_a_missing_one_is_named(run: Path) -> None:
    with pytest.raises(DataError, match="is not there"):
        picture(run, "frames/e/0009.jpg")

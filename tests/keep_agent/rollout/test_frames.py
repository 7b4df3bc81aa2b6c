from __future__ import annotations

import errno
import itertools
from io import BytesIO
from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from keep_agent.errors import DataError, KeepError
from keep_agent.rollout.frames import FRAMES, MAX_NAME, Frames, encode_picture, folder_name, keep_frames
from keep_agent.rollout.results import EpisodeResult, TaskOutcome
from keep_agent.rollout.run_folder import EPISODES, RunFolder
from memory.files import atomic
from tests.disk_log import log_of_disk
from tests.keep_agent.rollout.pictures import picture
from tests.rewriting import keep_lines

TRICKY = (
    "", ".", "..", "...", "%2E", "%2E.", "%", "%.", "a/b", "a%2Fb", "a\\b", "a b", "a", "é", "\0", "../e", ".e",
    "e.partial", "x" * 300, "x" * 301, "é" * 90, "x" * MAX_NAME, folder_name("x" * 300),
)  # fmt: skip
ids = st.text(st.characters(exclude_categories=["Cs"]))


def pixels(content: bytes) -> np.ndarray:
    return np.asarray(Image.open(BytesIO(content)))


def frames_of(episode: str = "e", steps: int = 3, format: str = "png") -> Frames:
    frames = Frames(episode, format)
    for step in range(steps):
        frames.add(step, picture(step))
    return frames


def on_disk(run: Path) -> dict[str, int]:
    """Return the colour of every picture of a run by path."""
    files = sorted(path for path in (run / FRAMES).rglob("*") if path.is_file())
    return {str(path.relative_to(run)): int(pixels(path.read_bytes())[0, 0, 0]) for path in files}


def test_encoded_picture_can_be_decoded() -> None:
    photo = np.random.default_rng(0).integers(0, 255, (5, 7, 3)).repeat(20, 0).repeat(20, 1).astype(np.uint8)
    assert (pixels(encode_picture(photo, "png")) == photo).all()
    near = pixels(encode_picture(photo, "jpeg"))
    assert near.shape == photo.shape and np.abs(near.astype(int) - photo).mean() < 12
    assert [Image.open(BytesIO(encode_picture(photo, name))).format for name in ("jpeg", "png")] == ["JPEG", "PNG"]
    assert len(encode_picture(photo, "jpeg")) > len(encode_picture(photo[::2, ::2], "jpeg"))
    assert (pixels(encode_picture(photo[::-1, :, ::-1], "png")) == photo[::-1, :, ::-1]).all()


@pytest.mark.parametrize(
    "frame",
    [picture(1).astype(np.float32), picture(1)[0], np.zeros((4, 4, 4), np.uint8), np.zeros((0, 4, 3), np.uint8), "no"],
)
def test_invalid_picture_is_refused_with_its_shape(frame: Any) -> None:
    with pytest.raises(DataError, match=r"a frame is .* \(.*\); the world must give uint8 \(height, width, 3\)"):
        encode_picture(frame, "jpeg")


@given(ids, ids)
def test_folder_names_are_short_visible_ascii_and_unique(first: str, second: str) -> None:
    name = folder_name(first)
    assert 0 < len(name) <= MAX_NAME and name.isascii() and name[0] != "." and not set(name) & set("/\\\0 ")
    assert (name == folder_name(second)) == (first == second)


def test_special_ids_have_unique_folders(tmp_path: Path) -> None:
    assert not [pair for pair in combinations(TRICKY, 2) if folder_name(pair[0]) == folder_name(pair[1])]
    for number, episode in enumerate(TRICKY):
        frames = Frames(episode, "png")
        frames.add(0, picture(number))
        frames.write(tmp_path)
    assert len(on_disk(tmp_path)) == len(TRICKY) and [path.name for path in tmp_path.iterdir()] == [FRAMES]
    keep_frames(tmp_path, TRICKY[3:])
    assert len(on_disk(tmp_path)) == len(TRICKY) - 3


def test_pictures_replace_older_ones_and_no_pictures_write_no_files(tmp_path: Path) -> None:
    Frames("e").write(tmp_path)
    assert not list(tmp_path.iterdir())
    frames_of(steps=5).write(tmp_path)
    frames_of(steps=2).write(tmp_path)
    assert on_disk(tmp_path) == {"frames/e/0000.png": 0, "frames/e/0001.png": 1}


def test_pictures_are_synced_before_their_folder_has_its_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    frames = frames_of()
    calls = log_of_disk(monkeypatch, "rename")
    frames.write(tmp_path)
    files = [f"file {len(content)}" for content in frames.files.values()]
    assert len(files) == 3 and calls == ["folder", *files, "folder", "name e", "folder"]


@pytest.mark.parametrize("call", [1, 2, 4, 5])
def test_full_disk_leaves_no_pictures(tmp_path: Path, call: int, monkeypatch: pytest.MonkeyPatch) -> None:
    counter = itertools.count(1)

    def full(_: Path) -> None:
        if next(counter) == call:
            raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(atomic, "sync", full)
    with pytest.raises(KeepError, match=rf"{tmp_path}/frames/e cannot be written \(No space .*eval.resume={tmp_path}"):
        frames_of().write(tmp_path)
    assert not list((tmp_path / FRAMES).iterdir())


def test_file_in_place_of_the_folder_is_an_error(tmp_path: Path) -> None:
    (tmp_path / FRAMES).touch()
    with pytest.raises(KeepError, match=r"frames/e cannot be written \(.*\): free some room or make"):
        frames_of().write(tmp_path)


def test_resuming_drops_pictures_without_a_mark(tmp_path: Path) -> None:
    run = RunFolder.create(tmp_path / "run", {})
    for index in range(3):
        task = TaskOutcome(f"t/{index}", "pick", "find a mug", True, 1, 1, 0, 1, "success")
        result = EpisodeResult(index, f"e/{index}", (task,), (), 0.0)
        run.commit(result, [{"episode": f"e/{index}"}], frames_of(f"e/{index}", 2))
    keep_lines(run.path / EPISODES, 2)
    for folder in (".0a1b2c3d.partial", "e"):
        (run.path / FRAMES / folder).mkdir()
        (run.path / FRAMES / folder / "0000.png").write_bytes(b"half")
    (run.path / FRAMES / ".DS_Store").touch()
    run.release()
    RunFolder.resume(run.path)
    assert {path.name for path in (run.path / FRAMES).iterdir()} == {"e%2F0", "e%2F1", ".DS_Store"}

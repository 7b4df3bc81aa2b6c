"""Spec of ALFWorld, and the loader of its episodes."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from envs.alfworld.scene import Episode, Game, Task, instruction_of
from envs.alfworld.setting import AlfworldSetting
from envs.splits import LazyEpisodes, check_request, draw_entries
from envs.worlds import WorldSpec
from keep_agent.errors import ConfigError, DataError, check_once, did_you_mean

FILE_NAME = "game.tw-pddl"
FOLDER = "json_2.1.1"
LAYOUT = f"SPLIT/TASK/TRIAL/{FILE_NAME}"
EXCLUDED = ("movable", "Sliced")  # ALFWorld excludes task folders with these words in their names


def load_episodes(
    data: str | None, split: str, stream: int = 1, seed: int = 0, limit: int | None = None
) -> Sequence[Episode]:
    """Load the games that ALFWorld itself would play, sorted by path. With ``limit``, a sample is drawn with ``seed``.

    Raises ConfigError for invalid settings, DataError for a folder without games or a damaged file.
    """
    if data is None:
        raise ConfigError(
            f"env.data is not set; name ALFWorld's folder {FOLDER}, or write games with python -m eval.games"
        )
    if stream != 1:
        raise ConfigError(f"env.stream={stream}, but a game of ALFWorld has one task; leave env.stream at 1")
    check_request(None, stream, limit, "game")
    files = [  # games of the excluded tasks, and games that are not marked as solvable, are left out
        file
        for file in _files(Path(data).expanduser(), split)
        if not any(word in file.parts[-3] for word in EXCLUDED) and Game(file).read().get("solvable") is True
    ]
    if not files:
        raise DataError(
            f"no game of split {split!r} in {data} is known to be solvable; write games with python -m eval.games"
        )
    check_once((file.parent.name for file in files), "trial", f"keep one of its folders in {split}")
    return LazyEpisodes(_episode, draw_entries(files, limit, seed))


def _files(path: Path, split: str) -> list[Path]:
    """Return all game files of a split."""
    if not path.is_dir():
        raise DataError(f"{path} is not a folder; set env.data to ALFWorld's folder {FOLDER}, which holds {LAYOUT}")
    root = path / FOLDER if (path / FOLDER).is_dir() else path
    splits = sorted(folder.name for folder in root.iterdir() if any(folder.glob(f"*/*/{FILE_NAME}")))
    if not splits:
        raise DataError(f"no games of ALFWorld in {path}: expected {LAYOUT}; set env.data to the folder {FOLDER}")
    if split not in splits:
        raise ConfigError(
            f"no split {split!r} in {root}; choose one of {', '.join(splits)}{did_you_mean(split, splits)}"
        )
    return sorted((root / split).glob(f"*/*/{FILE_NAME}"))


def _episode(file: Path) -> Episode:
    game, trial = Game(file), file.parent.name
    task_type = file.parent.parent.name.partition("-")[0]
    return Episode(trial, game, (Task(trial, task_type, instruction_of(game.read(), file)),))


SPEC = WorldSpec("ALFWorld's TextWorld engine", AlfworldSetting, load_episodes)

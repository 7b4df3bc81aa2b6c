"""Games loaded from a folder, and the errors for folders and files without games."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from envs.alfworld.spec import FILE_NAME, SPEC, load_episodes
from keep_agent.errors import ConfigError, DataError

GRAMMAR = r'grammar :: """{"task": [{"rhs": "Your task is to: put a \"hot\" cup in cabinet."}]}""";'


def place(root: Path, name: str, **changes: Any) -> Path:
    """Write a game file in ALFWorld's layout, good enough to be loaded but not to be played."""
    file = root / name / FILE_NAME
    file.parent.mkdir(parents=True)
    game = {"pddl_domain": "", "grammar": GRAMMAR, "pddl_problem": "", "solvable": True}
    file.write_text(json.dumps(game | changes))
    return file


@pytest.fixture
def root(tmp_path: Path) -> Path:
    folder = tmp_path / "json_2.1.1"
    for trial in ("trial_B", "trial_A"):
        place(folder, f"valid_seen/pick_heat_then_place_in_recep-Cup-None-Cabinet-10/{trial}")
    place(folder, "valid_seen/pick_two_obj_and_place-CD-None-Safe-302/trial_C")
    place(folder, "valid_seen/look_at_obj_in_light-CD-None-DeskLamp-302/trial_D", solvable=False)
    place(folder, "valid_seen/pick_and_place_with_movable_recep-CD-Bowl-Safe-302/trial_E")
    place(folder, "valid_seen/pick_and_place_simple-AppleSliced-None-Fridge-10/trial_F")
    place(folder, "train/pick_and_place_simple-CD-None-Safe-302/trial_G")
    return folder


def test_playable_games_are_loaded_by_task_and_trial(root: Path) -> None:
    for data in (root, root.parent):
        episodes = load_episodes(str(data), "valid_seen")
        assert [episode.id for episode in episodes] == ["trial_A", "trial_B", "trial_C"]
    (task,) = episodes[0].tasks
    assert (task.id, task.type) == ("trial_A", "pick_heat_then_place_in_recep")
    assert task.instruction == 'put a "hot" cup in cabinet'
    assert [episode.id for episode in SPEC.training(str(root))] == ["trial_G"]


def test_a_limit_samples_with_the_seed(root: Path) -> None:
    samples = {seed: [e.id for e in load_episodes(str(root), "valid_seen", seed=seed, limit=2)] for seed in range(9)}
    assert {len(set(ids)) for ids in samples.values()} == {2} and len(set(map(tuple, samples.values()))) > 1
    assert samples[3] == [episode.id for episode in load_episodes(str(root), "valid_seen", seed=3, limit=2)]
    assert len(load_episodes(str(root), "valid_seen", limit=9)) == 3


@pytest.mark.parametrize(
    ("choices", "sentence"),
    [
        ({"data": None}, "env.data is not set; name ALFWorld's folder json_2.1.1, or write games"),
        ({"split": "test"}, "no split 'test'.*choose one of train, valid_seen"),
        ({"stream": 2}, "env.stream=2, but a game of ALFWorld has one task"),
        ({"limit": 0}, "limit of 0 episodes"),
    ],
)
def test_impossible_settings_are_errors(root: Path, choices: dict[str, Any], sentence: str) -> None:
    with pytest.raises(ConfigError, match=sentence):
        load_episodes(**{"data": str(root), "split": "valid_seen"} | choices)


def test_folders_without_games_are_errors(root: Path, tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    place(tmp_path / "unsolved", "train/pick_and_place_simple-CD-None-Safe-302/trial_H", solvable=None)
    for name, sentence in (("nowhere", "is not a folder"), ("empty", "no games of ALFWorld"), ("unsolved", "solvable")):
        with pytest.raises(DataError, match=sentence):
            load_episodes(str(tmp_path / name), "train")


@pytest.mark.parametrize(
    ("text", "sentence"),
    [("{", "is not JSON"), ("[]", "is not a game"), ('{"grammar": ""}', "no pddl_domain, pddl_problem")],
)
def test_damaged_files_are_named(root: Path, text: str, sentence: str) -> None:
    file = place(root, "valid_unseen/pick_and_place_simple-CD-None-Safe-302/trial_I")
    file.write_text(text)
    with pytest.raises(DataError, match=f"trial_I.*{sentence}"):
        load_episodes(str(root), "valid_unseen")


def test_games_are_not_for_training_rollouts(root: Path) -> None:
    (episode,) = load_episodes(str(root), "train")
    with pytest.raises(ConfigError, match="training rollouts in alfred or wah"):
        SPEC.play_setting("grounded", "partial", episode, None)
    assert SPEC.reword(episode, episode.tasks[0], None) == episode.tasks[0].instruction


def test_a_game_without_a_task_and_duplicate_trial_names_are_refused(root: Path) -> None:
    place(root, "valid_unseen/pick_and_place_simple-CD-None-Safe-302/trial_J", grammar="grammar")
    with pytest.raises(DataError, match="trial_J.*has no instruction"):
        load_episodes(str(root), "valid_unseen")[0]
    place(root, "valid_seen/pick_and_place_simple-CD-None-Safe-302/trial_A")
    with pytest.raises(DataError, match="trial 'trial_A' occurs 2 times"):
        load_episodes(str(root), "valid_seen")

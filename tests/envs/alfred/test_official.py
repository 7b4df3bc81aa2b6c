"""Loader of official data, on small trees written by hand."""

from __future__ import annotations

import gzip
import json
import logging
import shutil
from functools import reduce
from operator import getitem
from pathlib import Path
from typing import Any

import pytest

from envs.alfred.data.mining import official_id, type_of
from envs.alfred.data.survey_cache import cache_file, load_survey
from envs.alfred.data.trajectories import Corpus
from envs.alfred.goals import goal_met
from envs.alfred.scene import Episode, Item
from envs.alfred.spec import load_episodes
from envs.alfred.world import World
from keep_agent.errors import ConfigError, DataError
from tests.envs.alfred.trials import BED, DESK, DRAWER, IN_DRAWER, ON_BED, ON_DESK, pack, pick, trial, usual, write


@pytest.fixture(autouse=True)
def _own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """Return a tree json_2.1.0 with one split."""
    folder = tmp_path / "json_2.1.0"
    write(folder, "valid_seen", usual())
    return folder


def item(episode: Episode, name: str) -> Item:
    return next(item for item in episode.scene.items if item.id == name)


def add(root: Path, content: Any) -> Episode:
    """Return the first episode of a trial added to the tree."""
    write(root, "valid_seen", [content])
    episodes = load_episodes(str(root), "valid_seen")
    return next(episode for episode in episodes if episode.tasks[0].id == content["task_id"])


def test_one_episode_per_annotation_with_fixtures_first_and_objects_in_order(root: Path) -> None:
    episodes = load_episodes(str(root), "valid_seen")
    assert [episode.id for episode in episodes] == [f"trial_{name}-{k}" for name in "abc" for k in (0, 1)]
    first = episodes[0]
    assert first.tasks[0].instruction == "Put a book on the bed."
    assert (first.scene.id, first.scene.room, first.scene.agent) == ("FloorPlan301", "bedroom", (0.5, -0.25))
    assert episodes[1].scene == first.scene
    episode = load_episodes(str(root), "valid_seen")[2]
    expected = ["bed_1", "desk_1", "desklamp_1", "drawer_1", "book_1", "pen_1", "pillow_1"]
    assert [thing.id for thing in episode.scene.items] == expected
    assert item(episode, "book_1").source == "Book|+02.10|+00.75|+01.10"
    assert item(episode, "desk_1").source == "Desk|+02.00|+00.00|+01.00"


def test_places_are_inferred_from_other_trials_and_missing_fixtures_added(root: Path) -> None:
    episode = add(root, trial("trial_d", [("Book", ON_DESK), ("Pencil", IN_DRAWER), ("Pillow", ON_BED)]))
    parents = [item(episode, name).parent for name in ("book_1", "pencil_1", "pillow_1")]
    assert parents == ["desk_1", "drawer_1", "bed_1"]
    episode = add(root, trial("trial_d", [("Book", ON_DESK)], params={"parent_target": "Sofa"}))
    assert item(episode, "sofa_1").source == ""


def test_a_trials_own_demonstration_is_not_used(root: Path) -> None:
    """Only trial_e shows the safe: its own scene must lack the safe, while another trial's scene has it."""
    safe, inside = ("Safe", (0.0, 0.2, 5.0)), (0.0, 0.4, 5.0)
    content = trial("trial_e", [("CellPhone", inside)], *pick(0, "CellPhone", inside, safe))
    first, second = add(root, content), add(root, trial("trial_f", [("CellPhone", inside)]))
    assert all(thing.type != "Safe" for thing in first.scene.items)
    assert item(second, "cellphone_1").parent == "safe_1"


def test_no_goal_is_reached_at_the_start(root: Path) -> None:
    episode = add(root, trial("trial_d", [("Book", ON_BED), ("Book", ON_DESK)]))
    assert item(episode, "book_1").parent != "bed_1" and item(episode, "book_2").parent == "desk_1"
    assert not goal_met(World(episode.scene), episode.tasks[0], "official")
    poses = [("Book", ON_BED), ("Book", (-2.0, 0.62, 1.0))]
    episode = add(root, trial("trial_d", poses, task_type="pick_two_obj_and_place"))
    assert sorted(item(episode, name).parent == "bed_1" for name in ("book_1", "book_2")) == [False, True]


def test_an_object_above_a_mug_starts_in_it_and_one_far_from_all_fixtures_on_the_floor(root: Path) -> None:
    x, y, z = ON_DESK
    poses = [("Mug", ON_DESK), ("Pen", (x, y + 0.05, z + 0.01)), ("Book", (x, y, z + 0.3))]
    episode = add(root, trial("trial_d", poses))
    assert item(episode, "pen_1").parent == "mug_1" and item(episode, "book_1").parent == "desk_1"
    episode = add(root, trial("trial_d", [("Book", (0.0, 0.02, -4.0))]))
    assert item(episode, "book_1").parent is None


@pytest.mark.parametrize("on", [True, False])
def test_lamps_start_as_the_trial_says(root: Path, on: bool) -> None:
    toggles = [{"objectType": "DeskLamp", "isOn": on}]
    episode = add(root, trial("trial_d", [("Book", ON_DESK)], toggles=toggles))
    assert ("on" in item(episode, "desklamp_1").states) is on


def test_an_archive_is_read_like_the_folder(root: Path) -> None:
    before = list(load_episodes(str(root), "valid_seen"))
    pack(root, "valid_seen")
    shutil.rmtree(root / "valid_seen")
    assert list(load_episodes(str(root), "valid_seen")) == before
    assert list(load_episodes(str(root.parent), "valid_seen")) == before


def test_the_splits_file_chooses_annotations(root: Path) -> None:
    entries = [{"task": "task-1/trial_b", "repeat_idx": 1}, {"task": "task-1/trial_z", "repeat_idx": 0}]
    folder = root.parent / "splits"
    folder.mkdir()
    (folder / "oct21.json").write_text(json.dumps({"valid_seen": entries}), encoding="utf-8")
    assert [episode.id for episode in load_episodes(str(root), "valid_seen")] == ["trial_b-1"]
    entries[0]["repeat_idx"] = "1"
    (folder / "oct21.json").write_text(json.dumps({"valid_seen": entries}), encoding="utf-8")
    with pytest.raises(DataError, match=r"oct21\.json lists none of the \d+ annotations of 'valid_seen'"):
        load_episodes(str(root), "valid_seen")
    (folder / "oct21.json").write_text("{", encoding="utf-8")
    with pytest.raises(DataError, match=r"oct21\.json is not JSON"):
        load_episodes(str(root), "valid_seen")


def test_a_limit_is_drawn_with_the_seed(root: Path) -> None:
    samples = [[e.id for e in load_episodes(str(root), "valid_seen", seed=seed, limit=3)] for seed in (0, 0, 1, 2, 3)]
    assert samples[0] == samples[1] and all(len(ids) == 3 for ids in samples)
    assert any(ids != samples[0] for ids in samples)


def test_the_survey_is_cached(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    corpus = Corpus(root)
    survey = load_survey(corpus)
    monkeypatch.setattr(Corpus, "demonstrations", lambda self: pytest.fail("read again"))
    assert load_survey(Corpus(root)) == survey


def test_new_trials_and_damage_renew_the_cache(root: Path, caplog: pytest.LogCaptureFixture) -> None:
    survey = load_survey(Corpus(root))
    path = cache_file(Corpus(root))
    sound = path.read_bytes()
    changed = gzip.compress(gzip.decompress(sound).replace(b"Desk|", b"Sofa|"))
    for damaged in (b"", b"no gzip", sound[: len(sound) // 2], changed, gzip.compress(b"{}\n{}")):
        path.write_bytes(damaged)
        with caplog.at_level(logging.INFO):
            assert load_survey(Corpus(root)) == survey
        assert "read again" in caplog.text and path.read_bytes() == sound
    write(root, "train", [trial("trial_z", [("Pillow", ON_BED)], *pick(0, "Pillow", ON_BED, BED))])
    assert len(load_survey(Corpus(root))["FloorPlan301"].places) == len(survey["FloorPlan301"].places) + 1


def test_a_cache_that_cannot_be_written_does_not_stop_the_run(
    root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "file").write_text("in the way")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    assert load_survey(Corpus(root)) and "cannot be written" in caplog.text


@pytest.mark.parametrize(
    ("data", "split", "options", "message"),
    [
        ("", "valid_unseen", {}, r"no split 'valid_unseen'.*choose one of valid_seen"),
        (None, "valid_seen", {}, "unknown split 'valid_seen' of the embedded houses.*train, valid, test"),
        ("", "valid_seen", {"stream": 3}, "stream of 3 tasks needs the embedded houses"),
        (None, "test", {"limit": 0}, "limit of 0"),
        ("nowhere", "valid_seen", {}, r"nowhere does not exist; set env.data"),
        ("valid_seen/task-1/trial_a/traj_data.json", "valid_seen", {}, "is a file"),
        ("valid_seen", "valid_seen", {}, r"no ALFRED trajectories in .*expected SPLIT/TASK/TRIAL"),
    ],
)
def test_wrong_settings_and_paths_name_the_remedy(
    root: Path, data: str | None, split: str, options: dict[str, int], message: str
) -> None:
    path = None if data is None else str(root / data)
    with pytest.raises(ConfigError if data in ("", None) else DataError, match=message):
        load_episodes(path, split, **options)


@pytest.mark.parametrize(
    ("content", "complaint"),
    [
        ('{"task_id": "trial_a", "pl', "is not JSON"), pytest.param("[" * 100_000, "is nested too deeply", id="deep"),
        ("[]", "holds a list"), ('{"task_id": "trial_a"}', "no pddl_params or plan"),
        ('{"pddl_params": {}, "plan": {"high_pddl": [], "low_actions": []}}', "is not a trajectory .KeyError: 'scene'"),
    ],
)  # fmt: skip
def test_a_bad_trajectory_is_named(root: Path, content: str, complaint: str) -> None:
    path = next(root.rglob("traj_data.json"))
    path.write_text(content, encoding="utf-8")
    with pytest.raises(DataError, match=complaint) as raised:
        load_episodes(str(root), "valid_seen")
    assert str(path) in str(raised.value) and "\n" not in str(raised.value)


GOAL, POSES = "has a goal that cannot be reached: ", ("scene", "object_poses")
WRONG_VALUES: list[tuple[tuple[str | int, ...], Any, str]] = [
    (("pddl_params", "object_target"), "Unicorn", GOAL + "object_target='Unicorn' is not a type"),
    (("pddl_params", "object_target"), "book", GOAL + "object_target='book' .* did you mean 'Book'"),
    (("pddl_params", "object_target"), "Vase", GOAL + "object_target='Vase': the task needs 1 of this type, .* has 0"),
    (("pddl_params", "object_target"), ["Book"], GOAL + r"object_target=\['Book'\] is not a type"),
    (("pddl_params", "parent_target"), "Book", GOAL + "parent_target='Book' is not a type"),
    (("pddl_params", "parent_target"), "Mug", GOAL + "parent_target='Mug' is not a type"),
    (("pddl_params", "parent_target"), None, GOAL + "parent_target=None is not a type"),
    (("pddl_params", "object_sliced"), 1, GOAL + "object_sliced=1 is not a boolean"),
    (("pddl_params", "object_sliced"), True, GOAL + "object_target='Book' is not a type"),
    ((*POSES, 1, "objectName"), "Thing_12ab", "unknown type 'Thing'"),
    ((*POSES, 1, "objectName"), "Mug(Clone)copy24", r"unknown type 'Mug\(Clone\)copy24'"),
    (("turk_annotations", "anns", 0, "task_desc"), "a mug\ud83d", "surrogate pair at turk_annotations"),
    (("turk_annotations", "anns", 0, "task_desc"), " ", "empty task_desc"),
    (("plan", "high_pddl", 0, "planner_action", "objectId"), "Book", "has a malformed object id"),
]
for _plan in (301, ["FloorPlan301"], "FloorPlan999", "FloorPlan3o1", "301", None):
    WRONG_VALUES.append((("scene", "floor_plan"), _plan, "is not a trajectory .*unknown floor plan"))
for _number in (float("nan"), float("inf"), True, "1.5", None):
    WRONG_VALUES.append(((*POSES, 0, "position", "x"), _number, "is not a trajectory .*is not a finite number"))


@pytest.mark.parametrize(("keys", "value", "complaint"), WRONG_VALUES)
def test_a_wrong_value_is_named_with_its_file(
    root: Path, keys: tuple[str | int, ...], value: Any, complaint: str
) -> None:
    content = trial("trial_d", [("Book", ON_DESK), ("Pen", ON_DESK)], *pick(0, "Book", ON_DESK, DESK))
    reduce(getitem, keys[:-1], content)[keys[-1]] = value
    with pytest.raises(DataError, match=rf"trial_d/traj_data\.json .*{complaint}"):
        add(root, content)


def test_a_pair_needs_two_in_the_room_but_null_parameters_and_surrogate_pairs_are_fine(root: Path) -> None:
    content = trial("trial_d", [("Book", ON_DESK)], *pick(0, "Book", ON_DESK, DESK), task_type="pick_two_obj_and_place")
    with pytest.raises(DataError, match="'Book': the task needs 2 of this type, but the room has 1"):
        add(root, content)
    params = {"toggle_target": None, "mrecep_target": None}
    add(root, trial("trial_d", [("Book", ON_DESK)], *pick(0, "Book", ON_DESK, DESK), params=params))
    content = trial("trial_d", [("Book", ON_DESK)], *pick(0, "Book", ON_DESK, DESK))
    content["turk_annotations"]["anns"][0]["task_desc"] = "a book \U0001f4d6"
    assert add(root, content).tasks[0].instruction == "a book \U0001f4d6"


def test_two_trials_of_one_id_are_refused(root: Path) -> None:
    """The second trial would be played in the first one's room, and both would have the same episode ids."""
    original = next(root.rglob("trial_a/traj_data.json"))
    copy = root / "valid_seen" / "task-2" / "trial_a" / "traj_data.json"
    copy.parent.mkdir(parents=True)
    shutil.copy(original, copy)
    with pytest.raises(DataError, match="'trial_a-0' occurs 2 times"):
        load_episodes(str(root), "valid_seen")


def test_a_truncated_archive_is_named(root: Path) -> None:
    archive = pack(root, "valid_seen")
    shutil.rmtree(root / "valid_seen")
    archive.write_bytes(archive.read_bytes()[:-40])
    with pytest.raises(DataError, match=r"valid_seen\.tar\.gz cannot be unpacked"):
        load_episodes(str(root), "valid_seen")


@pytest.mark.parametrize(
    ("value", "text"), [(0.0, "+00.00"), (-0.001, "00.00"), (0.495, "+00.50"), (-3.215, "-03.22"), (12.3, "+12.30")]
)
def test_official_ids_are_spelled_as_in_the_simulator(value: float, text: str) -> None:
    assert official_id(DRAWER[0], (value, 1.0, 1.0)) == f"Drawer|{text}|+01.00|+01.00"


def test_types_of_official_ids() -> None:
    ids = "Sink|+00.02|+00.77|-01.71|SinkBasin", "Apple|-03.65|+00.82|-03.80|AppleSliced_1", "Bed|+00.01|-00.06|+01.61"
    assert [type_of(name) for name in ids] == ["SinkBasin", "AppleSliced", "Bed"]


def test_embedded_houses() -> None:
    episodes = load_episodes(None, "test", stream=2, limit=5)
    assert [len(episode.tasks) for episode in episodes] == [2] * 5 and episodes[1:3][0] == episodes[1]
    assert load_episodes(None, "test", seed=1, limit=1)[0].scene.id != load_episodes(None, "test", limit=1)[0].scene.id
    with pytest.raises(IndexError):
        episodes[5]

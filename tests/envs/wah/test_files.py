"""Tasks from files: WAH-NL's format, plans laid out in given apartments, errors for damaged and missing files."""

from __future__ import annotations

import gzip
import json
import shutil
from collections.abc import Callable, Sequence
from copy import deepcopy
from pathlib import Path
from random import Random
from typing import Any

import pytest

from benchmarks import wah_tasks
from envs.wah.apartments.episodes import generate_episode
from envs.wah.apartments.generator import apartment_seed
from envs.wah.apartments.placing import lay_out
from envs.wah.goals import parse_goal
from envs.wah.scene import Episode
from envs.wah.setting import WahSetting
from envs.wah.spec import load_episodes
from keep_agent.errors import ConfigError, DataError

GOAL = {"on_apple_coffeetable": 1, "on_wine_coffeetable": 0}


def record(number: int = 0, **more: Any) -> dict[str, Any]:
    graph = deepcopy(generate_episode(apartment_seed("valid", number)).scene.graph)
    if all(node["class_name"] != "apple" for node in graph["nodes"]):
        lay_out(graph, [(("on_apple_coffeetable", 1),)], Random(number))
    return {
        "task_id": number, "task_name": "prepare_snack", "env_id": 3, "init_graph": graph, "init_room": "bedroom",
        "task_goal": GOAL, "nl_instructions": ["An apple for the coffee table.", "Apple, coffee table!"],
    } | more  # fmt: skip


def load(path: Path, split: str = "test", **settings: int) -> Sequence[Episode]:
    return load_episodes(str(path), split, **settings)


def write(path: Path, content: Any) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    text = json.dumps(content).encode()
    path.write_bytes(gzip.compress(text) if path.name.endswith(".gz") else text)
    return path


@pytest.mark.parametrize("name", ["wah_nl_test.json", "wah_nl_test.json.gz"])
def test_every_instruction_of_a_record_is_an_episode(tmp_path: Path, name: str) -> None:
    file = write(tmp_path / name, [record(0), record(1)])
    episodes = load(file)
    assert [episode.tasks[0].instruction for episode in episodes] == record()["nl_instructions"] * 2
    assert len({episode.id for episode in episodes}) == 4 and len({e.tasks[0].id for e in episodes}) == 2
    first = episodes[0]
    assert first.scene.simulator_scene == 3 and first.scene.room == "bedroom"
    assert first.tasks[0].goal == (("on_apple_coffeetable", 1),)
    home = WahSetting().begin(first)
    assert home.graph[home.room].class_name == "bedroom"


def test_duplicate_ids_are_errors(tmp_path: Path) -> None:
    file = write(tmp_path / "wah_nl_test.json", [record(0), record(1, task_id=0)])
    with pytest.raises(DataError, match="task 'wah_nl_test-0' occurs 2 times; give each task_id once"):
        load(file)
    examples = folder_of_plans(tmp_path / "plans") / "tasks" / "examples.json"
    shutil.copy(examples, examples.with_name("more_examples.json"))
    with pytest.raises(DataError, match="'plan-0' occurs 2 times"):
        load(tmp_path / "plans")


def test_a_folder_is_read_by_split_and_a_limit_samples_with_the_seed(tmp_path: Path) -> None:
    write(tmp_path / "wah_nl_test.json", [record(number) for number in range(3)])
    write(tmp_path / "wah_nl_train.json", record(9))
    assert len(load(tmp_path)) == 6 and len(load(tmp_path, "train")) == 2
    samples = [[e.id for e in load(tmp_path, seed=seed, limit=3)] for seed in (0, 0, 1, 2)]
    assert samples[0] == samples[1] and len({tuple(ids) for ids in samples}) > 1
    assert all(len(ids) == 3 for ids in samples)
    with pytest.raises(ConfigError, match=r"'valid' in its name"):
        load(tmp_path, "valid")


def test_a_record_without_instructions_gets_a_generated_one(tmp_path: Path) -> None:
    bare = {key: value for key, value in record().items() if key not in ("nl_instructions", "task_goal")}
    file = write(tmp_path / "one.json", bare | {"goal": GOAL})
    (episode,), (repetition,) = load(file), load(file)
    assert "apple" in episode.tasks[0].instruction.lower() and episode.tasks == repetition.tasks


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"task_name": "dance"}, "'dance'"),
        ({"task_goal": {"under_apple_table": 1}}, "'under_apple_table'"),
        ({"task_goal": {"on_apple_coffeetable": -1}}, "whole number"),
        ({"task_goal": {"on_apple_coffeetable": True}}, "whole number"),
        ({"task_goal": {"on_apple_coffeetable": 1.0}}, "whole number"),
        ({"task_goal": {"on_unicorn_coffeetable": 1}}, "record 1: there is no 'unicorn' in this apartment"),
        ({"task_goal": {"on_aple_coffeetable": 1}}, "did you mean 'apple'"),
        ({"task_goal": {"on_apple_unicorntable": 1}}, "there is no 'unicorntable'"),
        ({"task_goal": {"on_apple_coffeetable": 99}}, "99 of 'apple' are required"),
        ({"task_goal": {"on_fridge_coffeetable": 1}}, "record 1: 'fridge' cannot be carried: .*GRABBABLE"),
        ({"task_goal": {"on_bedroom_coffeetable": 1}}, "'bedroom' cannot be carried"),
        ({"init_room": "attic"}, "record 1 has init_room='attic'; the rooms there are .*bedroom"),
        ({"init_room": "bedrom"}, "did you mean 'bedroom'"),
        ({"init_room": 3}, "init_room=3; the rooms"),
        ({"task_goal": {"inside_apple_coffeetable": 1}}, "'coffeetable' cannot fulfil 'inside'.*CONTAINERS"),
        ({"task_goal": {"turnOn_coffeetable": 1}}, "'coffeetable' cannot fulfil 'turnOn'.*HAS_SWITCH"),
        ({"init_graph": {}}, r"record 1.* is not a VirtualHome graph \(KeyError"),
        ({"env_id": True}, "env_id=True; give a whole number"),
        ({"task_goal": [1]}, r"record 1 has the goal \[1\]"),
        ({"task_goal": {"on_apple_coffeetable": 0}}, r"record 1: .* without predicates"),
        ({"task_goal": {"on_apple_coffeetable": 1, "turnOn_stove": 1}}, "destination, not coffeetable and stove"),
        ({"nl_instructions": "bring an apple"}, r"record 1 has nl_instructions='bring an apple'"),
        ({"nl_instructions": [5]}, "give a list of texts"),
        ({"nl_instructions": [" "]}, "give a list of texts"),
        ({"nl_instructions": ["an apple\ud83d"]}, r"half of a surrogate pair at \[1\]\.nl_instructions\[0\]"),
        ({"nl_instructions": None, "task_name": "read_book"}, r"record 1 has no nl_instructions, .* a book and a seat"),
    ],
)
def test_invalid_records_are_errors(tmp_path: Path, change: dict[str, Any], words: str) -> None:
    file = write(tmp_path / "tasks.json", [record(), record(1) | change])
    with pytest.raises(DataError, match=words):
        load(file)


@pytest.mark.parametrize(
    ("name", "content", "words"),
    [
        ("deep.json", b"[" * 100_000, r"deep\.json is nested too deeply"),
        ("bad.json.gz", b"{", r"bad\.json\.gz is damaged"), ("bad.json.gz", b"\x1f\x8b broken", r"\.gz is damaged"),
        ("bad.json", b"{", r"bad\.json is not JSON"), ("odd.json", b"[1, 2]", "not a list of tasks"),
        ("tasks.json", json.dumps({"task_name": "prepare_snack", "task_goal": GOAL}).encode(), "has no 'init_graph'"),
    ],
)  # fmt: skip
def test_damaged_files_are_errors_that_name_them(tmp_path: Path, name: str, content: bytes, words: str) -> None:
    (tmp_path / name).write_bytes(content)
    with pytest.raises(DataError, match=words):
        load(tmp_path / name)


def test_missing_files_and_streams_of_files_are_errors(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="does not exist"):
        load(tmp_path / "nowhere.json")
    with pytest.raises(ConfigError, match="needs the embedded apartments"):
        load(write(tmp_path / "tasks.json", []), stream=2)


def folder_of_plans(tmp_path: Path, **more: Any) -> Path:
    for number in range(3):
        graph = generate_episode(apartment_seed("valid", number)).scene.graph
        write(tmp_path / "apartments" / f"home{number}.json.gz", graph)
    common = {key: value for key, value in record().items() if key in ("task_id", "task_name", "nl_instructions")}
    plans = [common | {"task_id": number, "derived_goal": {"on_apple_coffeetable": 1}} | more for number in range(8)]
    write(tmp_path / "tasks" / "examples.json", plans)
    return tmp_path


def test_plans_are_laid_out_with_the_seed(tmp_path: Path) -> None:
    folder = folder_of_plans(tmp_path)
    episodes = load(folder)
    assert len(episodes) == 16 and episodes[0].scene == episodes[1].scene
    with pytest.raises(ConfigError, match="has no splits, but split='train' is set; leave env.split out"):
        load(folder, "train")
    assert [e.scene for e in episodes] != [e.scene for e in load(folder, seed=1)]
    assert len({episode.scene.id.rpartition("-")[2] for episode in episodes}) > 1


def test_the_benchmark_lists_the_tasks_of_plans(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("sys.argv", ["wah_tasks", "--data", str(folder_of_plans(tmp_path))])
    assert wah_tasks.main() == 0
    *lines, count = capsys.readouterr().out.splitlines()
    assert count == f"{len(lines)} tasks" and all("on_apple_coffeetable:1" in line for line in lines)


def test_a_folder_without_plans_is_an_error(tmp_path: Path) -> None:
    (folder_of_plans(tmp_path) / "tasks" / "examples.json").unlink()
    with pytest.raises(ConfigError, match="name another folder"):
        load(tmp_path)


@pytest.mark.parametrize(
    ("goal", "words"),
    [
        ({"on_apple_billiardtable": 1}, "none of 3 apartments"),
        ({"on_unicorn_coffeetable": 1}, "record 0: there is no 'unicorn' in any apartment"),
        ({"on_aple_coffeetable": 1}, "record 0: there is no 'aple' in any apartment; did you mean 'apple'"),
        ({"on_apple_kitchen": 1}, "record 0 .* none of 3 apartments .*'kitchen' cannot fulfil 'on': .* SURFACES"),
        ({"inside_apple_coffeetable": 1}, "'coffeetable' cannot fulfil 'inside': none in the apartment .* CONTAINERS"),
        ({"turnOn_apple": 1}, "there is no 'apple' in this apartment|'apple' cannot fulfil 'turnOn'"),
        ({"sit_fridge": 1}, "'fridge' cannot fulfil 'sit': none in the apartment has the property SITTABLE"),
        ({"inside_apple_kitchencabinet": 1, "turnOn_kitchencabinet": 1}, "fulfil 'inside' and 'turnOn': .* HAS_SWITCH"),
        ({"on_chair_coffeetable": 1}, "record 0: no apartment has a likely place for 'chair'"),
        ({"on_apple_coffeetable": 10**12}, "record 0: 1000000000000 of 'apple' are required; at most 100 are laid out"),
    ],
)
def test_an_impossible_plan_is_an_error_that_names_it(tmp_path: Path, goal: dict[str, int], words: str) -> None:
    with pytest.raises((ConfigError, DataError), match=words):
        load(folder_of_plans(tmp_path, derived_goal=goal))


@pytest.mark.parametrize(
    ("instructions", "words"), [([], "record 0 has no nl_instructions"), ("go", "give a list of texts")]
)
def test_a_plan_without_instructions_is_an_error(tmp_path: Path, instructions: Any, words: str) -> None:
    with pytest.raises(DataError, match=words):
        load(folder_of_plans(tmp_path, nl_instructions=instructions))


def test_the_shared_tasks_are_false_at_the_start(wah_data: Callable[[str], Path]) -> None:
    episodes = load(wah_data("."))
    assert len(episodes) == 289 and len({episode.tasks[0].id for episode in episodes}) == 169
    setting = WahSetting()
    for episode in episodes[::6]:
        home, task = setting.begin(episode), episode.tasks[0]
        assert setting.conditions(home, task) == (0, sum(predicate.count for predicate in parse_goal(task.goal)))


def test_the_shared_episodes_are_solvable(wah_data: Callable[[str], Path]) -> None:
    episodes = load(wah_data("episodes"))
    assert {episode.tasks[0].type for episode in episodes} == {"read_book", "prepare_food"}
    setting = WahSetting(rules="strict", max_steps=60)
    expert = setting.expert()
    for episode in episodes:
        home, task = setting.begin(episode), episode.tasks[0]
        assert home.allows_sitting == (task.type == "read_book")
        while (skill := expert.act(home, task)) != "done":
            assert skill in setting.space.admissible(home) and setting.space.execute(home, skill).ok, skill
        met, total = setting.conditions(home, task)
        assert met == total == 5

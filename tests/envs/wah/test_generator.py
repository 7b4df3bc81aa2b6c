"""Embedded episodes: reproducibility, goals false at the start, and feasibility."""

from __future__ import annotations

import os
import subprocess
import sys
from collections import Counter
from collections.abc import Callable
from functools import cache, partial
from random import Random
from typing import Any

import pytest

from envs.setting import goal_reached
from envs.splits import EPISODES_PER_SEED, LAST_SEED
from envs.wah.apartments.episodes import PUT_TASKS, generate_episode
from envs.wah.apartments.furniture import ROOMS
from envs.wah.apartments.generator import apartment_seed
from envs.wah.apartments.placing import place
from envs.wah.goals import parse_goal, place_class
from envs.wah.scene import Episode
from envs.wah.setting import WahSetting
from envs.wah.spec import load_episodes
from keep_agent.errors import ConfigError
from tests.envs.wah.homes import apartment, home, node_id, row


@cache
def episodes() -> list[Episode]:
    return [generate_episode(seed) for seed in range(80)]


@cache
def streams() -> list[Episode]:
    return [generate_episode(seed, stream=4, most=2) for seed in range(80, 100)]


SETTING, LOAD = WahSetting(), partial(load_episodes, None, split="test")


def test_episodes_depend_on_the_seed() -> None:
    assert generate_episode(81, stream=4, most=2) == streams()[1]
    assert len({str(episode.scene.graph) for episode in episodes()}) == len(episodes())
    assert len({episode.id for episode in episodes() + streams()}) == len(episodes()) + len(streams())


@pytest.mark.parametrize(
    "code",
    [
        "from envs.wah.apartments.episodes import generate_episode as g; print([g(i, stream=3) for i in range(5)])",
        "from random import Random; from envs.wah.apartments.generator import draw_apartment as d;"
        "print([d('test', Random(i)) for i in range(6)])",
    ],
    ids=["episodes", "apartments"],
)
def test_the_hash_seed_of_python_has_no_effect(code: str) -> None:
    outputs = set()
    for hash_seed in ("1", "2"):
        env = os.environ | {"PYTHONHASHSEED": hash_seed}
        run = subprocess.run([sys.executable, "-c", code], capture_output=True, check=True, env=env, text=True)
        outputs.add(run.stdout)
    assert len(outputs) == 1


def test_goals_are_possible_and_false_at_the_start() -> None:
    for episode in episodes() + streams():
        house = SETTING.begin(episode)
        assert house.graph[house.room].class_name == episode.scene.room
        for task in episode.tasks:
            met, total = SETTING.conditions(house, task)
            assert met == 0 < total, (episode.id, task.goal)
            goal = parse_goal(task.goal)
            assert all(len(house.graph.of_class(part.thing)) >= part.count for part in goal if part.thing)
            assert house.graph.of_class(place_class(goal))


def test_goals_of_a_stream_are_false_when_the_earlier_ones_are_met() -> None:
    setting = WahSetting("grounded")
    for episode in streams():
        house = setting.begin(episode)
        for task in episode.tasks:
            assert not goal_reached(setting, house, task), (episode.id, task.goal)
            while (skill := setting.expert().act(house, task)) != "done":
                setting.space.execute(house, skill)
            assert goal_reached(setting, house, task)
            house.begin_task()


def test_no_predicate_occurs_twice_in_a_stream() -> None:
    for episode in [*streams(), generate_episode(5, stream=20)]:
        counts = Counter(predicate for task in episode.tasks for predicate, _ in task.goal)
        assert max(counts.values()) == 1, episode.id
        assert len({task.id for task in episode.tasks}) == len(episode.tasks) in (4, 20)


@pytest.mark.parametrize("task_type", PUT_TASKS)
def test_goals_fit_their_task_type(task_type: str) -> None:
    relation, place_name, allowed = PUT_TASKS[task_type]
    for seed in range(8):
        (task,) = generate_episode(seed, types=(task_type,)).tasks
        goal = parse_goal(task.goal)
        assert task.type == task_type and task.instruction
        to_put = [predicate for predicate in goal if predicate.kind == relation]
        assert 1 <= len(to_put) <= 6
        assert all(predicate.thing in allowed and predicate.place == place_name for predicate in to_put)
        assert {predicate.kind for predicate in goal} <= {relation, "turnOn"}
        assert task_type == "put_dishwasher" or len(to_put) == len(goal)


def test_all_task_types_and_start_rooms_occur() -> None:
    assert {task.type for episode in episodes() for task in episode.tasks} == set(PUT_TASKS)
    assert {episode.scene.room for episode in episodes()} == set(ROOMS)


@pytest.mark.parametrize("most", [1, 2, 3])
def test_counts_range_from_one_to_the_limit(most: int) -> None:
    counts = {count for seed in range(40) for task in generate_episode(seed, most=most).tasks for _, count in task.goal}
    assert counts == set(range(1, most + 1))


@pytest.mark.parametrize(("properties", "relation"), [(["CONTAINERS", "CAN_OPEN"], "INSIDE"), (["SURFACES"], "ON")])
def test_placing_follows_the_properties_of_the_graph(properties: list[str], relation: str) -> None:
    graph = apartment("stove at 3 0.45 3 in kitchen_1")
    row(graph, "stove_1")["properties"] = properties
    place(graph, "cupcake", row(graph, "stove_1")["id"], Random(0))
    house = home(graph)
    assert house.graph.linked(node_id(house, "cupcake_2"), relation, node_id(house, "stove_1"))


def test_episodes_of_a_split_are_built_on_access() -> None:
    episodes = load_episodes(None, "test", limit=5)
    assert len(episodes) == 5
    assert episodes[2] == generate_episode(apartment_seed("test", 2))
    assert episodes[1:3][1] == episodes[2] and len(episodes[1:]) == 4
    with pytest.raises(IndexError):
        episodes[5]


def test_seeds_and_splits_share_no_episode() -> None:
    choices = [("train", 0), ("train", 1), ("valid", 0), ("test", 0), ("test", LAST_SEED)]
    ids = [load_episodes(None, split, seed=seed)[0].id for split, seed in choices]
    assert len(set(ids)) == len(choices)
    assert len(load_episodes(None, "valid")) == EPISODES_PER_SEED


@pytest.mark.parametrize(
    ("draw", "choices", "message"),
    [
        (generate_episode, {"stream": 0}, "a stream of 0 tasks"),
        (generate_episode, {"most": 0}, "up to 0 things of a class; use 1 or more"),
        (generate_episode, {"types": ("juggle",)}, "unknown task type 'juggle'; choose from prepare_snack"),
        (generate_episode, {"stream": 10, "types": ("put_dishwasher",)}, "than an apartment has; use fewer tasks"),
        (LOAD, {"split": "dev"}, "unknown split 'dev' of the embedded apartments; choose one of train, valid, test"),
        (LOAD, {"stream": 0}, "a stream of 0 tasks is too short; use at least 1"),
        (LOAD, {"limit": 0}, "a limit of 0 episodes"),
        (LOAD, {"seed": LAST_SEED + 1}, "is beyond the split; use seed 0 to 99999"),
        (LOAD, {"seed": -1}, "is beyond the split"),
    ],
)
def test_impossible_choices_are_errors_with_a_remedy(
    draw: Callable[..., object], choices: dict[str, Any], message: str
) -> None:
    with pytest.raises(ConfigError, match=message):
        draw(**{"seed": 0, **choices})


def test_reading_is_drawn_only_on_request_and_once_per_stream() -> None:
    types = {task.type for seed in range(40) for task in generate_episode(seed).tasks}
    assert "read_book" not in types
    for seed in range(8):
        episode = generate_episode(seed, stream=3, types=("read_book", "setup_table"))
        reading_tasks = [task for task in episode.tasks if task.type == "read_book"]
        assert len(reading_tasks) <= 1
        for task in reading_tasks:
            kinds = [predicate.kind for predicate in parse_goal(task.goal)]
            assert kinds[0] == "holds" and kinds[-1] == "sit" and set(kinds[1:-1]) <= {"on"}

"""Embedded tasks: reproducible, not done at the start, and possible."""

from __future__ import annotations

import os
import subprocess
import sys
from collections import Counter
from functools import cache
from random import Random

import pytest

from envs.setting import succeeded
from envs.splits import EPISODES_PER_SEED, LAST_SEED
from envs.wah.apartments.episodes import KINDS, generate_episode
from envs.wah.apartments.furniture import ROOMS
from envs.wah.apartments.generator import apartment_seed
from envs.wah.apartments.placing import place
from envs.wah.episodes import load_episodes
from envs.wah.goals import parse_goal, place_class
from envs.wah.scene import Episode
from envs.wah.setting import WahSetting
from keep_agent.errors import ConfigError
from tests.envs.wah.homes import add, apartment, home, one, row


@cache
def episodes() -> list[Episode]:
    return [generate_episode(seed) for seed in range(80)]


@cache
def streams() -> list[Episode]:
    return [generate_episode(seed, stream=4, most=2) for seed in range(80, 100)]


SETTING = WahSetting()


def things(episode: Episode) -> Counter[str]:
    return Counter(row["class_name"] for row in episode.scene.graph["nodes"])


def test_the_same_seed_gives_the_same_episode_and_another_seed_another_one() -> None:
    assert generate_episode(81, stream=4, most=2) == streams()[1]
    assert len({str(episode.scene.graph) for episode in episodes()}) == len(episodes())
    assert len({episode.id for episode in episodes() + streams()}) == len(episodes()) + len(streams())


def test_does_not_depend_on_the_hash_seed() -> None:
    code = "from envs.wah.apartments.episodes import generate_episode as g; print([g(i, stream=3) for i in range(5)])"
    found = set()
    for hash_seed in ("1", "2"):
        env = os.environ | {"PYTHONHASHSEED": hash_seed}
        run = subprocess.run([sys.executable, "-c", code], capture_output=True, check=True, env=env, text=True)
        found.add(run.stdout)
    assert len(found) == 1


def test_goals_are_false_at_the_start() -> None:
    for episode in episodes() + streams():
        house = SETTING.begin(episode)
        for task in episode.tasks:
            met, total = SETTING.conditions(house, task)
            assert met == 0 < total, (episode.id, task.goal)


def test_goals_of_a_stream_are_false_when_those_before_are_done() -> None:
    setting = WahSetting("grounded")
    for episode in streams():
        house = setting.begin(episode)
        for task in episode.tasks:
            assert not succeeded(setting, house, task), (episode.id, task.goal)
            while (skill := setting.expert().act(house, task)) != "done":
                setting.space.execute(house, skill)
            assert succeeded(setting, house, task)
            house.begin_task()


def test_a_stream_asks_nothing_twice() -> None:
    for episode in streams():
        asked = Counter(predicate for task in episode.tasks for predicate, _ in task.goal)
        assert max(asked.values()) == 1, episode.id
        assert len({task.id for task in episode.tasks}) == 4


def test_there_is_enough_of_what_is_asked_for() -> None:
    for episode in episodes() + streams():
        present = things(episode)
        for task in episode.tasks:
            assert all(present[one.thing] >= one.count for one in parse_goal(task.goal) if one.thing)
            assert present[place_class(parse_goal(task.goal))]


@pytest.mark.parametrize("task_type", KINDS)
def test_tasks_are_of_their_type(task_type: str) -> None:
    relation, where, allowed = KINDS[task_type]
    for seed in range(8):
        (task,) = generate_episode(seed, types=(task_type,)).tasks
        goal = parse_goal(task.goal)
        assert task.type == task_type and task.instruction
        brought = [one for one in goal if one.kind == relation]
        assert 1 <= len(brought) <= 6 and all(one.thing in allowed and one.place == where for one in brought)
        assert {one.kind for one in goal} <= {relation, "turnOn"}
        assert task_type == "put_dishwasher" or len(brought) == len(goal)


def test_all_types_occur_and_rooms_to_start_in() -> None:
    assert {task.type for episode in episodes() for task in episode.tasks} == set(KINDS)
    assert {episode.scene.room for episode in episodes()} == set(ROOMS)


@pytest.mark.parametrize("most", [1, 2, 3])
def test_no_more_of_a_class_is_asked_for_than_is_said(most: int) -> None:
    counts = {count for seed in range(40) for task in generate_episode(seed, most=most).tasks for _, count in task.goal}
    assert counts == set(range(1, most + 1))


def test_an_episode_starts_in_the_room_that_is_named() -> None:
    for episode in episodes()[:10]:
        house = home(episode.scene.graph, episode.scene.room)
        assert house.graph[house.room].class_name == episode.scene.room


@pytest.mark.parametrize(("properties", "relation"), [(["CONTAINERS", "CAN_OPEN"], "INSIDE"), (["SURFACES"], "ON")])
def test_things_are_laid_out_where_this_graph_can_hold_them(properties: list[str], relation: str) -> None:
    graph = apartment()
    add(graph, "stove", (3.0, 0.45, 3.0), "in kitchen_1")
    row(graph, "stove_1")["properties"] = properties
    place(graph, "cupcake", row(graph, "stove_1")["id"], Random(0))
    house = home(graph)
    assert house.graph.linked(one(house, "cupcake_2"), relation, one(house, "stove_1"))


def test_bad_choices_name_the_remedy() -> None:
    with pytest.raises(ConfigError, match="a stream of 0 tasks"):
        generate_episode(0, stream=0)
    with pytest.raises(ConfigError, match="up to 0 of a class; use 1 or more"):
        generate_episode(0, most=0)
    with pytest.raises(ConfigError, match="unknown task type 'juggle'; choose from prepare_snack"):
        generate_episode(0, types=("juggle",))
    with pytest.raises(ConfigError, match="asks for more than an apartment has; use fewer"):
        generate_episode(0, stream=10, types=("put_dishwasher",))


# as a sequence of a split


def test_episodes_of_a_split_come_when_they_are_asked_for() -> None:
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
    ("choices", "message"),
    [
        ({"split": "dev"}, "unknown split 'dev' of the embedded apartments; choose one of train, valid, test"),
        ({"stream": 0}, "a stream of 0 tasks; it needs at least 1"),
        ({"limit": 0}, "a limit of 0 episodes"),
        ({"seed": LAST_SEED + 1}, "is beyond the split; use 0 to 99999"),
        ({"seed": -1}, "is beyond the split"),
    ],
)
def test_settings_that_cannot_work_are_refused(choices: dict[str, int | str], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        load_episodes(None, **{"split": "test", **choices})


def test_reading_is_drawn_where_it_is_asked_for_and_once() -> None:
    types = {task.type for seed in range(40) for task in generate_episode(seed).tasks}
    assert "read_book" not in types
    for seed in range(8):
        episode = generate_episode(seed, stream=3, types=("read_book", "setup_table"))
        read = [task for task in episode.tasks if task.type == "read_book"]
        assert len(read) <= 1
        for task in read:
            kinds = [one.kind for one in parse_goal(task.goal)]
            assert kinds[0] == "holds" and kinds[-1] == "sit" and set(kinds[1:-1]) <= {"on"}


def test_a_long_stream_leaves_something_for_its_last_task() -> None:
    tasks = generate_episode(5, stream=20).tasks
    assert len({predicate for task in tasks for predicate, _ in task.goal}) == sum(len(task.goal) for task in tasks)

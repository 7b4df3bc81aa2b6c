"""Generated houses: plausible, reproducible, solvable in principle, and disjoint between splits."""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
from collections import Counter
from math import dist
from typing import Any

import pytest

from envs.alfred.houses.drawing import TASK_ROOMS, TASK_TYPES
from envs.alfred.houses.generator import generate_episode, house_seed, split_of
from envs.alfred.objects import FIXTURES, KNIVES, PICKUPABLE, RECEPTACLES, SLICEABLE, may_hold
from envs.alfred.scene import Episode
from keep_agent.errors import ConfigError, DataError

EPISODES = [generate_episode(seed) for seed in range(150)]


def _fixtures(episode: Episode) -> tuple[tuple[str, object], ...]:
    return tuple((item.type, item.position) for item in episode.scene.items if item.type in FIXTURES)


def test_same_seed_same_episode_different_seed_different_house_of_a_fitting_size() -> None:
    assert generate_episode(7, stream=3) == generate_episode(7, stream=3)
    assert len({_fixtures(episode) for episode in EPISODES}) == len(EPISODES)
    receptacles = [sum(item.type in RECEPTACLES & FIXTURES for item in e.scene.items) for e in EPISODES]
    objects = [sum(item.type in PICKUPABLE for item in e.scene.items) for e in EPISODES]
    assert min(receptacles) >= 8 and max(receptacles) <= 30 and 12 < sum(receptacles) / len(EPISODES) < 18
    assert min(objects) >= 6 and max(objects) <= 30 and 13 < sum(objects) / len(EPISODES) < 19
    several = [max(Counter(i.type for i in e.scene.items if i.type in PICKUPABLE).values()) > 1 for e in EPISODES]
    assert sum(several) > 0.8 * len(EPISODES)
    code = "from envs.alfred.houses.generator import generate_episode as g; print([g(i, stream=4) for i in range(12)])"
    digests = set()
    for hash_seed in ("1", "2"):
        env = os.environ | {"PYTHONHASHSEED": hash_seed}
        out = subprocess.run([sys.executable, "-c", code], capture_output=True, check=True, env=env, text=True).stdout
        digests.add(hashlib.sha256(out.replace("frozenset()", "").encode()).hexdigest())
    assert len(digests) == 1


@pytest.mark.parametrize("episode", EPISODES[:60], ids=lambda episode: episode.id)
def test_things_lie_where_they_belong_and_can_be_reached(episode: Episode) -> None:
    by_id = {item.id: item for item in episode.scene.items}
    assert len(by_id) == len(episode.scene.items) and episode.scene.agent in episode.scene.reachable
    kinds = [item.type in PICKUPABLE for item in episode.scene.items]
    assert kinds == sorted(kinds), "fixtures come first"
    for item in episode.scene.items:
        assert item.parent is None or may_hold(by_id[item.parent].type, item.type)
        x, _, z = item.position
        assert min(dist((x, z), point) for point in episode.scene.reachable) < 1.9


@pytest.mark.parametrize("task_type", TASK_TYPES)
def test_tasks_fit_their_room_and_are_not_done(task_type: str) -> None:
    for seed in range(12):
        episode = generate_episode(seed, task_type=task_type)
        (task,) = episode.tasks
        assert task.type == task_type and episode.scene.room in TASK_ROOMS[task_type]
        by_id = {item.id: item for item in episode.scene.items}
        present = Counter(item.type for item in episode.scene.items)
        assert present[task.object_target] >= (2 if task_type == "pick_two_obj_and_place" else 1)
        assert not task.sliced or (task.object_target in SLICEABLE and KNIVES & set(present))
        assert present[task.parent_target or task.toggle_target]
        if task_type in ("pick_and_place_simple", "pick_two_obj_and_place") and not task.sliced:
            starts = [by_id[i.parent].type for i in episode.scene.items if i.type == task.object_target and i.parent]
            assert task.parent_target not in starts


@pytest.mark.parametrize("room", ["kitchen", "livingroom", "bedroom", "bathroom"])
def test_tasks_of_a_stream_differ(room: str) -> None:
    for seed in range(6):
        tasks = generate_episode(seed, stream=8, room=room).tasks
        targets = [(task.object_target, task.parent_target, task.mrecep_target, task.toggle_target) for task in tasks]
        assert len(set(targets)) == 8
        for index, task in enumerate(tasks):
            assert not task.sliced or task.object_target not in {later.object_target for later in tasks[index + 1 :]}


def test_splits_share_no_seed_and_no_house_and_bad_ones_are_errors() -> None:
    houses = {}
    for split in ("train", "valid", "test"):
        seeds = [house_seed(split, index) for index in range(60)]
        assert {split_of(seed) for seed in seeds} == {split}
        houses[split] = {_fixtures(generate_episode(seed)) for seed in seeds}
    assert len(set.union(*houses.values())) == sum(len(part) for part in houses.values())
    with pytest.raises(ConfigError, match="unseen"):
        house_seed("unseen", 0)
    with pytest.raises(DataError, match="outside"):
        house_seed("test", 10**9)


@pytest.mark.parametrize(
    ("choices", "message"),
    [
        ({"room": "attic"}, "'attic'.*kitchen"), ({"task_type": "fly"}, "fly"), ({"stream": 0}, "0"),
        ({"room": "bathroom", "task_type": "look_at_obj_in_light"}, "bathroom"),
    ],
)  # fmt: skip
def test_bad_choices_name_the_remedy(choices: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        generate_episode(0, **choices)

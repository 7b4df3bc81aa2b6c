"""All trials of valid_seen through the real client against the stand-in, set up from ALFRED's own files."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from envs.alfred.env import AlfredEnv
from envs.alfred.scene import Episode
from envs.alfred.spec import load_episodes
from tests.envs.alfred.thor.leftovers import no_leaks
from tests.envs.alfred.thor.playing import play, thor_env

SPLIT = "valid_seen"


@pytest.fixture(scope="module")
def folder(alfred_data: Path) -> str:
    return str(alfred_data / "json_2.1.0")


@pytest.fixture(scope="module")
def trials(folder: str) -> list[Episode]:
    """Return the first annotation of every trial."""
    episodes = {episode.tasks[0].id: episode for episode in reversed(load_episodes(folder, SPLIT)[:])}
    return list(reversed(episodes.values()))


@pytest.fixture(scope="module")
def env(folder: str) -> Iterator[AlfredEnv]:
    with no_leaks(), thor_env(data=folder, split=SPLIT) as environment:
        yield environment


def symbolic(folder: str, episode: Episode, skills: str, observability: str) -> tuple[int, int]:
    """Return the goal conditions met after the expert has played the trial in the symbolic world."""
    world = AlfredEnv(data=folder, split=SPLIT, skills=skills, observability=observability, episodes=[episode])
    _, info = world.reset()
    expert = world.setting.expert()
    while info["task_done"] is None:
        _, _, _, _, info = world.step(expert.act(info["world"], info["task"], info["knowledge"]))
    return info["task_done"].met, info["task_done"].total


@pytest.mark.parametrize("every", [pytest.param(1, marks=pytest.mark.slow), 6])
def test_trials_succeed_as_in_the_symbolic_world(
    trials: list[Episode], env: AlfredEnv, folder: str, every: int
) -> None:
    assert len(trials) == 251
    failed = []
    for episode in trials[::every]:
        success, skills = play(env, episode)
        if not success or env.world.restoration.notes():
            failed.append((episode.id, skills, env.world.restoration.notes()))
        met, total = symbolic(folder, episode, "lota", "full")
        assert env.setting.conditions(env.world, episode.tasks[0]) == (met, total) or not success
    assert len(failed) <= 0.05 * len(trials[::every]), failed


@pytest.mark.slow
def test_all_trials_with_instance_skills_and_partial_knowledge(trials: list[Episode], folder: str) -> None:
    with thor_env(data=folder, split=SPLIT, skills="grounded", observability="partial") as env:
        failed = [(episode.id, skills) for episode in trials for done, skills in [play(env, episode)] if not done]
    assert len(failed) <= 0.05 * len(trials), failed


def test_the_room_has_all_objects_of_the_trial(trials: list[Episode], env: AlfredEnv) -> None:
    """The room has an object for every pose of the trial, copies included, and the ids of the trial's scene."""
    for episode in trials[::25]:
        env.reset(options={"episode": episode})
        poses = [thing.type for thing in episode.scene.start.objects]
        kinds = [thing.type for thing in env.world.things.values()]
        assert all(kinds.count(kind) >= poses.count(kind) for kind in set(poses))
        ids = {item.id for item in episode.scene.items if item.type in poses}
        assert ids <= env.world.things.keys()
        x, _, z = episode.scene.start.agent
        assert (env.world.agent.x, env.world.agent.z) == (x, z)


@pytest.mark.parametrize("at", [8, pytest.param(30, marks=pytest.mark.slow), pytest.param(16, marks=pytest.mark.slow)])
def test_a_trial_continues_in_a_new_process(folder: str, trials: list[Episode], tmp_path: Path, at: int) -> None:
    stub = f"{sys.executable} -m envs.alfred.thor_stub --data '{folder}' --fault die:{at} --once {tmp_path / 'once'}"
    heat = "pick_heat_then_place_in_recep"
    episode = next(trial for trial in trials if trial.tasks[0].type == heat and trial.tasks[0].sliced)
    with no_leaks(), thor_env([episode], data=folder, thor={"executable": stub}) as env:
        assert play(env, episode)[0] and env.world.restarts == 1

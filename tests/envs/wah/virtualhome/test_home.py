"""Household in a simulator: the same facts and outcomes as without one, and replay of recordings."""

from __future__ import annotations

import pickle
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import replace
from pathlib import Path
from random import Random
from typing import Any

import pytest
from gymnasium.error import ResetNeeded

from envs.wah.apartments.episodes import generate_episode
from envs.wah.apartments.generator import apartment_seed
from envs.wah.env import WatchAndHelpEnv
from envs.wah.scene import Episode
from envs.wah.virtualhome.errors import ReplayMismatch, SimulatorAnswer, SimulatorGone
from envs.wah.virtualhome.home import renumber_added
from keep_agent.errors import ConfigError
from tests.envs.wah.fake_simulator import FakeSimulator
from tests.envs.wah.graph_home import GraphHome
from tests.envs.wah.virtualhome.toy import NOTHING_LEFT_OPEN

SETTINGS = [("lota", "full", "lota"), ("lota", "full", "strict"), ("grounded", "partial", "strict")]
pytestmark = NOTHING_LEFT_OPEN


def first_scene(number: int, stream: int = 1) -> Episode:
    """Return an embedded episode as the fake simulator's first scene."""
    episode = generate_episode(apartment_seed("valid", number), stream)
    return replace(episode, scene=replace(episode.scene, simulator_scene=0))


def serve(episode: Episode) -> FakeSimulator:
    return FakeSimulator(GraphHome([episode.scene.graph]))


def play(env: WatchAndHelpEnv, episode: Episode, stray: float = 0.2, seed: int = 0) -> list[Any]:
    """Play the expert with a share of random skills; return all observations."""
    rng = Random(seed)
    expert = env.setting.expert()
    observation, info = env.reset(options={"episode": episode})
    log: list[Any] = [(observation, info["facts"], info["skills"])]
    done = False
    while not done:
        skill = expert.act(info["world"], info["task"], info["knowledge"])
        if skill != "done" and rng.random() < stray:
            skill = rng.choice([choice for choice in info["skills"] if choice != "done"])
        observation, reward, terminated, truncated, info = env.step(skill)
        done = terminated or truncated
        log.append((skill, observation, reward, info["facts"], info["skills"], info["goal"], info["outcome_ok"]))
    return log


@contextmanager
def running(episode: Episode, **choices: Any) -> Iterator[tuple[FakeSimulator, WatchAndHelpEnv]]:
    """Serve an episode's scene and yield the fake simulator with an environment on it."""
    with serve(episode) as server, closing(simulated(server.url, episode, **choices)) as env:
        yield server, env


def simulated(url: str, episode: Episode, **choices: Any) -> WatchAndHelpEnv:
    return WatchAndHelpEnv(episodes=[episode], simulator=url, **choices)


@pytest.mark.parametrize(("skills", "observability", "rules"), SETTINGS)
@pytest.mark.parametrize("number", range(3))
def test_episodes_are_the_same_without_simulator(skills: str, observability: str, rules: str, number: int) -> None:
    episode = first_scene(number, stream=2)
    choices = {"skills": skills, "observability": observability, "rules": rules}
    expected = play(WatchAndHelpEnv(episodes=[episode], **choices), episode, seed=number)
    with running(episode, **choices) as (_, env):
        assert play(env, episode, seed=number) == expected
    assert len(expected) > 5


def test_a_recorded_episode_replays_identically(tmp_path: Path) -> None:
    episode, file = first_scene(4), tmp_path / "talk.jsonl.gz"
    with running(episode, record=str(file)) as (_, env):
        expected = play(env, episode)
    with closing(simulated(str(file), episode)) as env:
        assert play(env, episode) == expected
        with pytest.raises(ReplayMismatch):
            env.reset(options={"episode": episode})
    with closing(simulated(str(file), episode)) as env, pytest.raises(ReplayMismatch):
        play(env, episode, stray=0.9, seed=7)


def test_actions_on_a_copy_do_not_reach_the_simulator() -> None:
    with running(first_scene(5)) as (server, env):
        _, info = env.reset()
        requests = len(server.requests)
        copy = info["world"].copy()
        for _ in range(5):
            env.setting.space.execute(copy, env.setting.expert().act(copy, info["task"]))
        assert len(server.requests) == requests and copy.graph != info["world"].graph


def test_an_episode_begins_as_the_benchmarks_do() -> None:
    with running(first_scene(6)) as (server, env):
        env.reset()
        loading = ["idle", "reset", "environment_graph", "expand_scene", "camera_count", "add_character"]
        assert server.actions() == [*loading, "environment_graph"]
        env.step(env.action_space.examples[0])
        assert server.actions()[7:] == ["render_script", "environment_graph"]


def test_ids_of_added_things_are_renumbered() -> None:
    graph = {"nodes": [{"id": 11}, {"id": 12}], "edges": [{"from_id": 12, "to_id": 11, "relation_type": "INSIDE"}]}
    assert renumber_added(graph, 11) == {
        "nodes": [{"id": 11}, {"id": 1001}],
        "edges": [{"from_id": 1001, "to_id": 11, "relation_type": "INSIDE"}],
    }
    assert renumber_added(graph, 12) == graph


def test_a_busy_simulator_is_retried_and_a_dead_one_is_an_error() -> None:
    with running(first_scene(8)) as (server, env):
        env.reset()
        server.faults.extend(["busy", "busy"])
        assert env.step("find a fridge")[4]["outcome_ok"]
        server.kill()
        with pytest.raises(SimulatorGone, match="start the simulator"):
            env.step("find a fridge")


def test_an_invalid_graph_is_an_error_with_its_place() -> None:
    with running(first_scene(7)) as (server, env):
        for scene in ({"nodes": [{"name": "no id"}], "edges": []}, {"nodes": [{"id": "x"}], "edges": []}):
            server.home._scenes = [scene]
            with pytest.raises(SimulatorAnswer, match=rf"environment_graph at {server.url}: invalid graph"):
                env.reset()
        with pytest.raises(ResetNeeded):
            env.step("done")


def test_a_home_in_a_simulator_cannot_be_pickled() -> None:
    with running(first_scene(7)) as (_, env):
        _, info = env.reset()
        with pytest.raises(ConfigError, match="one environment per simulator"):
            pickle.dumps(info["world"])


def test_a_scene_without_a_number_is_an_error() -> None:
    message = "no number in the simulator; set env.data to tasks with env_id"
    with running(generate_episode(0)) as (_, env), pytest.raises(ConfigError, match=message):
        env.reset()


def test_bad_input_leaves_no_recording(tmp_path: Path) -> None:
    with serve(first_scene(7)) as server:
        with pytest.raises(ConfigError, match="does not exist"):
            WatchAndHelpEnv(data="nowhere", simulator=server.url, record=str(tmp_path / "talk.jsonl"))
        old = tmp_path / "old.jsonl"
        old.write_text("old")
        with pytest.raises(ConfigError, match="already exists"):
            simulated(server.url, first_scene(7), record=str(old))
    with pytest.raises(SimulatorGone):
        simulated(server.url, first_scene(7), record=str(tmp_path / "talk.jsonl"))
    assert list(tmp_path.iterdir()) == [old] and old.read_text() == "old"
    for name, value in (("simulator", 8080), ("record", 5)):
        with pytest.raises(ConfigError, match=f"env.{name}={value} is not a text"):
            WatchAndHelpEnv(episodes=[first_scene(7)], **{"simulator": server.url, name: value})
    with pytest.raises(ConfigError, match="needs a simulator"):
        WatchAndHelpEnv(episodes=[first_scene(7)], record=str(tmp_path / "talk.jsonl"))
    for wrong in ("127.0.0.1:8080", str(tmp_path), str(tmp_path / "nothing.jsonl")):
        with pytest.raises(ConfigError, match="neither the URL"):
            simulated(wrong, first_scene(9))

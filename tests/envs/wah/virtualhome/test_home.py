"""Household in a simulator: the same facts and outcomes as without one, and replay of recordings."""

from __future__ import annotations

import pickle
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from random import Random
from typing import Any

import pytest
from gymnasium.error import ResetNeeded

from envs.clock import Clock
from envs.wah.apartments.episodes import generate_episode
from envs.wah.apartments.generator import apartment_seed
from envs.wah.env import WatchAndHelpEnv
from envs.wah.scene import Episode
from envs.wah.virtualhome import transport
from envs.wah.virtualhome.errors import ReplayMismatch, SimulatorAnswer, SimulatorError, SimulatorGone
from envs.wah.virtualhome.home import renumber_added
from keep_agent.errors import ConfigError
from tests.envs.wah.fake_simulator import FAULTS, FakeSimulator
from tests.envs.wah.graph_home import GraphHome
from tests.envs.wah.virtualhome.toy import NOTHING_LEFT_OPEN

SHORT = 0.5  # seconds, for calls that can only fail
SETTINGS = [("lota", "full", "lota"), ("lota", "full", "strict"), ("grounded", "partial", "strict")]


pytestmark = NOTHING_LEFT_OPEN


def first_scene(number: int, stream: int = 1) -> Episode:
    """Return an embedded episode as the fake simulator's first scene."""
    episode = generate_episode(apartment_seed("valid", number), stream)
    return replace(episode, scene=replace(episode.scene, scene=0))


def serve(*episodes: Episode) -> FakeSimulator:
    return FakeSimulator(GraphHome([episode.scene.graph for episode in episodes]))


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
    with serve(episode) as server:
        env = simulated(server.url, episode, **choices)
        yield server, env
        env.close()


def simulated(url: str, *episodes: Episode, record: Path | None = None, **choices: Any) -> WatchAndHelpEnv:
    return WatchAndHelpEnv(episodes=episodes, simulator=url, record=None if record is None else str(record), **choices)


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
    with running(episode, record=file) as (_, env):
        expected = play(env, episode)
    env = simulated(str(file), episode)
    assert play(env, episode) == expected
    with pytest.raises(ReplayMismatch):
        env.reset(options={"episode": episode})
    env.close()
    env = simulated(str(file), episode)
    with pytest.raises(ReplayMismatch):
        play(env, episode, stray=0.9, seed=7)
    env.close()


def test_actions_on_a_copy_do_not_reach_the_simulator() -> None:
    episode = first_scene(5)
    with running(episode) as (server, env):
        _, info = env.reset(options={"episode": episode})
        requests = len(server.requests)
        copy = info["world"].copy()
        for _ in range(5):
            env.setting.space.execute(copy, env.setting.expert().act(copy, info["task"]))
        assert len(server.requests) == requests and copy.graph != info["world"].graph


def test_an_episode_begins_as_the_benchmarks_do() -> None:
    episode = first_scene(6)
    with running(episode) as (server, env):
        env.reset(options={"episode": episode})
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


@pytest.mark.parametrize("fault", FAULTS)
@pytest.mark.parametrize("during", [pytest.param("reset", marks=pytest.mark.slow), "step"])
def test_every_fault_is_a_simulator_error(fault: str, during: str, monkeypatch: pytest.MonkeyPatch) -> None:
    episode = first_scene(7)
    with running(episode) as (server, env):
        if during == "step":
            env.reset(options={"episode": episode})
        server.faults.extend([fault] * 12)
        monkeypatch.setattr(transport, "Clock", lambda seconds: Clock(min(seconds, SHORT)))
        with pytest.raises(SimulatorError) as caught:
            env.reset(options={"episode": episode}) if during == "reset" else env.step("find a fridge")
        assert "localhost" not in str(caught.value)
        assert server.url in str(caught.value)


def test_a_busy_simulator_is_retried_and_a_dead_one_is_an_error() -> None:
    episode = first_scene(8)
    with running(episode) as (server, env):
        env.reset(options={"episode": episode})
        server.faults.extend(["busy", "busy"])
        assert env.step("find a fridge")[4]["outcome_ok"]
        server.kill()
        with pytest.raises(SimulatorGone, match="start the simulator"):
            env.step("find a fridge")


def test_an_invalid_graph_is_an_error_with_its_place() -> None:
    episode = first_scene(7)
    with running(episode) as (server, env):
        for scene in ({"nodes": [{"name": "no id"}], "edges": []}, {"nodes": [{"id": "x"}], "edges": []}):
            server.home._scenes = [scene]
            with pytest.raises(SimulatorAnswer, match=rf"environment_graph at {server.url}: invalid graph"):
                env.reset(options={"episode": episode})
        with pytest.raises(ResetNeeded):
            env.step("done")


def test_a_home_in_a_simulator_cannot_be_pickled() -> None:
    episode = first_scene(7)
    with running(episode) as (_, env):
        _, info = env.reset(options={"episode": episode})
        with pytest.raises(ConfigError, match="one environment per simulator"):
            pickle.dumps(info["world"])


def test_a_scene_without_a_number_is_an_error() -> None:
    episode = generate_episode(apartment_seed("valid", 0))
    message = "no number in the simulator; name tasks with env_id"
    with running(episode) as (_, env), pytest.raises(ConfigError, match=message):
        env.reset(options={"episode": episode})


def test_bad_input_leaves_no_recording(tmp_path: Path) -> None:
    with serve(first_scene(7)) as server:
        with pytest.raises(ConfigError, match="does not exist"):
            WatchAndHelpEnv(data="nowhere", simulator=server.url, record=str(tmp_path / "talk.jsonl"))
        old = tmp_path / "old.jsonl"
        old.write_text("old")
        with pytest.raises(ConfigError, match="already exists"):
            simulated(server.url, first_scene(7), record=old)
    with pytest.raises(SimulatorGone):
        simulated(server.url, first_scene(7), record=tmp_path / "talk.jsonl")
    assert list(tmp_path.iterdir()) == [old] and old.read_text() == "old"
    for name, value in (("simulator", 8080), ("record", 5)):
        with pytest.raises(ConfigError, match=f"env.{name}={value} is not a text"):
            WatchAndHelpEnv(episodes=[first_scene(7)], **{"simulator": server.url, name: value})


def test_an_invalid_simulator_setting_is_an_error(tmp_path: Path) -> None:
    episode = first_scene(9)
    for wrong in ("127.0.0.1:8080", str(tmp_path), str(tmp_path / "nothing.jsonl")):
        with pytest.raises(ConfigError, match="neither the URL"):
            simulated(wrong, episode)
    with pytest.raises(ConfigError, match="needs a simulator"):
        WatchAndHelpEnv(episodes=[episode], record=str(tmp_path / "talk.jsonl"))

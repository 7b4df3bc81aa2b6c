"""Environment over AI2-THOR's client and the stand-in: skills, facts and goals equal those of the symbolic world."""

from __future__ import annotations

import pickle
import warnings
from collections.abc import Iterator
from random import Random

import numpy as np
import pytest
from gymnasium.utils.env_checker import check_env

from envs.alfred.env import AlfredEnv
from envs.alfred.goals import goal_conditions
from envs.alfred.scene import Episode, Task
from envs.alfred.spec import load_episodes
from envs.alfred.thor.view import draw, top_view
from envs.alfred.thor.world import ThorWorld
from keep_agent.errors import ConfigError
from tests.envs.alfred.rooms import kitchen
from tests.envs.alfred.thor.playing import play, shadowed, shape, thor_env

EPISODES = list(load_episodes(None, "valid")[:24])
KINDS = [("lota", "full"), ("grounded", "partial")]


@pytest.mark.parametrize(("skills", "observability"), KINDS)
def test_gymnasium_finds_no_fault(skills: str, observability: str) -> None:
    settings = {"skills": skills, "observability": observability, "render": "rgb", "render_mode": "rgb_array"}
    with warnings.catch_warnings(), thor_env(EPISODES[:3], **settings) as env:
        warnings.simplefilter("error")
        check_env(env, skip_render_check=True)


@pytest.mark.parametrize("server", ["fifo", "wsgi"])
@pytest.mark.parametrize(("skills", "observability"), KINDS)
def test_the_expert_does_in_the_simulator_what_it_does_in_symbols(skills: str, observability: str, server: str) -> None:
    with thor_env(EPISODES, thor={"server": server}, skills=skills, observability=observability) as env:
        results = [play(env, episode) for episode in EPISODES]
    assert all(success for success, _ in results)


@pytest.mark.parametrize(("skills", "observability"), KINDS)
def test_random_skills_have_the_same_effects_and_failures(skills: str, observability: str) -> None:
    random, messages = Random(0), set()
    with thor_env(EPISODES, skills=skills, observability=observability, max_steps=1000) as env:
        for episode in EPISODES[:6]:
            _, info = env.reset(options={"episode": episode})
            with shadowed(env.world) as shadow:
                for _ in range(60):
                    everything = sorted(set(info["skills"]) - {"done"})
                    observation, _, _, _, info = env.step(random.choice(everything))
                    messages.add(observation["feedback"])
                    assert shape(shadow.world) == shape(env.world)
    assert len(messages) > (10 if skills == "lota" else 0)


@pytest.mark.parametrize("observability", ["full", "partial"])
def test_facts_are_those_of_the_symbolic_world(observability: str) -> None:
    """Instance-level skills do not depend on distances: facts, feedback, admissible skills and goals are equal."""
    random = Random(1)
    settings = {"skills": "grounded", "observability": observability, "max_steps": 200}
    symbolic = AlfredEnv(episodes=EPISODES, **settings)
    with thor_env(EPISODES, **settings) as env:
        for episode in EPISODES[:6]:
            step, expected_step = env.reset(options={"episode": episode}), symbolic.reset(options={"episode": episode})
            for _ in range(40):
                (observation, *_, info), (expected, *_, symbolic_info) = step, expected_step
                assert observation == expected
                for key in ("facts", "skills", "goal", "outcome_ok", "task_done"):
                    assert info[key] == symbolic_info[key], key
                skill = random.choice(sorted(set(info["skills"]) - {"done"}))
                step, expected_step = env.step(skill), symbolic.step(skill)


def test_images() -> None:
    with thor_env(EPISODES[:1], thor={"width": 320, "height": 240}, render_mode="rgb_array") as env:
        observation, info = env.reset(seed=0)
        frame = observation["frame"]
        assert frame.shape == (240, 320, 3) and frame.dtype == np.uint8 and frame.std() > 5
        later, *_ = env.step(env.setting.expert().act(env.world, info["task"]))
        assert (later["frame"] != frame).any() and (env.render() == later["frame"]).all()
        above = top_view(env.world)
        assert above.shape == (240, 320, 3) and above.std() > 5 and (top_view(env.world) == above).all()
        drawing = draw(env.world, 200)
        assert max(drawing.shape) == 200 and drawing.std() > 5


def test_headless_mode_plays_without_images() -> None:
    with thor_env(EPISODES[:2], thor={"headless": True}) as env:
        assert play(env, EPISODES[0])[0] and env.world.frame is None and top_view(env.world).shape[2] == 3
        assert "frame" not in env.observation_space.spaces


def test_one_process_per_environment() -> None:
    with thor_env(EPISODES[:1]) as env:
        env.reset(seed=0)
        with pytest.raises(ConfigError, match="one environment per simulator"):
            pickle.dumps(env.world)
        copy = env.world.copy()
        assert shape(copy) == shape(env.world)
        copy.goto(next(iter(copy.things)))
        assert env.world.at is None


ON_COUNTER = Task("pick_and_place_simple", "Potato", "CounterTop", instruction="put a potato on a counter")


@pytest.fixture
def world() -> Iterator[ThorWorld]:
    with thor_env([Episode("kitchen", kitchen(), (ON_COUNTER,))]) as env:
        env.reset()
        yield env.world


def set_receptacles(world: ThorWorld, thing: str, *parents: str) -> None:
    """Let the simulator list these receptacles for a thing."""
    object_id = world._ids.object_id
    for entry in world._reply.objects:
        if entry["objectId"] == object_id(thing):
            entry["parentReceptacles"] = [object_id(parent) for parent in parents]
    world._read_state()


def test_either_of_two_touched_receptacles_counts(world: ThorWorld) -> None:
    assert goal_conditions(world, ON_COUNTER) == (0, 1)
    set_receptacles(world, "potato_1", "drawer_1", "countertop_2")
    assert goal_conditions(world, ON_COUNTER) == goal_conditions(world, ON_COUNTER, "official") == (1, 1)


def test_the_outer_receptacle_counts_by_the_official_rule_only(world: ThorWorld) -> None:
    set_receptacles(world, "potato_1", "plate_1", "countertop_1")
    assert world["potato_1"].parent == "plate_1" and goal_conditions(world, ON_COUNTER) == (0, 1)
    assert goal_conditions(world, ON_COUNTER, "official") == (1, 1)


def test_a_container_without_a_door_is_not_closed(world: ThorWorld) -> None:
    for entry in world._reply.objects:
        if entry["objectId"] == world._ids.object_id("cabinet_1"):
            entry |= {"openable": False}
    world._read_state()
    assert world["cabinet_1"].is_open and world.close("cabinet_1").message == "cabinet 1 cannot be closed"

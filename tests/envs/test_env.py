"""Gymnasium environments of ALFRED and Watch-And-Help: spaces, determinism, task streams, limits, bad input."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from itertools import product
from math import nan
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium.error import ResetNeeded
from gymnasium.utils.env_checker import check_env

from envs.alfred.env import AlfredEnv
from envs.alfred.scene import Episode, Task
from envs.household import HouseholdEnv
from envs.outcome import Outcome
from keep_agent.errors import ConfigError, SkillError
from tests.envs.alfred.rooms import bedroom, kitchen
from tests.envs.wah import episodes as wah

HEAT = Task("pick_heat_then_place_in_recep", "Apple", "Microwave", instruction="warm an apple in the microwave")
COOL = Task("pick_cool_then_place_in_recep", "Apple", "Microwave", instruction="put a cold apple in the microwave")
CLOTH = Task("pick_and_place_simple", "Cloth", "Shelf", instruction="put a cloth on a shelf")
EPISODES = (
    Episode("kitchen-1", kitchen(), (HEAT, COOL)),
    Episode("bedroom-1", bedroom(), (CLOTH,)),
    Episode("kitchen-2", kitchen(), (COOL,)),
)
WARM_UP = (
    "find an apple", "pick up the apple", "find a microwave", "open the microwave", "put down the apple",
    "close the microwave", "turn on the microwave", "turn off the microwave",
)  # fmt: skip


def make(**settings: Any) -> AlfredEnv:
    return AlfredEnv(episodes=EPISODES, **settings)


@dataclass(frozen=True)
class WorldCase:
    """One world's environment and the values that its tests expect."""

    id: str
    make: Callable[..., HouseholdEnv]
    episodes: tuple[Any, ...]
    limits: Mapping[str, int]  # default steps per task, by skill set
    settings: Mapping[str, tuple[str, ...]]  # values of each setting
    solution_skills: str
    solution: tuple[str, ...]  # skills of the second episode, without "done"
    typo: tuple[str, str]  # an unknown skill and the closest known one
    failures: Mapping[str, str]  # feedback by impossible skill
    view: tuple[str, str]  # a type-level skill in the first episode, and the state after it


ALFRED = WorldCase(
    "keep_agent:Alfred-v0",
    make,
    EPISODES,
    {"lota": 25, "grounded": 60},
    {"skills": ("lota", "grounded"), "observability": ("full", "partial")},
    "lota",
    ("find a cloth", "pick up the cloth", "find a shelf", "put down the cloth"),
    ("find a mugg", "find a mug"),
    {"find a sofa": "Cannot find Sofa", "open the safe": "Cannot find Safe to open"},
    ("find an apple", "at countertop_1, holding nothing, 0 of 3 conditions met"),
)
WAH = WorldCase(
    "keep_agent:WatchAndHelp-v0",
    wah.make,
    wah.EPISODES,
    {"lota": 30, "grounded": 80},
    {"skills": ("lota", "grounded"), "observability": ("full", "partial"), "rules": ("strict", "lota")},
    "grounded",
    (
        *("go to fridge 1", "open fridge 1", "go to coffeetable 1", "pick up cupcake 1", "go to fridge 1"),
        "put cupcake 1 in fridge 1",
    ),
    ("find a plte", "find a plate"),
    {"pick up the apple": "the apple is not close", "open the fridge": "the fridge is not close"},
    ("find a kitchen table", "at kitchentable_1, holding nothing, 0 of 1 conditions met"),
)
WORLDS = (ALFRED, WAH)
worlds = pytest.mark.parametrize("world", WORLDS, ids=lambda world: world.id.partition(":")[2])
CHOICES = [
    pytest.param(world, dict(zip(world.settings, values, strict=True)), id="-".join((world.id[11:], *values)))
    for world in WORLDS
    for values in product(*world.settings.values())
]
choices = pytest.mark.parametrize(("world", "settings"), CHOICES)


@choices
def test_the_environment_passes_gymnasiums_checker(world: WorldCase, settings: dict[str, str]) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        check_env(world.make(render_mode="ansi", **settings), skip_render_check=True)


def roll(world: WorldCase, settings: dict[str, str]) -> list[object]:
    """Return the observations of a random walk over admissible skills; all must be in the spaces."""
    env = world.make(**settings)
    observation, info = env.reset(seed=5)
    env.action_space.seed(5)
    log: list[object] = [observation, info["facts"], info["skills"]]
    for _ in range(40):
        action = env.action_space.sample()
        assert action in info["skills"] and action in env.action_space
        observation, *rest, info = env.step(action)
        assert observation in env.observation_space
        log += [observation, rest, info["facts"], info["skills"], info["goal"], info["episode_id"]]
        if rest[1] or rest[2]:
            break
    return log


@choices
def test_the_same_seed_gives_the_same_episode(world: WorldCase, settings: dict[str, str]) -> None:
    assert roll(world, settings) == roll(world, settings)


@worlds
def test_the_seed_draws_the_episode(world: WorldCase) -> None:
    env = gymnasium.make(world.id, episodes=world.episodes)
    observation, info = env.reset(seed=3)
    assert observation["instruction"] == info["task"].instruction
    assert len({env.reset(seed=seed)[1]["episode_id"] for seed in range(20)}) == len(world.episodes)


@pytest.mark.parametrize(("world", "mode"), [(ALFRED, "sync"), (ALFRED, "async"), (WAH, "sync")])
def test_vector_environments(world: WorldCase, mode: str) -> None:
    envs = gymnasium.make_vec(world.id, num_envs=2, vectorization_mode=mode, episodes=world.episodes)
    try:
        envs.reset(seed=[1, 2])
        observation, _, _, _, info = envs.step(tuple(world.failures))
    finally:
        envs.close()
    assert observation["feedback"] == tuple(world.failures.values())
    assert list(info["outcome_ok"]) == [False, False]
    single = world.make()
    for index, seed in enumerate((1, 2)):
        assert single.reset(seed=seed)[1]["episode_id"] == info["episode_id"][index]


@worlds
def test_success_is_not_detected_before_done(world: WorldCase) -> None:
    env = world.make(skills=world.solution_skills)
    env.reset(options={"episode": 1})
    for skill in world.solution:
        _, reward, terminated, truncated, info = env.step(skill)
        assert info["outcome_ok"]
        assert (reward, terminated, truncated, info["task_done"]) == (0.0, False, False, None)
    assert info["success"]
    _, reward, terminated, truncated, info = env.step("done")
    assert (reward, terminated, truncated) == (1.0, True, False)
    result = info["task_done"]
    assert (result.success, result.met, result.total, result.steps) == (True, 1, 1, len(world.solution) + 1)
    assert result.task is world.episodes[1].tasks[0]
    with pytest.raises(ResetNeeded):
        env.step("done")


@worlds
def test_running_out_of_steps_ends_a_task_and_truncates_the_last(world: WorldCase) -> None:
    assert {skills: world.make(skills=skills).max_steps for skills in world.limits} == world.limits  # the defaults
    env = world.make(max_steps=2)
    env.reset(options={"episode": 0})
    endings = [env.step("find an apple")[2:] for _ in range(4)]
    assert [info["task_done"] is not None for *_, info in endings] == [False, True, False, True]
    assert [(terminated, truncated) for terminated, truncated, _ in endings] == [(False, False)] * 3 + [(False, True)]
    with pytest.raises(ResetNeeded):
        env.step("done")


@worlds
def test_the_environment_renders_as_text_and_refuses_unknown_skills(world: WorldCase) -> None:
    env = world.make(render_mode="ansi")
    env.reset(options={"episode": 0})
    skill, state = world.view
    env.step(skill)
    assert env.render() == f"{world.episodes[0].tasks[0].instruction}\nstep 1: {state}"
    unknown, closest = world.typo
    with pytest.raises(SkillError, match=f"unknown skill '{unknown}'; did you mean '{closest}'"):
        env.step(unknown)
    for action in (5, None, ["done"]):
        with pytest.raises(SkillError, match="a skill is a string such as 'done', not"):
            env.step(action)


@pytest.mark.parametrize(
    ("world", "settings", "message"),
    [
        *((world, {"skills": "latin"}, "skills='latin' is unknown; use one of lota, grounded") for world in WORLDS),
        *((world, {"observability": "none"}, "='none' is unknown; use one of full, partial") for world in WORLDS),
        *((world, {"max_steps": 0}, "max_steps is 0") for world in WORLDS),
        (ALFRED, {"goal_matching": "loose"}, "goal_matching='loose' is unknown"),
        (WAH, {"rules": "loose"}, "rules='loose' is unknown; use one of lota, strict"),
    ],
)
def test_bad_settings_are_errors(world: WorldCase, settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        world.make(**settings)


@worlds
def test_missing_episodes_are_errors(world: WorldCase) -> None:
    env = world.make()
    with pytest.raises(ConfigError, match="no episodes to play"):
        type(env)(episodes=())
    with pytest.raises(ConfigError, match=f"episode 7 does not exist; there are {len(world.episodes)}"):
        env.reset(options={"episode": 7})


# ALFRED


def test_reset_reports_everything_known_failures_no_facts_and_knowledge_persists_in_a_stream() -> None:
    observation, info = make().reset(options={"episode": 1})
    assert observation == {"instruction": CLOTH.instruction, "feedback": ""}
    assert {fact.id for fact in info["facts"]} == info["world"].things.keys() | {"agent"}
    assert (info["task"], info["task_index"], info["goal"], info["success"]) == (CLOTH, 0, (0, 1), False)
    assert len(info["skills"]) == 214 and info["task_done"] is None
    env = make()
    env.reset(options={"episode": 0})
    observation, reward, _, _, info = env.step("pick up the vase")
    assert observation["feedback"] == "Cannot find Vase to pick up"
    assert (reward, info["outcome_ok"], info["facts"], info["step"]) == (0.0, False, (), 1)
    env = make(skills="grounded", observability="partial")
    env.reset(options={"episode": 0})
    env.step("go to countertop 1")
    _, _, _, _, info = env.step("done")
    assert info["knowledge"].knows("apple_1") and "pick up apple 1" in info["skills"]


def test_a_stream_continues_in_the_final_state_of_the_last_task() -> None:
    env = make()
    env.reset(options={"episode": 0})
    for skill in WARM_UP:
        env.step(skill)
    observation, reward, terminated, _, info = env.step("done")
    assert (reward, terminated) == (1.0, False) and info["task_done"].task is HEAT
    assert observation["instruction"] == COOL.instruction and (info["task_index"], info["step"]) == (1, 0)
    assert info["world"]["apple_1"].parent == "microwave_1" and info["world"].heated == set()
    assert info["goal"] == (1, 3), "the apple's place counts, its treatment is reset"
    assert [fact.id for fact in info["facts"]] == ["apple_1"], "it is no longer reported as hot"
    assert env.step("done")[2]


@pytest.mark.parametrize("value", ["failed", "false", "", nan, None, 0, 1, [False], {"ok": False}, np.array([True])])
def test_other_values_than_booleans_are_errors(value: Any) -> None:
    with pytest.raises(ConfigError, match="ok=.*give True or False"):
        Outcome(value)


@pytest.mark.parametrize("value", [False, True])
def test_numpys_booleans_are_converted(value: bool) -> None:
    assert Outcome(np.bool_(value)).ok is value


@pytest.mark.parametrize("message", [None, 7, b"no"])
def test_a_message_must_be_a_text(message: Any) -> None:
    with pytest.raises(ConfigError, match="message="):
        Outcome(False, message)

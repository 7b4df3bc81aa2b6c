"""Gymnasium environment of ALFRED: spaces, determinism, vector environments, task streams, limits, bad input."""

from __future__ import annotations

import warnings
from typing import Any

import gymnasium
import pytest
from gymnasium.error import ResetNeeded
from gymnasium.utils.env_checker import check_env

from envs.alfred.env import AlfredEnv
from envs.alfred.scene import Episode, Task
from keep_agent.errors import ConfigError, SkillError
from tests.envs.alfred.rooms import bedroom, kitchen

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


@pytest.mark.parametrize("skills", ["lota", "grounded"])
@pytest.mark.parametrize("observability", ["full", "partial"])
def test_the_environment_passes_gymnasiums_checker(skills: str, observability: str) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        check_env(make(skills=skills, observability=observability, render_mode="ansi"), skip_render_check=True)


def test_the_environment_is_registered() -> None:
    env = gymnasium.make("keep_agent:Alfred-v0", episodes=EPISODES)
    observation, info = env.reset(seed=3)
    assert observation["instruction"] == info["task"].instruction


def roll(seed: int) -> list[object]:
    """Return the observations of a random walk over admissible skills."""
    env = make(skills="grounded", observability="partial")
    observation, info = env.reset(seed=seed)
    env.action_space.seed(seed)
    log: list[object] = [observation, info["facts"], info["skills"]]
    for _ in range(30):
        observation, *rest, info = env.step(env.action_space.sample())
        log += [observation, rest, info["facts"], info["skills"], info["goal"], info["episode_id"]]
        if rest[1] or rest[2]:
            break
    return log


def test_the_same_seed_gives_the_same_episode() -> None:
    assert roll(5) == roll(5)
    assert len({str(roll(seed)[0]) for seed in range(8)}) > 1


@pytest.mark.parametrize("mode", ["sync", "async"])
def test_vector_environments(mode: str) -> None:
    envs = gymnasium.make_vec("keep_agent:Alfred-v0", num_envs=2, vectorization_mode=mode, episodes=EPISODES)
    try:
        envs.reset(seed=[1, 2])
        observation, _, _, _, info = envs.step(("find a sofa", "open the safe"))
    finally:
        envs.close()
    assert observation["feedback"] == ("Cannot find Sofa", "Cannot find Safe to open")
    assert list(info["outcome_ok"]) == [False, False]
    single = make()
    for index, seed in enumerate((1, 2)):
        assert single.reset(seed=seed)[1]["episode_id"] == info["episode_id"][index]


def test_reset_reports_everything_known() -> None:
    observation, info = make().reset(options={"episode": 1})
    assert observation == {"instruction": CLOTH.instruction, "feedback": ""}
    assert {fact.id for fact in info["facts"]} == info["world"].things.keys() | {"agent"}
    assert (info["task"], info["task_index"], info["goal"], info["success"]) == (CLOTH, 0, (0, 1), False)
    assert len(info["skills"]) == 214
    assert info["task_done"] is None


def test_a_failure_is_reported_and_changes_no_facts() -> None:
    env = make()
    env.reset(options={"episode": 0})
    observation, reward, _, _, info = env.step("pick up the vase")
    assert observation["feedback"] == "Cannot find Vase to pick up"
    assert (reward, info["outcome_ok"], info["facts"], info["step"]) == (0.0, False, (), 1)


def test_success_is_not_detected_before_done() -> None:
    env = make()
    env.reset(options={"episode": 1})
    for skill in ("find a cloth", "pick up the cloth", "find a shelf", "put down the cloth"):
        _, reward, terminated, truncated, info = env.step(skill)
        assert (reward, terminated, truncated, info["task_done"]) == (0.0, False, False, None)
    assert info["success"]
    _, reward, terminated, truncated, info = env.step("done")
    assert (reward, terminated, truncated) == (1.0, True, False)
    result = info["task_done"]
    assert (result.success, result.met, result.total, result.steps) == (True, 1, 1, 5)


def test_a_stream_continues_in_the_final_state_of_the_last_task() -> None:
    env = make()
    env.reset(options={"episode": 0})
    for skill in WARM_UP:
        env.step(skill)
    observation, reward, terminated, _, info = env.step("done")
    assert (reward, terminated) == (1.0, False)
    assert info["task_done"].task is HEAT
    assert observation["instruction"] == COOL.instruction
    assert (info["task_index"], info["step"]) == (1, 0)
    assert info["world"]["apple_1"].parent == "microwave_1"
    assert info["world"].heated == set()
    assert info["goal"] == (1, 3), "the apple's place counts, its treatment is reset"
    assert [fact.id for fact in info["facts"]] == ["apple_1"], "it is no longer reported as hot"
    assert env.step("done")[2]


def test_knowledge_persists_in_a_stream() -> None:
    env = make(skills="grounded", observability="partial")
    env.reset(options={"episode": 0})
    env.step("go to countertop 1")
    _, _, _, _, info = env.step("done")
    assert info["knowledge"].knows("apple_1")
    assert "pick up apple 1" in info["skills"]


def test_running_out_of_steps_ends_a_task_and_truncates_the_last() -> None:
    env = make(max_steps=2)
    env.reset(options={"episode": 0})
    endings = [env.step("find an apple")[2:] for _ in range(4)]
    assert [info["task_done"] is not None for *_, info in endings] == [False, True, False, True]
    assert [(terminated, truncated) for terminated, truncated, _ in endings] == [(False, False)] * 3 + [(False, True)]
    with pytest.raises(ResetNeeded):
        env.step("done")


@pytest.mark.parametrize(("skills", "limit"), [("lota", 25), ("grounded", 60)])
def test_default_limits(skills: str, limit: int) -> None:
    assert make(skills=skills).max_steps == limit


def test_an_unknown_skill_is_an_error() -> None:
    env = make()
    env.reset(seed=0)
    with pytest.raises(SkillError, match="unknown skill 'find a mugg'; did you mean 'find a mug'"):
        env.step("find a mugg")
    for action in (5, None, ["done"]):
        with pytest.raises(SkillError, match="a skill is a string such as 'done', not"):
            env.step(action)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"skills": "latin"}, "skills='latin' is unknown; use one of lota, grounded"),
        ({"observability": "none"}, "observability='none' is unknown"),
        ({"goal_matching": "loose"}, "goal_matching='loose' is unknown"),
        ({"max_steps": 0}, "max_steps is 0"),
    ],
)
def test_bad_settings_are_errors(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        make(**settings)


def test_missing_episodes_are_errors() -> None:
    with pytest.raises(ConfigError, match="no episodes to play"):
        AlfredEnv(episodes=())
    with pytest.raises(ConfigError, match="episode 7 does not exist; there are 3"):
        make().reset(options={"episode": 7})


def test_the_environment_renders_as_text() -> None:
    env = make(render_mode="ansi")
    env.reset(options={"episode": 0})
    env.step("find an apple")
    assert env.render().splitlines() == [
        HEAT.instruction,
        "step 1: at countertop_1, holding nothing, 0 of 3 conditions met",
    ]

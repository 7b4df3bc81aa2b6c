"""Gymnasium environment of Watch-And-Help: spaces, determinism, task streams, limits, bad input."""

from __future__ import annotations

import subprocess
import sys
import warnings
from itertools import product
from pathlib import Path
from typing import Any

import gymnasium
import pytest
from gymnasium.error import ResetNeeded
from gymnasium.utils.env_checker import check_env

from envs.wah.apartments.episodes import generate_episode
from envs.wah.env import WatchAndHelpEnv
from envs.wah.scene import Episode, Scene, Task
from keep_agent.errors import ConfigError, DataError, SkillError
from tests.envs.wah.homes import apartment, node_id, put, row

SNACK = Task("prepare_snack", (("on_apple_coffeetable", 1),), "an apple on the coffee table", "snack")
CHILL = Task("put_fridge", (("inside_cupcake_fridge", 1),), "put the cupcake in the fridge", "chill")
READ = Task("read_book", (("holds_book", 1), ("sit_sofa", 1)), "read a book on the sofa", "read")
EPISODES = (
    Episode("stream", Scene("small", apartment(), "kitchen"), (SNACK, CHILL)),
    Episode("single", Scene("small", apartment(), "livingroom"), (CHILL,)),
    Episode("reading", Scene("small", apartment(agent_in="kitchen_1")), (READ,)),
    generate_episode(3, stream=2),
)
SERVE = ("go to kitchentable 1", "pick up apple 1", "go to coffeetable 1", "put apple 1 in coffeetable 1")
CHOICES = pytest.mark.parametrize(
    ("skills", "observability", "rules"),
    list(product(("lota", "grounded"), ("full", "partial"), ("lota", "strict"))),
)


def make(**settings: Any) -> WatchAndHelpEnv:
    return WatchAndHelpEnv(episodes=EPISODES, **settings)


@CHOICES
def test_the_environment_passes_gymnasiums_checker(skills: str, observability: str, rules: str) -> None:
    env = make(skills=skills, observability=observability, rules=rules, render_mode="ansi")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        check_env(env, skip_render_check=True)


def roll(seed: int, **settings: Any) -> list[object]:
    """Return the observations of a random walk over admissible skills; all must be in the spaces."""
    env = make(**settings)
    observation, info = env.reset(seed=seed)
    env.action_space.seed(seed)
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


@CHOICES
def test_the_same_seed_gives_the_same_episode(skills: str, observability: str, rules: str) -> None:
    settings = {"skills": skills, "observability": observability, "rules": rules}
    assert roll(5, **settings) == roll(5, **settings)


def test_another_seed_gives_another_episode() -> None:
    env = make()
    assert len({env.reset(seed=seed)[1]["episode_id"] for seed in range(20)}) == len(EPISODES)


def test_an_episode_does_not_change_its_scene() -> None:
    env = make(skills="grounded")
    first = env.reset(options={"episode": 0})[1]
    before = first["world"].graph.copy()
    for skill in SERVE:
        env.step(skill)
    assert env.reset(options={"episode": 0})[1]["world"].graph == before


def test_vector_environments() -> None:
    envs = gymnasium.make_vec(
        "keep_agent:WatchAndHelp-v0", num_envs=2, vectorization_mode="sync", episodes=EPISODES, rules="strict"
    )
    try:
        envs.reset(seed=[1, 2])
        observation, _, _, _, info = envs.step(("pick up the apple", "open the fridge"))
    finally:
        envs.close()
    assert observation["feedback"] == ("the apple is not close", "the fridge is not close")
    assert list(info["outcome_ok"]) == [False, False]
    single = make()
    for index, seed in enumerate((1, 2)):
        assert single.reset(seed=seed)[1]["episode_id"] == info["episode_id"][index]


def test_reset_reports_everything_known() -> None:
    observation, info = make().reset(options={"episode": 1})
    assert observation == {"instruction": CHILL.instruction, "feedback": ""}
    assert len(info["facts"]) == 25, "twelve pieces of furniture, twelve things and the agent"
    assert (info["task"], info["task_index"], info["goal"], info["success"]) == (CHILL, 0, (0, 1), False)
    assert (info["task_done"], info["outcome_ok"], info["step"]) == (None, True, 0)
    assert info["facts"][-1].place == "livingroom_1"


def test_the_episode_option_is_an_index_or_an_episode() -> None:
    episode = Episode("own", EPISODES[1].scene, (SNACK,))
    assert make().reset(options={"episode": episode})[1]["episode_id"] == "own"
    assert make().reset(options={"episode": 3})[1]["episode_id"] == EPISODES[3].id


@pytest.mark.parametrize("rules", ["lota", "strict"])
@pytest.mark.parametrize(
    ("messages", "feedback", "reported_ok"), [("reasons", "the apple is not close", False), ("lota", "", True)]
)
def test_failures_are_reported_except_with_the_benchmarks_messages(
    rules: str, messages: str, feedback: str, reported_ok: bool
) -> None:
    env = make(rules=rules, messages=messages)
    env.reset(options={"episode": 0})
    observation, reward, _, _, info = env.step("pick up the apple")
    assert observation["feedback"] == feedback
    assert (reward, info["outcome_ok"], info["told_ok"]) == (0.0, False, reported_ok)
    assert (info["facts"], info["step"]) == ((), 1)


def test_the_benchmarks_messages_are_for_its_skills() -> None:
    with pytest.raises(ConfigError, match=r"env\.messages=lota is for type-level skills"):
        make(skills="grounded", messages="lota")


def test_success_is_not_detected_before_done() -> None:
    env = make(skills="grounded")
    env.reset(options={"episode": 1})
    for skill in ("go to fridge 1", "open fridge 1", "go to coffeetable 1", "pick up cupcake 1", "go to fridge 1"):
        assert env.step(skill)[-1]["outcome_ok"]
    _, reward, terminated, truncated, info = env.step("put cupcake 1 in fridge 1")
    assert (reward, terminated, truncated, info["task_done"], info["success"]) == (0.0, False, False, None, True)
    _, reward, terminated, truncated, info = env.step("done")
    assert (reward, terminated, truncated) == (1.0, True, False)
    result = info["task_done"]
    assert (result.task, result.success, result.met, result.total, result.steps) == (CHILL, True, 1, 1, 7)
    with pytest.raises(ResetNeeded):
        env.step("done")


def test_a_stream_continues_in_the_final_state_of_the_last_task() -> None:
    env = make(skills="grounded", observability="partial")
    env.reset(options={"episode": 0})
    for skill in (*SERVE, "pick up cupcake 1"):
        env.step(skill)
    observation, reward, terminated, _, info = env.step("done")
    assert (reward, terminated) == (1.0, False)
    assert info["task_done"].task is SNACK and info["task"] is CHILL
    assert observation["instruction"] == CHILL.instruction
    assert (info["task_index"], info["step"], info["goal"], info["facts"]) == (1, 0, (0, 1), ())
    house = info["world"]
    assert house.inventory == (node_id(house, "cupcake_1"),), "the inventory stays"
    assert info["knowledge"].knows(node_id(house, "book_1")), "knowledge stays"
    assert env.step("done")[2]


def test_running_out_of_steps_ends_a_task_and_truncates_the_last() -> None:
    env = make(max_steps=2)
    env.reset(options={"episode": 0})
    endings = [env.step("find an apple")[2:] for _ in range(4)]
    assert [info["task_done"] is not None for *_, info in endings] == [False, True, False, True]
    assert [(terminated, truncated) for terminated, truncated, _ in endings] == [(False, False)] * 3 + [(False, True)]


@pytest.mark.parametrize(("skills", "limit"), [("lota", 30), ("grounded", 80)])
def test_default_limits(skills: str, limit: int) -> None:
    assert make(skills=skills).max_steps == limit


def test_sitting_is_admissible_if_a_task_requires_it() -> None:
    env = make()
    assert "sit on the sofa" not in env.reset(options={"episode": 1})[1]["skills"]
    assert "sit on the sofa" in env.reset(options={"episode": 2})[1]["skills"]
    for skill in ("find a book", "pick up the book", "find a sofa", "sit on the sofa"):
        info = env.step(skill)[-1]
    assert info["success"]


def test_an_unknown_skill_is_an_error() -> None:
    env = make()
    env.reset(options={"episode": 0})
    with pytest.raises(SkillError, match="unknown skill 'find a plte'; did you mean 'find a plate'"):
        env.step("find a plte")
    for action in (5, None, ["done"]):
        with pytest.raises(SkillError, match="a skill is a string such as 'done', not"):
            env.step(action)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"skills": "latin"}, "skills='latin' is unknown; use one of lota, grounded"),
        ({"observability": "none"}, "observability='none' is unknown; use one of full, partial"),
        ({"rules": "loose"}, "rules='loose' is unknown; use one of lota, strict"),
        ({"max_steps": 0}, "max_steps is 0"),
    ],
)
def test_bad_settings_are_errors(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        make(**settings)


def test_invalid_episodes_are_errors() -> None:
    with pytest.raises(ConfigError, match="no episodes to play"):
        WatchAndHelpEnv(episodes=())
    with pytest.raises(ConfigError, match="episode 7 does not exist; there are 4"):
        make().reset(options={"episode": 7})
    with pytest.raises(ConfigError, match="initial room 'attic' is not in this apartment"):
        make().reset(options={"episode": Episode("e", Scene("s", apartment(), "attic"), (CHILL,))})
    broken = apartment()
    row(broken, "sofa_1").pop("id")
    with pytest.raises(DataError, match="scene s is no VirtualHome graph"):
        make().reset(options={"episode": Episode("e", Scene("s", broken), (CHILL,))})


def test_a_goal_can_be_met_at_the_start() -> None:
    content = apartment()
    put(content, "apple", "on coffeetable_1")
    env = make()
    info = env.reset(options={"episode": Episode("e", Scene("s", content, "kitchen"), (SNACK,))})[1]
    assert info["success"] and info["goal"] == (1, 1)
    assert env.step("done")[1:3] == (1.0, True)


def test_long_instructions_are_cut_to_the_length_of_the_space() -> None:
    long = Task("prepare_snack", SNACK.goal, "an apple " * 1000)
    env = make()
    observation, _ = env.reset(options={"episode": Episode("e", EPISODES[0].scene, (long,))})
    assert observation in env.observation_space


def test_the_environment_renders_as_text() -> None:
    env = make(render_mode="ansi", skills="grounded")
    env.reset(options={"episode": 0})
    for skill in SERVE[:2]:
        env.step(skill)
    assert env.render() == f"{SNACK.instruction}\nstep 2: at kitchentable_1, holding apple_1, 0 of 1 conditions met"


def test_embedded_apartments_are_the_default() -> None:
    env = WatchAndHelpEnv(split="valid", stream=2, seed=4)
    _, info = env.reset(seed=0)
    assert len(env.episodes) == 10_000 and len(env.episode.tasks) == 2
    assert info["episode_id"].startswith("apartment-1000")


def test_the_environment_loads_no_torch() -> None:
    code = (
        "import sys, gymnasium; env = gymnasium.make('keep_agent:WatchAndHelp-v0'); env.reset(seed=1); "
        "print('torch' in sys.modules, 'transformers' in sys.modules, 'requests' in sys.modules)"
    )
    root = Path(__file__).resolve().parents[3]
    run = subprocess.run([sys.executable, "-c", code], cwd=root, capture_output=True, text=True)
    assert run.returncode == 0, run.stderr
    assert run.stdout.split() == ["False", "False", "False"]

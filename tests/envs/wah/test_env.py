"""Gymnasium environment of Watch-And-Help: messages, streams, sitting, episodes; see also tests.envs.test_env."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from envs.wah.env import WatchAndHelpEnv
from envs.wah.scene import Episode, Scene, Task
from keep_agent.errors import ConfigError, DataError
from tests.envs.wah.episodes import CHILL, EPISODES, SNACK, make
from tests.envs.wah.homes import apartment, node_id, row

SERVE = ("go to kitchentable 1", "pick up apple 1", "go to coffeetable 1", "put apple 1 in coffeetable 1")


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


def test_sitting_is_admissible_if_a_task_requires_it() -> None:
    env = make()
    assert "sit on the sofa" not in env.reset(options={"episode": 1})[1]["skills"]
    assert "sit on the sofa" in env.reset(options={"episode": 2})[1]["skills"]
    for skill in ("find a book", "pick up the book", "find a sofa", "sit on the sofa"):
        info = env.step(skill)[-1]
    assert info["success"]


def test_invalid_episodes_are_errors() -> None:
    with pytest.raises(ConfigError, match="initial room 'attic' is not in this apartment"):
        make().reset(options={"episode": Episode("e", Scene("s", apartment(), "attic"), (CHILL,))})
    broken = apartment()
    row(broken, "sofa_1").pop("id")
    with pytest.raises(DataError, match="scene s is not a VirtualHome graph"):
        make().reset(options={"episode": Episode("e", Scene("s", broken), (CHILL,))})


def test_a_goal_can_be_met_at_the_start() -> None:
    content = apartment("apple on coffeetable_1")
    env = make()
    info = env.reset(options={"episode": Episode("e", Scene("s", content, "kitchen"), (SNACK,))})[1]
    assert info["success"] and info["goal"] == (1, 1)
    assert env.step("done")[1:3] == (1.0, True)


def test_long_instructions_are_cut_to_the_length_of_the_space() -> None:
    long = Task("prepare_snack", SNACK.goal, "an apple " * 1000)
    env = make()
    observation, _ = env.reset(options={"episode": Episode("e", EPISODES[0].scene, (long,))})
    assert observation in env.observation_space


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

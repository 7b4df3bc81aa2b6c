"""Worked examples: training plans of different tasks, right under the rules that are played."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from hydra import compose, initialize_config_module

from envs.setting import goal_reached
from envs.splits import LAST_SEED
from envs.worlds import spec_of
from keep_agent.config.examples import make_examples
from keep_agent.errors import ConfigError


@pytest.fixture(autouse=True)
def _hydra() -> Iterator[None]:
    with initialize_config_module("configs", version_base="1.3"):
        yield


@pytest.mark.parametrize("world", ["alfred", "wah"])
def test_examples_are_training_plans_of_different_tasks(world: str) -> None:
    env = compose(world, ["planner=expert", "env.skills=grounded"]).env
    examples = make_examples(env, 5)
    assert len({example.instruction for example in examples}) == 5
    assert all(example.skills[-1] == "done" and len(example.skills) > 2 for example in examples)
    assert make_examples(env, 5) == examples and make_examples(env, 0) == []
    assert len(make_examples(env, 2, seed=LAST_SEED + 1)) == 2


@pytest.mark.parametrize("setting", ["env.rules=lota", "env.rules=strict", "env.skills=grounded"])
def test_examples_reach_their_goals_as_it_is_played(setting: str) -> None:
    env = compose("wah", ["planner=expert", setting]).env
    world = spec_of(env.id)
    first = {episode.tasks[0].instruction: episode for episode in world.training(None, seed=LAST_SEED, limit=40)}
    running = world.setting(skills=env.skills, rules=env.rules)
    for example in make_examples(env, 12):
        episode = first[example.instruction]
        home = running.begin(episode)
        assert all(running.space.execute(home, skill).ok for skill in example.skills)
        assert goal_reached(running, home, episode.tasks[0])


def test_nobody_is_shown_what_is_played() -> None:
    with pytest.raises(ConfigError, match="shown its own plans"):
        make_examples(compose("alfred", ["planner=expert", "env.data=x", "env.split=train"]).env, 2)
    generated = compose("wah", ["planner=expert", "env.data=x", "env.split=train"]).env
    assert len(make_examples(generated, 2)) == 2  # never from files

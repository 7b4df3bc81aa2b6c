"""Factory of worlds (simulated households) and planners from a composed config. Raises ConfigError if it is invalid."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from omegaconf import DictConfig

from envs.rewording import reworded
from envs.setting import Episode, Setting, demonstrate, goal_reached
from envs.worlds import choices_of, make_world, spec_of
from keep_agent.errors import check_choice
from planners.base import DONE, ExpertPlanner, Planner, RandomPlanner

if TYPE_CHECKING:
    import gymnasium

EMBEDDED_EPISODES = 20  # default number of generated episodes; official splits are played whole
DEMONSTRATION_LIMIT = 199  # maximum number of skills in a demonstration of the scripted expert
Oracle = Callable[[Mapping[str, Any]], str]  # returns a skill for the ``info`` of an environment's step


def make_episodes(env: DictConfig, evaluation: DictConfig) -> Sequence[Episode]:
    """Return the first ``eval.episodes`` of the ``env.limit`` episodes drawn with ``eval.seed``, loaded lazily."""
    count = evaluation.episodes
    if count is None and env.data is None and env.limit is None:
        count = EMBEDDED_EPISODES
    limit = env.limit if env.data is not None else env.limit or count
    episodes = spec_of(env.id).episodes(env.data, env.split, env.stream, evaluation.seed, limit)
    if kind := env.get("rewording"):  # missing in the configs of older runs
        episodes = reworded(episodes, kind, evaluation.seed)
    return episodes[:count]


def make_setting(env: DictConfig) -> Setting:
    return spec_of(env.id).setting(**choices_of(env))


def make_env(env: DictConfig, episodes: Sequence[Episode]) -> gymnasium.Env:
    return make_world(env.id, episodes=episodes, **choices_of(env))


def demonstration_length(env: DictConfig) -> Callable[[Mapping[str, Any]], int]:
    """Return a function from a world's ``info`` to the number of skills the scripted expert needs; 0 if it fails."""
    setting = make_setting(env)

    def length(info: Mapping[str, Any]) -> int:
        world = info["world"].copy()
        skills = demonstrate(setting, world, info["task"], DEMONSTRATION_LIMIT)
        return len(skills) if skills[-1] == DONE and goal_reached(setting, world, info["task"]) else 0

    return length


def make_planner(config: DictConfig) -> Planner:
    kind = config.planner.kind
    check_choice("planner.kind", kind, ("expert", "random", "kv"))
    if kind == "expert":
        return ExpertPlanner(expert_oracle(config.env))
    if kind == "random":
        return RandomPlanner(config.eval.seed)
    from keep_agent.config.examples import make_examples
    from keep_agent.config.planner_factory import load_resources  # lazy: the other planners need no torch

    return load_resources(config, make_examples(config.env, config.prompt.examples, config.eval.seed)).planner()


def expert_oracle(env: DictConfig) -> Oracle:
    """Return a function from a world's ``info`` to the scripted expert's next skill, given what the agent knows."""
    expert = make_setting(env).expert()
    return lambda info: expert.act(info["world"], info["task"], info["knowledge"])

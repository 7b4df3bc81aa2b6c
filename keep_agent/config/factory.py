"""From a composed config to a world and a planner. Raises ConfigError for what cannot be put together."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from omegaconf import DictConfig

from envs.setting import Episode, Setting, demonstrate, goal_reached
from envs.worlds import choices_of, make_world, spec_of
from keep_agent.errors import check_choice
from planners.base import DONE, ExpertPlanner, Planner, RandomPlanner

if TYPE_CHECKING:
    import gymnasium

EMBEDDED_EPISODES = 20  # a demonstration; official splits are played whole
DEMONSTRATION_LIMIT = 199  # skills
Oracle = Callable[[Mapping[str, Any]], str]  # from a world's info to a skill


def make_episodes(env: DictConfig, evaluation: DictConfig) -> Sequence[Episode]:
    """The episodes to play, lazily: ``env.limit`` restricts the data, ``eval.episodes`` takes the first of them."""
    count = evaluation.episodes
    if count is None and env.data is None and env.limit is None:
        count = EMBEDDED_EPISODES
    limit = env.limit if env.data is not None else env.limit or count
    episodes = spec_of(env.id).episodes(env.data, env.split, env.stream, evaluation.seed, limit)
    return episodes[:count]


def make_setting(env: DictConfig) -> Setting:
    """The world of ``env.id`` with the choices of its config."""
    return spec_of(env.id).setting(**choices_of(env))


def make_env(env: DictConfig, episodes: Sequence[Episode]) -> gymnasium.Env:
    """The environment of ``env.id`` over the given episodes. Raises ConfigError for an id that is no world."""
    return make_world(env.id, episodes=episodes, **choices_of(env))


def demonstration(env: DictConfig) -> Callable[[Mapping[str, Any]], int]:
    """From a world's ``info``: how many skills the scripted expert needs, who knows everything; 0 if it fails.

    It fails where nothing is left to reach the goal with, after what an earlier task did to the house.
    """
    setting = make_setting(env)

    def length(info: Mapping[str, Any]) -> int:
        world = info["world"].copy()
        skills = demonstrate(setting, world, info["task"], DEMONSTRATION_LIMIT)
        return len(skills) if skills[-1] == DONE and goal_reached(setting, world, info["task"]) else 0

    return length


def make_planner(config: DictConfig) -> Planner:
    """The planner of ``config.planner.kind`` with everything it needs."""
    builders: dict[str, Callable[[DictConfig], Planner]] = {"expert": _expert, "random": _random, "kv": _kv}
    kind = config.planner.kind
    check_choice("planner.kind", kind, builders)
    return builders[kind](config)


def expert_oracle(env: DictConfig) -> Oracle:
    """What the scripted expert would do in the state of a world's ``info``, knowing what the agent knows."""
    expert = make_setting(env).expert()
    return lambda info: expert.act(info["world"], info["task"], info["knowledge"])


def _expert(config: DictConfig) -> Planner:
    return ExpertPlanner(expert_oracle(config.env))


def _random(config: DictConfig) -> Planner:
    return RandomPlanner(config.eval.seed)


def _kv(config: DictConfig) -> Planner:
    from keep_agent.config.examples import make_examples
    from keep_agent.config.planner_factory import make_kv_planner  # here: expert and random need no torch

    return make_kv_planner(config, make_examples(config.env, config.prompt.examples, config.eval.seed))

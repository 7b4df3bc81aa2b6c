"""In-context examples: instructions of the train split, each with the plan of the scripted expert."""

from __future__ import annotations

from collections.abc import Iterator

from omegaconf import DictConfig

from envs.setting import demonstrate, goal_reached
from envs.splits import LAST_SEED
from envs.worlds import WorldSpec, spec_of, without_simulator
from keep_agent.errors import ConfigError
from planners.base import DONE
from planners.prompts.formats import Example

POOL_EPISODES = 40  # minimum number of training episodes from which examples are chosen
MAX_SKILLS = 100  # maximum number of skills in the plan of an example


def make_examples(env: DictConfig, count: int, seed: int = 0) -> list[Example]:
    """Return ``count`` examples from the world's train split, alternating between task types.

    Each plan follows the rules of ``env`` and reaches the task's goal. The houses are not those of the evaluated tasks.
    Raises ConfigError if there are fewer, or if ``env`` evaluates the official train split, the source of examples.
    """
    if not count:
        return []
    world = spec_of(env.id)
    if world.learns_from_files and env.data is not None and env.split == "train":
        raise ConfigError("env.split=train: examples would show tested plans; use another split, or prompt.examples=0")
    by_type: dict[str, list[Example]] = {}
    for kind, example in _plans(world, env, seed, max(POOL_EPISODES, 2 * count)):
        by_type.setdefault(kind, []).append(example)
    ranked = sorted((rank, kind) for kind, examples in by_type.items() for rank in range(len(examples)))
    if len(ranked) < count:
        raise ConfigError(f"prompt.examples={count}, but the train split offers {len(ranked)}; ask for fewer")
    return [by_type[kind][rank] for rank, kind in ranked[:count]]


def _plans(world: WorldSpec, env: DictConfig, seed: int, pool: int) -> Iterator[tuple[str, Example]]:
    """Yield type and example of each training episode's first task, if the expert, who sees all facts, solves it."""
    setting = world.setting(**without_simulator(env) | {"observability": "full"})
    for episode in world.training(env.data, seed=(LAST_SEED - seed) % (LAST_SEED + 1), limit=pool):
        home, task = setting.begin(episode), episode.tasks[0]
        plan = demonstrate(setting, home, task, MAX_SKILLS)
        if plan[-1] == DONE and goal_reached(setting, home, task):
            yield task.type, Example(task.instruction, tuple(plan))

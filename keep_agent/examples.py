"""In-context examples: instructions of the train split with the scripted expert's plans."""

from __future__ import annotations

from omegaconf import DictConfig

from envs.setting import Episode, Setting, demonstrated
from envs.splits import LAST_SEED
from envs.worlds import world_of
from keep_agent.errors import ConfigError
from planners.formats import Example

POOL = 40  # training episodes to choose from
LONGEST = 100  # skills


def make_examples(env: DictConfig, count: int, seed: int = 0) -> list[Example]:
    """``count`` examples from the train split of ``env.data``, task types in turn, so that each is shown early.

    No example is a task that is played: seeds are counted from the other end, so its house is another. Raises
    ConfigError if the pool holds fewer, or where the official train split itself is played.
    """
    if not count:
        return []
    if env.data is not None and env.split == "train":
        raise ConfigError("env.split=train would be shown its own plans; play another split, or with prompt.examples=0")
    by_type: dict[str, list[Episode]] = {}
    world = world_of(env.id)
    for episode in world.training(env.data, seed=LAST_SEED - seed, limit=max(POOL, 2 * count)):
        by_type.setdefault(episode.tasks[0].type, []).append(episode)
    ranked = sorted((rank, name) for name, found in by_type.items() for rank in range(len(found)))
    if len(ranked) < count:
        raise ConfigError(f"prompt.examples={count}, but the train split offers {len(ranked)}; ask for fewer")
    setting = world.recorded(env.skills, "full")
    return [_example(setting, by_type[name][rank]) for rank, name in ranked[:count]]


def _example(setting: Setting, episode: Episode) -> Example:
    """What the expert, who knows everything, does in the first task of an episode."""
    task = episode.tasks[0]
    plan = demonstrated(setting, setting.begin(episode), task, LONGEST)
    return Example(task.instruction, tuple(plan))

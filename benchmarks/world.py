"""Skill steps per second of the symbolic worlds on one core: `python -m benchmarks.world [alfred] [wah]`.

Each step executes a random skill in a generated house (a random verb first, so that none is drowned), updates what the
agent knows and lists the admissible skills. The environment's own column adds observations, goal conditions, info and
resets.
"""

from __future__ import annotations

import argparse
from collections import defaultdict
from collections.abc import Callable, Sequence
from functools import lru_cache
from itertools import cycle
from random import Random
from time import perf_counter

import gymnasium

from envs.setting import Episode, Setting
from envs.worlds import WORLDS, World, world_of

SETTINGS = tuple((skills, known) for skills in ("lota", "grounded") for known in ("full", "partial"))
HOUSES = 8
EPISODE_STEPS = 50
SECONDS = 2.0  # per row
REQUIRED = 5_000  # steps per second


@lru_cache(maxsize=64)
def by_verb(skills: tuple[str, ...]) -> list[list[str]]:
    """Skills in groups of the same first word, ``done`` left out."""
    groups: dict[str, list[str]] = defaultdict(list)
    for skill in skills:
        groups[skill.split()[0]].append(skill)
    groups.pop("done", None)
    return list(groups.values())


def draw(skills: tuple[str, ...], random: Random) -> str:
    return random.choice(random.choice(by_verb(skills)))


def bare(setting: Setting, episodes: Sequence[Episode]) -> Callable[[], float]:
    """A rollout of the world alone; returns the seconds it took, without the reset."""
    random, houses = Random(0), cycle(episodes)

    def rollout() -> float:
        house = setting.begin(next(houses))
        knowledge = setting.knowledge(house)
        knowledge.update()
        start = perf_counter()
        for _ in range(EPISODE_STEPS):
            setting.space.execute(house, draw(setting.space.admissible(house, knowledge), random))
            knowledge.update()
        return perf_counter() - start

    return rollout


def whole_environment(env: gymnasium.Env) -> Callable[[], float]:
    """A rollout of the gymnasium environment; returns the seconds it took, with the reset."""
    random = Random(0)

    def rollout() -> float:
        start = perf_counter()
        _, info = env.reset()
        for _ in range(EPISODE_STEPS):
            _, _, _, _, info = env.step(draw(info["skills"], random))
        return perf_counter() - start

    return rollout


def rate(rollout: Callable[[], float]) -> float:
    """Steps per second over at least ``SECONDS``."""
    rollout()
    rollouts, seconds = 0, 0.0
    while seconds < SECONDS:
        seconds += rollout()
        rollouts += 1
    return rollouts * EPISODE_STEPS / seconds


def measure(world: World, env_id: str) -> float:
    """Print the rows of a world; returns its slowest rate."""
    episodes = list(world.training(None, limit=HOUSES))
    slowest = float("inf")
    for skills, observability in SETTINGS:
        setting = world.setting(skills=skills, observability=observability, max_steps=EPISODE_STEPS)
        choices = {"skills": skills, "observability": observability, "max_steps": EPISODE_STEPS}
        env = gymnasium.make(env_id, disable_env_checker=True, episodes=episodes, **choices)
        alone, together = rate(bare(setting, episodes)), rate(whole_environment(env))
        slowest = min(slowest, alone)
        print(f"{world.name:8}{skills:10}{observability:15}{alone:12,.0f}{together:14,.0f}")
    return slowest


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("worlds", nargs="*", help=f"of {', '.join(WORLDS)} (default: all)")
    names = parser.parse_args().worlds or list(WORLDS)
    if strange := set(names) - set(WORLDS):
        parser.error(f"no world is called {', '.join(sorted(strange))}; choose from {', '.join(WORLDS)}")
    print(f"{HOUSES} generated houses of each world, one core; required: {REQUIRED:,} steps/s\n")
    print(f"{'world':8}{'skills':10}{'observability':15}{'world':>12}{'environment':>14}  steps/s")
    return 0 if min(measure(world_of(WORLDS[name]), WORLDS[name]) for name in names) >= REQUIRED else 1


if __name__ == "__main__":
    raise SystemExit(main())

"""Benchmark of the symbolic worlds in steps per second: `python -m benchmarks.world [alfred] [wah] [--data PATH]`.

Each step executes a random skill (first a random verb, so that all verbs are equally frequent), updates the agent's
knowledge and lists the admissible skills. The column ``environment`` also includes observations, goal conditions,
info and resets.
"""

from __future__ import annotations

import argparse
from collections import defaultdict
from collections.abc import Callable, Sequence
from itertools import cycle
from random import Random
from time import perf_counter

import gymnasium

from envs.setting import Episode, Setting
from envs.worlds import GENERATED, WorldEntry, make_world
from keep_agent.errors import KeepError

SETTINGS = tuple((skills, known) for skills in ("lota", "grounded") for known in ("full", "partial"))
HOUSES = 8
EPISODE_STEPS = 50
SECONDS = 2.0  # minimum duration of a measurement
REQUIRED = 5_000  # steps per second


def draw_skill(skills: tuple[str, ...], random: Random) -> str:
    """Draw a verb and then a skill with this verb; never ``done``."""
    groups: dict[str, list[str]] = defaultdict(list)
    for skill in skills:
        groups[skill.split()[0]].append(skill)
    groups.pop("done", None)
    return random.choice(random.choice(list(groups.values())))


def world_rollout(setting: Setting, episodes: Sequence[Episode]) -> Callable[[], float]:
    """Return a function that plays one rollout in the world alone and returns the seconds of its steps."""
    random, houses = Random(0), cycle(episodes)

    def rollout() -> float:
        house = setting.begin(next(houses))
        knowledge = setting.knowledge(house)
        knowledge.update()
        skills, seconds = setting.space.admissible(house, knowledge), 0.0
        for _ in range(EPISODE_STEPS):
            skill, start = draw_skill(skills, random), perf_counter()
            setting.space.execute(house, skill)
            knowledge.update()
            skills = setting.space.admissible(house, knowledge)
            seconds += perf_counter() - start
        return seconds

    return rollout


def environment_rollout(env: gymnasium.Env) -> Callable[[], float]:
    """Return a function that plays one rollout in the environment and returns the seconds of its reset and steps."""
    random = Random(0)

    def rollout() -> float:
        start = perf_counter()
        _, info = env.reset()
        seconds = perf_counter() - start
        for _ in range(EPISODE_STEPS):
            skill, start = draw_skill(info["skills"], random), perf_counter()
            _, _, _, _, info = env.step(skill)
            seconds += perf_counter() - start
        return seconds

    return rollout


def steps_per_second(rollout: Callable[[], float]) -> float:
    """Return the steps per second over at least ``SECONDS``."""
    rollout()
    rollouts, seconds = 0, 0.0
    while seconds < SECONDS:
        seconds += rollout()
        rollouts += 1
    return rollouts * EPISODE_STEPS / seconds


def measure(name: str, world: WorldEntry, episodes: Sequence[Episode]) -> float:
    """Print the rows of a world; return the slowest rate of the world alone."""
    slowest = float("inf")
    for skills, observability in SETTINGS:
        setting = world.spec.setting(skills=skills, observability=observability, max_steps=EPISODE_STEPS)
        choices = {"skills": skills, "observability": observability, "max_steps": EPISODE_STEPS}
        env = make_world(world.id, episodes=episodes, **choices)
        alone, together = steps_per_second(world_rollout(setting, episodes)), steps_per_second(environment_rollout(env))
        slowest = min(slowest, alone)
        print(f"{name:8}{skills:10}{observability:15}{alone:12,.0f}{together:14,.0f}")
    return slowest


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("worlds", nargs="*", help=f"from {', '.join(GENERATED)} (default: all)")
    parser.add_argument("--data", help="use tasks of this file or folder instead of generated ones; name one world")
    parser.add_argument("--split", default="valid_seen", help="split of the folder (default %(default)s)")
    arguments = parser.parse_args()
    names = arguments.worlds or list(GENERATED)
    if unknown := set(names) - set(GENERATED):
        parser.error(f"unknown world {', '.join(sorted(unknown))}; choose from {', '.join(GENERATED)}")
    if arguments.data and len(names) > 1:
        parser.error(f"--data={arguments.data} belongs to one world; name it: {' or '.join(GENERATED)}")
    print(f"{HOUSES} houses of each world, one core; required: {REQUIRED:,} steps/s\n")
    print(f"{'world':8}{'skills':10}{'observability':15}{'world':>12}{'environment':>14}  steps/s")
    rates = []
    try:
        for name in names:
            world = GENERATED[name]
            if arguments.data:
                episodes = list(world.spec.episodes(arguments.data, arguments.split, limit=HOUSES))
            else:
                episodes = list(world.spec.training(None, limit=HOUSES))
            rates.append(measure(name, world, episodes))
    except KeepError as error:
        parser.error(str(error))
    return 0 if min(rates) >= REQUIRED else 1


if __name__ == "__main__":
    raise SystemExit(main())

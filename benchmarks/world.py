"""Skill steps per second of the symbolic world on one core: `python -m benchmarks.world`.

Each step executes a random skill in a generated house, updates what the agent knows and, for instance-level skills,
lists the admissible ones; half of the type-level skills name types the house has. The environment's own row adds
observations, goal conditions and info.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import cycle
from random import Random
from time import perf_counter

from envs.alfred.env import AlfredEnv
from envs.alfred.generator import generate_episode
from envs.alfred.grounded import GroundedSkills
from envs.alfred.knowledge import OBSERVABILITIES, Knowledge, Observability
from envs.alfred.lota import LOTA_SKILLS, LotaSkills
from envs.alfred.objects import spoken, whole
from envs.alfred.scene import Episode
from envs.alfred.world import World
from envs.setting import SkillSet

HOUSES = 8
EPISODE_STEPS = 50
SECONDS = 2.0  # per row
REQUIRED = 5_000  # steps per second


def in_house(world: World) -> list[str]:
    """Type-level skills about types the house has."""
    names = {spoken(whole(thing.type)) for thing in world.things.values()}
    return [skill for skill in LOTA_SKILLS if any(skill.endswith(f" {name}") for name in names)]


def bare(skills: SkillSet, episodes: list[Episode], observability: Observability) -> Callable[[], int]:
    """A rollout of the world alone; returns its steps."""
    random, houses = Random(0), cycle(episodes)

    def rollout() -> int:
        world = World(next(houses).scene)
        knowledge = Knowledge(world, observability)
        sensible = in_house(world)
        for _ in range(EPISODE_STEPS):
            choices = skills.admissible(world, knowledge)
            if choices is LOTA_SKILLS and random.random() < 0.5:
                choices = sensible
            skills.execute(world, random.choice(choices))
            knowledge.update()
        return EPISODE_STEPS

    return rollout


def whole_environment(skills: str, episodes: list[Episode], observability: Observability) -> Callable[[], int]:
    """A rollout of the gymnasium environment; returns its steps."""
    env = AlfredEnv(episodes=episodes, skills=skills, observability=observability, max_steps=EPISODE_STEPS)

    def rollout() -> int:
        env.reset()
        steps, over = 0, False
        while not over:
            _, _, terminated, truncated, _ = env.step(env.action_space.sample())
            steps, over = steps + 1, terminated or truncated
        return steps

    return rollout


def rate(rollout: Callable[[], int]) -> float:
    """Steps per second over at least ``SECONDS``."""
    rollout()
    steps, start = 0, perf_counter()
    while perf_counter() - start < SECONDS:
        steps += rollout()
    return steps / (perf_counter() - start)


def main() -> int:
    episodes = [generate_episode(seed) for seed in range(HOUSES)]
    things = sum(len(World(episode.scene).things) for episode in episodes) / HOUSES
    print(f"{HOUSES} generated houses, {things:.0f} things each, one core; required: {REQUIRED:,} steps/s\n")
    print(f"{'skills':10}{'observability':15}{'world':>12}{'environment':>14}  steps/s")
    slowest = float("inf")
    for name, skills in (("lota", LotaSkills()), ("grounded", GroundedSkills())):
        for observability in OBSERVABILITIES:
            world = rate(bare(skills, episodes, observability))
            environment = rate(whole_environment(name, episodes, observability))
            slowest = min(slowest, world)
            print(f"{name:10}{observability:15}{world:12,.0f}{environment:14,.0f}")
    return 0 if slowest >= REQUIRED else 1


if __name__ == "__main__":
    raise SystemExit(main())

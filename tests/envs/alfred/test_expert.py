"""Scripted expert: reaches every goal, plans as expected, repairs spoiled states, uses only the given knowledge."""

from __future__ import annotations

import re
from random import Random

import pytest

from envs.alfred.env import AlfredEnv
from envs.alfred.experts.expert import Expert
from envs.alfred.goals import goal_met
from envs.alfred.grounded import GroundedSkills
from envs.alfred.houses.generator import generate_episode
from envs.alfred.knowledge import Knowledge
from envs.alfred.lota import LotaSkills
from envs.alfred.scene import Episode, Item, Scene, Task
from envs.alfred.world import World
from keep_agent.errors import ConfigError
from tests.envs.alfred.rooms import play

SETTINGS = [("lota", "full"), ("grounded", "full"), ("grounded", "partial")]
SKILLS = {"lota": LotaSkills(), "grounded": GroundedSkills()}
settings = pytest.mark.parametrize(("skills", "observability"), SETTINGS)

KITCHEN = Scene(
    id="small-kitchen",
    room="kitchen",
    items=(
        Item("countertop_1", "CounterTop", (0.0, 0.9, 2.0)), Item("drawer_1", "Drawer", (0.5, 0.7, 2.0)),
        Item("faucet_1", "Faucet", (2.0, 1.1, 2.0)), Item("fridge_1", "Fridge", (4.0, 0.9, 2.0)),
        Item("microwave_1", "Microwave", (0.0, 1.1, -2.0)), Item("sinkbasin_1", "SinkBasin", (2.0, 0.8, 2.0)),
        Item("apple_1", "Apple", (4.0, 1.0, 2.0), "fridge_1"),
        Item("apple_2", "Apple", (0.2, 1.0, 2.0), "countertop_1"),
        Item("fork_1", "Fork", (0.5, 0.7, 2.0), "drawer_1"), Item("fork_2", "Fork", (2.0, 0.8, 2.0), "sinkbasin_1"),
        Item("knife_1", "Knife", (0.5, 0.7, 2.0), "drawer_1"), Item("mug_1", "Mug", (0.1, 1.0, 2.0), "countertop_1"),
    ),
    agent=(1.0, 0.0),
)  # fmt: skip


def _plan(scene: Scene, task: Task, skills: str, observability: str = "full") -> list[str]:
    env = AlfredEnv(episodes=[Episode("e", scene, (task,))], skills=skills, observability=observability)
    success, plan = play(env, Expert(skills, observability), 0)
    assert success, plan
    return plan


@settings
def test_reaches_every_goal_of_generated_houses(skills: str, observability: str) -> None:
    episodes = [generate_episode(seed) for seed in range(70)] + [generate_episode(seed, stream=5) for seed in range(16)]
    env = AlfredEnv(episodes=episodes, skills=skills, observability=observability)
    expert = Expert(skills, observability)
    failed = [index for index in range(len(episodes)) if not play(env, expert, index)[0]]
    assert not failed


@settings
def test_repairs_a_state_that_random_skills_have_spoiled(skills: str, observability: str) -> None:
    expert = Expert(skills, observability)
    for seed in range(80):
        episode, rng = generate_episode(seed), Random(seed)
        world, (task,) = World(episode.scene), episode.tasks
        knowledge = Knowledge(world, observability)
        for step in range(80):
            knowledge.update()
            skill = expert.act(world, task, knowledge)
            admissible = [name for name in SKILLS[skills].admissible(world, knowledge) if name != "done"]
            if step < 15 and rng.random() < 0.4:
                skill = rng.choice(admissible)
            if skill == "done":
                break
            SKILLS[skills].execute(world, skill)
        assert goal_met(world, task), episode.id


def test_plans_have_the_usual_shape() -> None:
    heat = Task("pick_heat_then_place_in_recep", "Apple", "SinkBasin")
    assert _plan(KITCHEN, heat, "lota") == [
        *("find an apple", "pick up the apple", "find a microwave", "open the microwave", "put down the apple"),
        *("close the microwave", "turn on the microwave", "turn off the microwave", "open the microwave"),
        *("pick up the apple", "find a sink", "put down the apple", "done"),
    ]
    two = Task("pick_two_obj_and_place", "Fork", "CounterTop")
    assert _plan(KITCHEN, two, "lota") == [
        *("find a fork", "pick up the fork", "find a counter top", "put down the fork"),
        *("find a fork", "open the drawer", "pick up the fork", "find a counter top", "put down the fork", "done"),
    ]
    cool = Task("pick_cool_then_place_in_recep", "Apple", "CounterTop", sliced=True)
    assert _plan(KITCHEN, cool, "grounded") == [
        *("go to drawer 1", "open drawer 1", "pick up knife 1", "go to fridge 1", "open fridge 1", "slice apple 1"),
        "go to countertop 1",
        *("put knife 1 in countertop 1", "go to fridge 1", "close fridge 1", "open fridge 1", "pick up applesliced 1"),
        *("go to countertop 1", "put applesliced 1 in countertop 1", "done"),
    ]


def test_partial_knowledge_searches_likely_places_first_and_names_only_known_things() -> None:
    clean = Task("pick_clean_then_place_in_recep", "Fork", "Drawer")
    partial = _plan(KITCHEN, clean, "grounded", "partial")
    assert partial[0] == "go to countertop 1" and "go to fridge 1" not in partial
    assert len(_plan(KITCHEN, clean, "grounded", "full")) < len(partial)
    expert, skills = Expert("grounded", "partial"), GroundedSkills()
    for seed in range(40):
        episode = generate_episode(seed)
        world = World(episode.scene)
        knowledge = Knowledge(world, "partial")
        for _ in range(60):
            knowledge.update()
            skill = expert.act(world, episode.tasks[0], knowledge)
            names = {name.replace(" ", "_") for name in re.findall(r"[a-z]+ \d+", skill)}
            assert names <= knowledge.known, skill
            if skill == "done":
                break
            skills.execute(world, skill)


@settings
def test_same_state_same_skill(skills: str, observability: str) -> None:
    episode = generate_episode(11)
    world = World(episode.scene)
    knowledge = Knowledge(world, observability)
    knowledge.update()
    before = world.copy()
    choices = {Expert(skills, observability).act(world, episode.tasks[0], knowledge) for _ in range(3)}
    assert len(choices) == 1 and world == before, "deciding changes nothing"


def test_done_where_no_step_helps_and_errors_for_bad_choices() -> None:
    world = World(KITCHEN)
    assert Expert("grounded", "full").act(world, Task("pick_and_place_simple", "Egg", "Fridge"), None) == "done"
    assert Expert("lota", "full").act(world, Task("look_at_obj_in_light", "Mug", toggle_target="DeskLamp"), None)
    with pytest.raises(ConfigError, match="'fly'"):
        Expert("fly")
    with pytest.raises(ConfigError, match="'dim'"):
        Expert("lota", "dim")  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="knowledge"):
        Expert("grounded", "partial").act(World(KITCHEN), Task("pick_and_place_simple", "Mug", "Fridge"))

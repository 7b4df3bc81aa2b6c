"""Random skills in random order: no errors, no contradictory states, no nondeterminism."""

from __future__ import annotations

from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from envs.alfred.goals import TASK_TYPES, goal_conditions
from envs.alfred.grounded import GroundedSkills
from envs.alfred.knowledge import Knowledge
from envs.alfred.lota import LotaSkills
from envs.alfred.scene import Scene, Task
from envs.alfred.world import World
from envs.fact import Fact
from envs.setting import Observability, SkillSet
from tests.envs.alfred.rooms import bedroom, kitchen

SCENES = (kitchen(), bedroom())
SETS: tuple[SkillSet, ...] = (LotaSkills(), GroundedSkills())
SKILL_SETS = pytest.mark.parametrize("skills", SETS, ids=["lota", "grounded"])
GOALS = [Task(kind, "Apple", "Fridge", "DeskLamp", "Plate", sliced) for kind in TASK_TYPES for sliced in (False, True)]


def assert_sound(world: World) -> None:
    """Assert one place per thing, at most two holders around it, a sound hand and type index, and bounds of goals."""
    for thing in world.things.values():
        holders = [holder.id for holder in world.things.values() if thing.id in holder.contents]
        assert holders == ([thing.parent] if thing.parent and thing.pickupable else [])
        assert len(set(thing.contents)) == len(thing.contents)
        assert len(list(world.holders(thing.id))) <= 2, "fixture, container, object: no deeper"
        assert thing.id in world.of_type(thing.type)
        if thing.parent and thing.pickupable:
            assert thing.position == world[thing.parent].position
    if world.holding is not None:
        assert world[world.holding].parent is None
    assert world.at is None or world.at in world.things
    for task in GOALS:
        met, total = goal_conditions(world, task)
        assert 0 <= met <= total and goal_conditions(world, task, "official")[0] >= met


def walk(scene: Scene, skills: SkillSet, seed: int, steps: int) -> tuple[World, Knowledge, list[object]]:
    """Walk at random, sometimes repeating a skill; return the world, the knowledge, and all outcomes and facts."""
    random, world = Random(seed), World(scene)
    knowledge = Knowledge(world, random.choice(("full", "partial")))
    reported: list[object] = [knowledge.update()]
    for _ in range(steps):
        skill = random.choice(skills.admissible(world, knowledge))
        for _ in range(random.choice((1, 1, 2))):
            reported += [skills.execute(world, skill), knowledge.update()]
    return world, knowledge, reported


@SKILL_SETS
@given(scene=st.sampled_from(SCENES), seed=st.integers(0, 10**6))
@settings(max_examples=25)
def test_random_walks_stay_sound(skills: SkillSet, scene: Scene, seed: int) -> None:
    world, knowledge, _ = walk(scene, skills, seed, 60)
    assert_sound(world)
    fresh = Knowledge(world, "full")
    truth = {fact.id: fact for fact in fresh.update()}
    for known_id, fact in knowledge.facts.items():
        expected = truth[known_id]
        if "unseen" in fact.states:
            expected = Fact(**{**_fields(expected), "states": tuple(sorted((*expected.states, "unseen")))})
        assert fact == expected, "what the agent remembers is true"


def _fields(fact: Fact) -> dict[str, object]:
    return {name: getattr(fact, name) for name in Fact.__slots__}


@SKILL_SETS
@given(seed=st.integers(0, 10**6))
@settings(max_examples=10)
def test_the_same_walk_gives_the_same_world(skills: SkillSet, seed: int) -> None:
    first, second = (walk(kitchen(), skills, seed, 40) for _ in range(2))
    assert first[2] == second[2] and first[0] == second[0]


@given(scene=st.sampled_from(SCENES), seed=st.integers(0, 10**6), observability=st.sampled_from(("full", "partial")))
@settings(max_examples=25)
def test_every_admissible_grounded_skill_works(scene: Scene, seed: int, observability: Observability) -> None:
    skills, random, world = GroundedSkills(), Random(seed), World(scene)
    knowledge = Knowledge(world, observability)
    for _ in range(20):
        knowledge.update()
        admissible = skills.admissible(world, knowledge)
        assert len(set(admissible)) == len(admissible)
        for skill in admissible:
            outcome = skills.execute(world.copy(), skill)
            assert outcome.ok, f"{skill}: {outcome.message}"
        skills.execute(world, random.choice(admissible))


@given(seed=st.integers(0, 10**6))
@settings(max_examples=25)
def test_failures_have_a_reason_and_grounded_ones_change_nothing(seed: int) -> None:
    random = Random(seed)
    world = walk(random.choice(SCENES), SETS[1], seed, 15)[0]
    names = [thing_id.replace("_", " ") for thing_id in world.things]
    verbs = ("go to", "open", "close", "pick up", "slice", "turn on", "turn off")
    for _ in range(40):
        name, second = random.choice(names), random.choice(names)
        skill = random.choice((*(f"{verb} {name}" for verb in verbs), f"put {name} in {second}"))
        before = world.copy()
        outcome = SETS[1].execute(before, skill)
        assert outcome.ok != bool(outcome.message)
        assert outcome.ok or before == world


@SKILL_SETS
@given(seed=st.integers(0, 10**6))
@settings(max_examples=10)
def test_copies_do_not_touch_each_other(skills: SkillSet, seed: int) -> None:
    world = walk(kitchen(), skills, seed, 20)[0]
    twin, unchanged = world.copy(), world.copy()
    random = Random(seed)
    for _ in range(20):
        skills.execute(twin, random.choice(skills.admissible(twin)))
    assert world == unchanged

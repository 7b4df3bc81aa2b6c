"""Random walks of skills: no exceptions, consistent graphs, deterministic results."""

from __future__ import annotations

from dataclasses import replace
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from envs.setting import SkillSet
from envs.wah.apartments.episodes import generate_episode
from envs.wah.geometry import is_never_close
from envs.wah.goals import goal_conditions, parse_goal
from envs.wah.graph import CLOSE, ON
from envs.wah.grounded import GroundedSkills
from envs.wah.home import Home
from envs.wah.knowledge import Knowledge
from envs.wah.lota import LotaSkills
from envs.wah.state import is_movable
from tests.envs.wah.homes import GraphJson, apartment, home

LOTA, STRICT, GROUNDED = LotaSkills("lota"), LotaSkills("strict"), GroundedSkills()
SETS: tuple[SkillSet, ...] = (LOTA, STRICT, GROUNDED)
SKILL_SETS = pytest.mark.parametrize("skills", SETS, ids=["lota", "strict", "grounded"])
STATES = (("OPEN", "CLOSED"), ("ON", "OFF"))
GOALS = [
    parse_goal(goal)
    for goal in (
        [("on_plate_coffeetable", 2), ("on_apple_coffeetable", 1)],
        [("inside_waterglass_dishwasher", 1), ("inside_plate_dishwasher", 3), ("turnOn_dishwasher", 1)],
        [("holds_book", 1), ("sit_sofa", 1)],
    )
]


# The small apartment with nested boxes, stacked things, a chair and a window.
CROWDED = apartment(
    "plate on coffeetable_1", "box on kitchentable_1", "pancake on plate_1", "folder in box_1", "radio on sofa_1",
    "coffeemaker on kitchencounter_1", "fryingpan on kitchencounter_1", "candle in kitchencabinet_1",
    "cuttingboard on kitchentable_1", "cupcake on cuttingboard_1", "book in box_2", "chair at 8 0.2 4 in livingroom_1",
    "window at 3 1.5 0",
)  # fmt: skip
EMBEDDED = [generate_episode(seed).scene.graph for seed in range(3)]


def begin(graph: GraphJson, sitting: bool = True) -> Home:
    house = home(graph)
    house.allows_sitting = sitting
    return house


def assert_consistent(house: Home) -> None:
    """Assert one place per thing, two hands, exclusive states, symmetric closeness, scores within bounds."""
    graph = house.graph
    assert len(house.inventory) <= 2
    assert house.room is not None and house.room == graph.room(house.agent)
    assert graph.targets(house.agent, CLOSE) == graph.sources(house.agent, CLOSE)
    assert set(house.inventory) <= graph.targets(house.agent, CLOSE)
    for thing, node in graph.nodes.items():
        assert not any(node.states.issuperset(pair) for pair in STATES), node
        if not is_movable(node):
            continue
        holders = [*graph.containers(thing), *(on for on in graph.targets(thing, ON) if not is_never_close(graph[on]))]
        assert len(holders) + (thing in house.inventory) <= 1, (node, holders)
        assert graph.room(thing) is not None, node
        assert all(graph.room(holder) == graph.room(thing) for holder in holders), (node, holders)
        assert thing not in house.inventory or graph.room(thing) == house.room
        assert thing not in house.holders(thing)
    for goal in GOALS:
        met, total = goal_conditions(house, goal)
        assert 0 <= met <= total


def assert_true(knowledge: Knowledge) -> None:
    """Assert that all facts are true, and complete under full observability."""
    truth = {fact.id: fact for fact in Knowledge(knowledge.home.copy(), "full").update()}
    if knowledge.observability == "full":
        assert knowledge.facts == truth
        return
    for name, fact in knowledge.facts.items():
        states = tuple(state for state in fact.states if state != "unseen")
        assert replace(fact, states=states, sees=()) == replace(truth[name], sees=())
        assert set(fact.sees) <= set(truth[name].sees)
    house = knowledge.home
    visible = [
        node for node in house.all_contents(house.room) if is_movable(house.graph[node]) and not house.hidden_in(node)
    ]
    assert set(visible) <= knowledge.known


def walk(house: Home, skills: SkillSet, seed: int, steps: int) -> tuple[Knowledge, list[object]]:
    """Walk at random, all verbs with equal probability; return the final knowledge and all reports."""
    random = Random(seed)
    knowledge = Knowledge(house, random.choice(("full", "partial")))
    reports: list[object] = [knowledge.update()]
    for step in range(steps):
        admissible = skills.admissible(house, knowledge)
        verb = random.choice(sorted({skill.split()[0] for skill in admissible}))
        skill = random.choice([skill for skill in admissible if skill.startswith(verb)])
        reports += [skill, skills.execute(house, skill), knowledge.update()]
        assert_consistent(house)
        if step % 50 == 49:
            assert_true(knowledge)
    return knowledge, reports


@SKILL_SETS
@given(seed=st.integers(0, 10**6))
@settings(max_examples=25)
def test_random_walks_stay_consistent(skills: SkillSet, seed: int) -> None:
    assert_true(walk(begin(CROWDED, sitting=seed % 2 == 0), skills, seed, 110)[0])


@SKILL_SETS
@pytest.mark.parametrize("graph", EMBEDDED, ids=["first", "second", "third"])
def test_random_walks_in_embedded_apartments_stay_consistent(skills: SkillSet, graph: GraphJson) -> None:
    assert_true(walk(begin(graph), skills, 1, 150)[0])


@SKILL_SETS
@given(seed=st.integers(0, 10**6))
@settings(max_examples=8)
def test_random_walks_are_deterministic_and_copies_are_independent(skills: SkillSet, seed: int) -> None:
    first, second = begin(CROWDED), begin(CROWDED)
    assert walk(first, skills, seed, 50) == walk(second, skills, seed, 50)
    copy = first.copy()
    assert copy == first == second
    walk(copy, skills, seed + 1, 20)
    assert first == second


@given(seed=st.integers(0, 10**6))
@settings(max_examples=15)
def test_every_admissible_grounded_skill_works(seed: int) -> None:
    random, house = Random(seed), begin(CROWDED)
    knowledge = Knowledge(house, random.choice(("full", "partial")))
    for _ in range(20):
        knowledge.update()
        admissible = GROUNDED.admissible(house, knowledge)
        assert len(set(admissible)) == len(admissible)
        for skill in admissible:
            outcome = GROUNDED.execute(house.copy(), skill)
            assert outcome.ok, f"{skill}: {outcome.message}"
        GROUNDED.execute(house, random.choice(admissible))


@SKILL_SETS
@given(seed=st.integers(0, 10**6))
@settings(max_examples=15)
def test_failures_change_nothing_and_have_a_reason(skills: SkillSet, seed: int) -> None:
    random, house = Random(seed), begin(CROWDED)
    walk(house, skills, seed, 15)
    for skill in random.sample(LOTA.admissible(house), 40) if skills is not GROUNDED else _any_grounded(house, random):
        after = house.copy()
        outcome = skills.execute(after, skill)
        assert outcome.ok or (after.graph, after.at, after.room) == (house.graph, house.at, house.room)
        assert bool(outcome.message) == (not outcome.ok)


def _any_grounded(house: Home, random: Random) -> list[str]:
    """Return skills on existing and absent things."""
    names = [f"{kind} {number}" for kind in house.graph.classes for number in (1, 2, 9)]
    verbs = ("go to", "open", "close", "pick up", "turn on", "turn off", "sit on")
    puts = [f"put {random.choice(names)} in {random.choice(names)}" for _ in range(20)]
    return [f"{random.choice(verbs)} {random.choice(names)}" for _ in range(60)] + puts

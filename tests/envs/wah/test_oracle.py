"""Step-by-step comparison of our household with VirtualHome's executors: only the listed differences occur."""

from __future__ import annotations

import gzip
import json
import re
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from random import Random

import pytest

from envs.wah.action import VERBS, Action
from envs.wah.apartments.belongings import goes_inside
from envs.wah.apartments.episodes import generate_episode
from envs.wah.apartments.furniture import ROOMS
from envs.wah.apartments.placing import GraphJson, likely_holders, place
from envs.wah.data.formats import read_graph, write_graph
from envs.wah.goals import Predicate, goal_conditions, parse_goal, place_class
from envs.wah.graph import Graph
from envs.wah.home import Home
from envs.wah.language.names import class_of_words
from envs.wah.lota import LotaSkills
from tests.envs.wah.differences import DIFFERENCES, Tally, compare, oracle_of
from tests.envs.wah.oracle import require_oracle
from tests.envs.wah.walks import wander

EMBEDDED = range(15)  # seeds of embedded apartments, with one walk each
EMBEDDED_STEPS = 130
SHARED_STEPS = 90  # steps of the one walk in each apartment that is read from a file
SKILL = re.compile(r"(?:find an?|pick up the|open the|close the|switch on the|put down the) (.+)")


@dataclass
class PlanTally(Tally):
    failures: list[int] = field(default_factory=list)  # ids of tasks whose plans did not reach their goals


class RecordingSkills(LotaSkills):
    """Skills under the benchmark's rules that record their last action."""

    last_action: Action | None = None

    def _action(self, home: Home, verb: str, kind: str) -> Action | None:
        self.last_action = super()._action(home, verb, kind)
        return self.last_action


@pytest.fixture(scope="module", autouse=True)
def _installed() -> None:
    require_oracle()


@pytest.fixture(scope="module")
def embedded() -> Tally:
    tally = Tally()
    for seed in EMBEDDED:
        rng = Random(f"oracle-{seed}")
        graph = write_graph(read_graph(generate_episode(seed, stream=2).scene.graph))
        nest(graph, rng)
        wander(Home(read_graph(graph), rng.choice(ROOMS)), rng, EMBEDDED_STEPS, tally)
    return tally


def nest(graph: GraphJson, rng: Random) -> None:
    """Place things in and on containers in cabinets, deeper than in any embedded apartment."""
    for outer, inner in (("box", "toy"), ("plate", "cupcake"), ("fryingpan", "pie")):
        cabinets = [row["id"] for row in graph["nodes"] if row["class_name"] in ("cabinet", "kitchencabinet")]
        place(graph, inner, place(graph, outer, rng.choice(cabinets), rng), rng)


@pytest.fixture(scope="module")
def shared(wah_data: Callable[[str], Path]) -> Tally:
    tally = Tally()
    for path in sorted(wah_data("apartments").glob("*.json.gz")):
        wander(Home(apartment(path)), Random(f"{path.name}-0"), SHARED_STEPS, tally)
    return tally


@pytest.fixture(scope="module")
def plans(wah_data: Callable[[str], Path]) -> PlanTally:
    """Execute WAH-NL's demonstrations, each in a current apartment that has all its classes."""
    apartments = [apartment(path) for path in sorted(wah_data("apartments").glob("unity_*.json.gz"))]
    tally = PlanTally()
    for record in json.loads(wah_data("tasks/wah_nl_train_examples.json").read_text(encoding="utf-8")):
        rng, goal = Random(f"plan-{record['task_id']}"), parse_goal(sorted(record["derived_goal"].items()))
        needed = {kind(skill) for skill in record["task_plan"]} - {predicate.thing for predicate in goal}
        suitable = [graph for graph in apartments if needed <= set(graph.classes)]
        home = Home(laid_out(rng.choice(suitable), record["task_plan"], goal, rng), rng.choice(ROOMS))
        play(home, record["task_plan"], tally)
        met, required = goal_conditions(home, goal)
        tally.failures += [] if met == required else [record["task_id"]]
    return tally


def apartment(path: Path) -> Graph:
    with gzip.open(path, "rt", encoding="utf-8") as file:
        return read_graph(json.load(file), str(path))


def kind(skill: str) -> str:
    """Return the class that a skill names."""
    match = SKILL.fullmatch(skill)
    name = class_of_words(match[1]) if match else None
    assert name is not None, skill
    return name


def laid_out(apartment: Graph, plan: list[str], goal: tuple[Predicate, ...], rng: Random) -> Graph:
    """Return the apartment with one instance of each goal object, at the place where the plan fetches it."""
    things = sorted({predicate.thing for predicate in goal} - {""})
    content = write_graph(apartment)
    rows = [row for row in content["nodes"] if row["class_name"] not in things]
    ids = {row["id"] for row in rows}
    edges = [row for row in content["edges"] if {row["from_id"], row["to_id"]} <= ids]
    graph: GraphJson = {"nodes": rows, "edges": edges}
    for thing in things:
        place(graph, thing, source(graph, plan, thing, place_class(goal), rng), rng)
    return read_graph(graph)


def source(graph: GraphJson, plan: list[str], thing: str, target: str, rng: Random) -> int:
    """Return the last instance of the class that the plan opens just before finding the thing; else a visible place."""
    first = next(number for number, skill in enumerate(plan) if skill.startswith("find") and kind(skill) == thing)
    before = plan[first - 1] if first else ""
    if before.startswith("open") and kind(before) != target:
        return next(row["id"] for row in reversed(graph["nodes"]) if row["class_name"] == kind(before))
    rows = {row["id"]: row for row in graph["nodes"] if row["class_name"] != target}
    holders = [rows[holder] for holder in likely_holders(graph["nodes"], thing) if holder in rows]
    visible = [row for row in holders if "CLOSED" not in row["states"] or not goes_inside(thing, row["class_name"])]
    return rng.choice(visible)["id"]


def play(home: Home, plan: list[str], tally: PlanTally) -> None:
    """Execute a plan's skills in our world and the oracle."""
    oracle, skills = oracle_of(home), RecordingSkills("lota")
    for skill in plan:
        before = home.copy()
        done = skills.execute(home, skill).ok
        assert skills.last_action is not None, skill
        compare(oracle, before, home if done else before, skills.last_action, {"lota": done}, tally)


@pytest.mark.parametrize(
    ("run", "least"), [("embedded", len(EMBEDDED) * EMBEDDED_STEPS), ("shared", 950), ("plans", 2_902)]
)
def test_every_step_agrees(run: str, least: int, request: pytest.FixtureRequest) -> None:
    tally = request.getfixturevalue(run)
    assert tally.steps >= least
    assert not tally.wrong, tally.wrong[:5]


def test_walks_execute_every_verb(embedded: Tally) -> None:
    assert embedded.done.total() >= 0.3 * embedded.steps
    assert {verb: count for verb in VERBS if (count := embedded.done[verb]) < 36} == {}


def test_every_listed_difference_occurs(embedded: Tally) -> None:
    assert set(embedded.differences) == set(DIFFERENCES)


def test_plans_reach_their_goals(plans: PlanTally) -> None:
    assert plans.steps == 2_902 and not plans.failures

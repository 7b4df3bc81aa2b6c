"""Plans: tasks with instructions and goals but without graphs. A seed determines the apartment and the things' places.

The folder has ``tasks/*examples*.json`` (records with task_id, task_name, nl_instructions and derived_goal) and
``apartments/*.json.gz`` (VirtualHome graphs).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from random import Random
from typing import Any

from envs.wah.apartments.placing import Goal, lay_out
from envs.wah.apartments.possible import check_catalog, check_places
from envs.wah.data.formats import read_graph, write_graph
from envs.wah.data.records import check_goal, field_of, instructions_of, json_files, read_json, records_of, task_of
from envs.wah.goals import Predicate, parse_goal
from envs.wah.graph import CHARACTERS, ROOMS, Graph
from envs.wah.scene import Episode, Scene, Task
from keep_agent.errors import ConfigError, DataError, check_once

TASKS, APARTMENTS = "tasks", "apartments"


def has_plans(path: Path) -> bool:
    """Return whether a folder has tasks and apartments."""
    return (path / TASKS).is_dir() and (path / APARTMENTS).is_dir()


def load_plans(folder: Path, seed: int) -> list[Callable[[], Episode]]:
    """Return one function per instruction, to make the instruction's episode. ``seed`` determines apartment and layout.

    :raises ConfigError: the folder has no tasks, or a task is impossible in all apartments
    """
    apartments = {
        path.name.split(".")[0]: read_graph(read_json(path), str(path)) for path in json_files(folder / APARTMENTS)
    }
    makers, identities = [], []
    for file in json_files(folder / TASKS, "examples"):
        for row, where in records_of(file):
            identities.append(f"plan-{field_of(row, ('task_id',), where)}")
            makers += _makers(row, where, identities[-1], apartments, seed)
    check_once(identities, "task", f"give each record of {folder / TASKS} its own task_id")
    if not makers:
        raise ConfigError(f"{folder / TASKS} has no *examples*.json with tasks; name another folder")
    return makers


def _makers(
    row: Mapping[str, Any], where: str, identity: str, apartments: Mapping[str, Graph], seed: int
) -> list[Callable[[], Episode]]:
    kind, goal = task_of(row, where)
    check_goal(goal, where, check_catalog)
    rng = Random(f"{identity}-{seed}")
    names = _suitable_apartments(apartments, parse_goal(goal), where)
    if not (instructions := instructions_of(row, where)):
        raise DataError(f"{where} has no nl_instructions; a plan needs one per episode")
    name = rng.choice(names)
    make = partial(_episode, apartments[name], name, kind, goal, identity, seed)
    return [partial(make, number, text) for number, text in enumerate(instructions)]


def _suitable_apartments(apartments: Mapping[str, Graph], goal: Sequence[Predicate], where: str) -> list[str]:
    """Return the names of the apartments that have a goal's places. Raises ConfigError if no apartment has them."""
    names, problem = [], "there is none"
    for name, graph in sorted(apartments.items()):
        try:
            check_places(graph, goal)
            names.append(name)
        except DataError as error:
            problem = f"in {name}, {error}"
    if not names:
        raise ConfigError(f"{where} can be done in none of {len(apartments)} apartments ({problem}); add another")
    return names


def _episode(
    apartment: Graph, name: str, kind: str, goal: Goal, identity: str, seed: int, number: int, text: str
) -> Episode:
    rng = Random(f"{identity}-{seed}-layout")
    graph = write_graph(_without_classes(apartment, {predicate.thing for predicate in parse_goal(goal)}))
    lay_out(graph, [goal], rng)
    rooms = [node.class_name for node in apartment.nodes.values() if node.category == ROOMS]
    scene = Scene(f"{identity}-{name}", graph, rng.choice(rooms))
    return Episode(f"{identity}-{number}", scene, (Task(kind, goal, text, identity),))


def _without_classes(apartment: Graph, classes: set[str]) -> Graph:
    """Return the apartment without things of some classes and without characters."""
    nodes = apartment.nodes.values()
    graph = Graph(node for node in nodes if node.category != CHARACTERS and node.class_name not in classes)
    for source, relation, target in apartment.edges():
        if source in graph.nodes and target in graph.nodes:
            graph.link(source, relation, target)
    return graph

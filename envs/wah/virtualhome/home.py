"""Household in a running simulator: an action is sent as a script line, then the graph is read again.

Episodes begin as in LoTA-Bench (wah_environment.py at 97c46cc). The scene is loaded and changed into the task's graph;
things that the graph adds to the scene get new ids. Then a character is added.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NoReturn

from envs.wah.action import SIT, WALK, Action
from envs.wah.data.formats import read_graph
from envs.wah.graph import CHARACTERS, INSIDE, ON, Graph
from envs.wah.home import Home
from envs.wah.scene import Scene
from envs.wah.state import HomeState, ThingIndex
from envs.wah.virtualhome.client import Simulator
from envs.wah.virtualhome.errors import SimulatorAnswer
from keep_agent.errors import ConfigError, DataError

ADDED_IDS = 1000  # ids of things that the graph adds to the scene are above this number


class SimulatedHome(HomeState):
    """Household in the simulator. Its copies have no simulator, so trials on a copy do not affect the simulator."""

    __slots__ = ("_classes", "_simulator")

    def __init__(self, simulator: Simulator, scene: Scene) -> None:
        """Set up the scene. Raises SimulatorError if the simulator fails, ConfigError for a scene without a number."""
        if scene.simulator_scene is None:
            raise ConfigError(f"scene {scene.id} has no number in the simulator; set env.data to tasks with env_id")
        self._simulator = simulator
        simulator.reset(scene.simulator_scene)
        highest = max(self._read()[0].nodes, default=0)
        simulator.expand_scene(renumber_added(scene.graph, highest))
        simulator.camera_count()  # the benchmark sends this request, too; the answer is not needed here
        simulator.add_character(room=scene.room)
        self._classes: dict[int, str] = {}
        super().__init__(Graph())
        self._refresh()
        self.changed = set(self.graph.nodes)

    def copy(self) -> Home:
        """Return a household in the same state, without a simulator."""
        home = Home(self.graph.copy())
        home.at, home.room, home.history = self.at, self.room, self.history
        home.allows_sitting = self.allows_sitting
        return home

    def act(self, action: Action) -> bool:
        """Execute an action in the simulator; return False if it failed."""
        names = (self._classes[action.thing], self._classes.get(action.place, ""))
        done = self._simulator.render_script([action.line(*names)])
        if action.verb == WALK and done:
            self.at = self.fixture_of(action.thing)
        self._refresh()
        self.changed.add(action.thing)
        return done and (action.verb != SIT or self.sitting is not None)

    def __reduce__(self) -> NoReturn:
        raise ConfigError("a simulator's home cannot be pickled; use one environment per simulator, in one process")

    def _read(self) -> tuple[Graph, dict[int, str]]:
        """Read the current graph, and the simulator's own class names by node id."""
        content = self._simulator.environment_graph()
        try:
            graph = read_graph(content, "the simulator's graph")
        except DataError as error:
            raise self._invalid(str(error)) from error
        return graph, {int(row["id"]): str(row["class_name"]) for row in content["nodes"]}

    def _invalid(self, reason: str) -> SimulatorAnswer:
        return self._simulator.add_context(SimulatorAnswer(f"invalid graph ({reason})"), "environment_graph")

    def _refresh(self) -> None:
        """Read the current graph and record the changes."""
        graph, self._classes = self._read()
        characters = [node.id for node in graph.nodes.values() if node.category == CHARACTERS]
        if not characters:
            raise self._invalid("it has no character")
        self.agent = characters[0]
        before, self.graph, self._loose_cache = self.graph, graph, None
        if before.nodes.keys() != graph.nodes.keys():
            self.things = ThingIndex(graph)
        self.room = graph.room(self.agent)
        self.changed |= {node for node in graph.nodes if _differs(before, graph, node)} | {self.agent}


def _differs(before: Graph, after: Graph, thing: int) -> bool:
    if before.nodes.get(thing) != after.nodes[thing]:
        return True
    return any(before.targets(thing, relation) != after.targets(thing, relation) for relation in (INSIDE, ON))


def renumber_added(graph: Mapping[str, Any], highest: int) -> dict[str, Any]:
    """Replace ids above ``highest`` (the scene's highest id) by ids from 1,001 on, as LoTA-Bench does."""

    def renumber(node_id: int) -> int:
        return node_id - highest + ADDED_IDS if node_id > highest else node_id

    nodes = [{**node, "id": renumber(node["id"])} for node in graph["nodes"]]
    edges = [
        {**edge, "from_id": renumber(edge["from_id"]), "to_id": renumber(edge["to_id"])} for edge in graph["edges"]
    ]
    return {"nodes": nodes, "edges": edges}

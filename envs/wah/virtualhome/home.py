"""The same household in a running simulator: every action is a script line, the graph is what the simulator says then.

Episodes begin as LoTA-Bench's do (wah_environment.py at 97c46cc): the scene is loaded, the task's graph is put into it
with the ids of added things moved out of the way, and a character enters.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NoReturn

from envs.wah.action import SIT, WALK, Action
from envs.wah.data.formats import read_graph
from envs.wah.graph import CHARACTERS, INSIDE, ON, Graph
from envs.wah.home import Home
from envs.wah.objects import Things
from envs.wah.scene import Scene
from envs.wah.state import HomeState
from envs.wah.virtualhome.client import Simulator
from envs.wah.virtualhome.errors import SimulatorAnswer
from keep_agent.errors import ConfigError, DataError

MOVED = 1000  # ids of added things begin here


class SimulatedHome(HomeState):
    """A household in the simulator. Copies are symbolic: whoever tries things out on one disturbs nothing."""

    __slots__ = ("_classes", "_simulator")

    def __init__(self, simulator: Simulator, scene: Scene) -> None:
        """Raises SimulatorError for whatever goes wrong there, ConfigError for a scene that no simulator has."""
        if scene.scene is None:
            raise ConfigError(f"scene {scene.id} has no number in the simulator; name tasks with env_id in env.data")
        self._simulator = simulator
        simulator.reset(scene.scene)
        highest = max(self._read()[0].nodes, default=0)
        simulator.expand_scene(added_ids_moved(scene.graph, highest))
        simulator.camera_count()  # the benchmark asks, too; cameras of the character come behind these
        simulator.add_character(room=scene.room)
        self._classes: dict[int, str] = {}
        super().__init__(Graph())
        self._look()
        self.changed = set(self.graph.nodes)

    def copy(self) -> Home:
        """A symbolic household in the same state."""
        home = Home(self.graph.copy())
        home.at, home.room, home.focus, home.seats = self.at, self.room, self.focus, self.seats
        return home

    def act(self, action: Action) -> bool:
        """Have it done; False if the simulator could not."""
        names = (self._classes[action.thing], self._classes.get(action.place, ""))
        done, _ = self._simulator.render_script([action.line(*names)])
        if action.verb == WALK and done:
            self.at = self.fixture(action.thing)
        self._look()
        self.changed.add(action.thing)
        return done and (action.verb != SIT or self.sitting is not None)

    def __reduce__(self) -> NoReturn:
        raise ConfigError("a home in a simulator stays in its process; play one environment per simulator, no vectors")

    def _read(self) -> tuple[Graph, dict[int, str]]:
        """The graph as it is now, and the simulator's own names of classes."""
        content = self._simulator.environment_graph()
        try:
            graph = read_graph(content, "the simulator's graph")
        except DataError as error:
            raise self._useless(str(error)) from error
        return graph, {int(row["id"]): str(row["class_name"]) for row in content["nodes"]}

    def _useless(self, why: str) -> SimulatorAnswer:
        return self._simulator.named(SimulatorAnswer(f"a graph that is of no use ({why})"), "environment_graph")

    def _look(self) -> None:
        """Take the graph as it is now, and note what has changed."""
        graph, self._classes = self._read()
        people = [node.id for node in graph.nodes.values() if node.category == CHARACTERS]
        if not people:
            raise self._useless("nobody is in it")
        self.me = people[0]
        before, self.graph, self._loose = self.graph, graph, None
        if before.nodes.keys() != graph.nodes.keys():
            self.things = Things(graph)
        self.room = graph.room(self.me)
        self.changed |= {one for one in graph.nodes if _differs(before, graph, one)} | {self.me}


def _differs(before: Graph, after: Graph, thing: int) -> bool:
    if before.nodes.get(thing) != after.nodes[thing]:
        return True
    return any(before.targets(thing, relation) != after.targets(thing, relation) for relation in (INSIDE, ON))


def added_ids_moved(graph: Mapping[str, Any], highest: int) -> dict[str, Any]:
    """The graph with the ids of what the scene itself does not have counted from 1,001, as the benchmark does."""

    def moved(node_id: int) -> int:
        return node_id - highest + MOVED if node_id > highest else node_id

    nodes = [{**node, "id": moved(node["id"])} for node in graph["nodes"]]
    edges = [{**edge, "from_id": moved(edge["from_id"]), "to_id": moved(edge["to_id"])} for edge in graph["edges"]]
    return {"nodes": nodes, "edges": edges}

"""Stand-in for AI2-THOR, called directly instead of in a process of its own."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

from envs.alfred.scene import Scene
from envs.alfred.thor_stub.house import to_house
from envs.alfred.thor_stub.rooms import Rooms
from envs.alfred.thor_stub.simulator import ActionReply, Simulator

Record = dict[str, Any]


class Sim:
    """A simulator with the house of a scene, and short ways to execute actions."""

    def __init__(self, scene: Scene | None = None, **settings: Any) -> None:
        self.simulator = Simulator.of(Rooms(), images=False)
        self.ask("Initialize", **{"fieldOfView": 60, **settings})
        if scene is not None:
            self.require("CreateHouse", house=json.loads(json.dumps(to_house(scene))))

    def answer(self, action: str, **arguments: Any) -> ActionReply:
        return self.simulator.handle({"action": action, "sequenceId": 1, **arguments})

    def ask(self, action: str, **arguments: Any) -> Record:
        (agent,) = self.answer(action, **arguments).metadata["agents"]
        return agent

    def require(self, action: str, **arguments: Any) -> Record:
        agent = self.ask(action, **arguments)
        assert agent["lastActionSuccess"], f"{action}: {agent['errorMessage']}"
        return agent

    def refusal(self, action: str, **arguments: Any) -> str:
        agent = self.ask(action, **arguments)
        assert not agent["lastActionSuccess"], action
        return agent["errorMessage"]

    def objects(self, kind: str = "") -> list[Record]:
        return [entry for entry in self.require("Pass")["objects"] if kind in ("", entry["objectType"])]

    def entry(self, kind: str, number: int = 0) -> Record:
        return self.objects(kind)[number]

    def id(self, kind: str, number: int = 0) -> str:
        return self.entry(kind, number)["objectId"]

    def poses(self, object_id: str, **arguments: Any) -> list[Record]:
        return self.require("GetInteractablePoses", objectId=object_id, **arguments)["actionReturn"]

    def stand_at(self, object_id: str) -> None:
        """Stand at the first pose for an object; like the client's step(), wrap the rotation in a dictionary."""
        pose = self.poses(object_id, standings=[True])[0]
        self.require("TeleportFull", **{**pose, "rotation": {"y": pose["rotation"]}})


def beside(scene: Scene) -> Scene:
    """Return the scene with its agent on a point of the grid."""
    return replace(scene, agent=(0.0, 2.0))


def holding(sim: Sim, object_id: str) -> Sim:
    """Put an object into the hand."""
    sim.require("PickupObject", objectId=object_id, forceAction=True)
    return sim

"""Geometry of VirtualHome on the floor plan (x, z): closeness of boxes, and standing points.

A character and a thing are CLOSE (EnvironmentGraph.cs of the simulator, 2.x) under two conditions. The middle of one
box is at most 1.3 m from the other box. The two middles are at most 5 m apart.
"""

from __future__ import annotations

import numpy as np

from envs.wah.graph import CHARACTERS, ROOMS, Box, Graph, Node, Vector

REACH = 1.3  # metres
MAX_CENTER_DISTANCE = 5.0  # metres
NEVER_CLOSE = frozenset(("curtains", "floor", "wall", "ceiling", "ceilinglamp", "walllamp", "doorjamb", "door"))
BODY = (0.5, 1.8, 0.5)  # metres: the agent's size without a simulator
ARM_LENGTH = 0.6  # metres between furniture and the middle of the agent that stands at it
MARGIN = 0.3  # metres between an agent and the walls of a room


class Boxes:
    """Boxes of a graph's nodes as arrays, for vectorised distance queries. Call ``move`` after a node has moved."""

    def __init__(self, graph: Graph) -> None:
        nodes = [node for node in graph.nodes.values() if node.box is not None and not is_never_close(node)]
        self.ids = np.array([node.id for node in nodes], dtype=np.int64)  # (nodes,)
        self._rows = {node.id: row for row, node in enumerate(nodes)}
        self._centers = np.array([_floor_xz(node.box.center) for node in nodes]).reshape(-1, 2)  # (nodes, 2)
        self._halves = np.array([_floor_xz(node.box.size) for node in nodes]).reshape(-1, 2) / 2

    def copy(self) -> Boxes:
        copy = object.__new__(Boxes)
        copy.ids, copy._rows, copy._halves = self.ids, self._rows, self._halves
        copy._centers = self._centers.copy()
        return copy

    def move(self, node_id: int, center: Vector) -> None:
        row = self._rows.get(node_id)
        if row is not None:
            self._centers[row] = _floor_xz(center)

    def close_to(self, body: Box) -> list[int]:
        """Return the ids of the nodes that are CLOSE to a character with this box, in the order of the nodes."""
        middle, half = np.array(_floor_xz(body.center)), np.array(_floor_xz(body.size)) / 2
        offset = np.abs(self._centers - middle)
        to_box = np.maximum(offset - self._halves, 0.0)
        to_body = np.maximum(offset - half, 0.0)
        nearest = np.minimum((to_box**2).sum(1), (to_body**2).sum(1))
        near = (nearest <= REACH**2) & ((offset**2).sum(1) <= MAX_CENTER_DISTANCE**2)
        return self.ids[near].tolist()


def is_never_close(node: Node) -> bool:
    """Return whether a node has no CLOSE edge at any distance."""
    return node.category in (ROOMS, CHARACTERS, "Doors") or node.class_name in NEVER_CLOSE


def _floor_xz(vector: Vector) -> tuple[float, float]:
    return vector[0], vector[2]


def standing_point(target: Box, room: Box | None) -> Vector:
    """Return the point within the walls at arm's length from the side of ``target`` that faces the room's middle."""
    (x, _, z), (width, _, depth) = target.center, target.size
    if room is None:
        return x, 0.0, z - depth / 2 - ARM_LENGTH
    dx, dz = room.center[0] - x, room.center[2] - z
    if abs(dx) * depth > abs(dz) * width:  # the side that faces the middle is at low or high x
        x += np.copysign(width / 2 + ARM_LENGTH, dx)
    else:
        z += np.copysign(depth / 2 + ARM_LENGTH, dz)
    return _clamped(x, room, 0), 0.0, _clamped(z, room, 2)


def _clamped(value: float, room: Box, axis: int) -> float:
    low = room.center[axis] - room.size[axis] / 2 + MARGIN
    high = room.center[axis] + room.size[axis] / 2 - MARGIN
    return float(min(max(value, low), max(low, high)))

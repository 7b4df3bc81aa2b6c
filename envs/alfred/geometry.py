"""Fixed geometry of a scene: standing points, and the basin that each faucet fills."""

from __future__ import annotations

from math import dist

from envs.alfred.scene import Position, Scene

EYE_HEIGHT = 0.9  # metres; the y coordinate of the agent in AI2-THOR
BASINS = frozenset({"SinkBasin", "BathtubBasin"})


def flat(position: Position) -> tuple[float, float]:
    """Return the floor coordinates (x, z) of a position, in metres."""
    return position[0], position[2]


class Geometry:
    """The part of a scene that never changes; all copies of a world share it."""

    __slots__ = ("_reachable", "_stands", "basin_of", "ids")

    def __init__(self, scene: Scene) -> None:
        self.ids = frozenset(item.id for item in scene.items)
        self.basin_of = _basins(scene)
        self._reachable = scene.reachable
        self._stands: dict[tuple[float, float], tuple[float, float]] = {}

    def stand(self, position: Position) -> tuple[float, float]:
        """Return the standing point (x, z) nearest to a position; the position itself if the scene lists no points."""
        target = flat(position)
        if target not in self._stands:
            self._stands[target] = min(self._reachable, key=lambda point: dist(point, target), default=target)
        return self._stands[target]


def _basins(scene: Scene) -> dict[str, str]:
    """Map each faucet to the nearest basin (official rule); a bath's faucet fills the bathtub, which cleans nothing."""
    basins = [item for item in scene.items if item.type in BASINS]
    faucets = [item for item in scene.items if item.type == "Faucet"]
    return {
        faucet.id: min(basins, key=lambda basin: dist(basin.position, faucet.position)).id
        for faucet in faucets
        if basins
    }

"""The fixed geometry of a scene: where one stands, how far things are, which basin a faucet fills."""

from __future__ import annotations

from math import dist

from envs.alfred.scene import Item, Position, Scene

EYE_HEIGHT = 0.9  # metres; the agent's own position in AI2-THOR
BASINS = frozenset({"SinkBasin", "BathtubBasin"})


def flat(position: Position) -> tuple[float, float]:
    """The floor coordinates (x, z) of a position, in metres."""
    return position[0], position[2]


class Ground:
    """What never changes in a scene; shared by all copies of its world."""

    __slots__ = ("_reachable", "_stands", "basin_of", "ids")

    def __init__(self, scene: Scene) -> None:
        self.ids = frozenset(item.id for item in scene.items)
        self.basin_of = _basins(scene)
        self._reachable = scene.reachable
        self._stands: dict[tuple[float, float], tuple[float, float]] = {}

    def stand(self, position: Position) -> tuple[float, float]:
        """The standing point (x, z) nearest to a position; the position itself where any point will do."""
        target = flat(position)
        if target not in self._stands:
            self._stands[target] = min(self._reachable, key=lambda point: dist(point, target), default=target)
        return self._stands[target]


def _basins(scene: Scene) -> dict[str, str]:
    """The basin nearest to each faucet (official rule); a bath's faucet fills the bathtub, which cleans nothing."""
    basins = [item for item in scene.items if item.type in BASINS]
    faucets = [item for item in scene.items if item.type == "Faucet"]
    return {faucet.id: _nearest(faucet, basins).id for faucet in faucets if basins}


def _nearest(faucet: Item, basins: list[Item]) -> Item:
    return min(basins, key=lambda basin: dist(basin.position, faucet.position))

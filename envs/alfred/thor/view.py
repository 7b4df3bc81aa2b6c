"""View of a room from above: AI2-THOR's camera image, or if there is none, a drawing of standing points and things."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

import numpy as np

from envs.alfred.thor.world import ThorWorld

if TYPE_CHECKING:
    from PIL.ImageDraw import ImageDraw

MARGIN = 0.5  # metres around the drawing
FLOOR, FIXTURE, OBJECT, AGENT = "#d8d8d8", "#6b7f99", "#d1872b", "#b3262b"


def top_view(world: ThorWorld, size: int = 300) -> np.ndarray:
    """Return the view, (height, width, 3) uint8; ``size``: pixels of a drawing's longer side. Raises ThorError."""
    if world.frame is None:  # headless
        return draw(world, size)
    image = world.ask("Pass").camera_frame
    if image is None:
        camera = world.ask("GetMapViewCameraProperties")
        if camera.ok:  # the added camera stays until the next reset
            image = world.ask("AddThirdPartyCamera", **camera.value, skyboxColor="white").camera_frame
    return draw(world, size) if image is None else np.ascontiguousarray(image)


def draw(world: ThorWorld, size: int = 300) -> np.ndarray:
    """Draw standing points as floor, things as squares, fixtures with their ids, and the agent in red."""
    from PIL import Image, ImageDraw

    places = [*world.points, *((thing.position[0], thing.position[2]) for thing in world.things.values())]
    plan = _Plan(places, size)
    image = Image.new("RGB", plan.shape, "white")
    pen = ImageDraw.Draw(image)
    for point in world.points:
        plan.square(pen, point, 0.12, FLOOR)
    for thing in sorted(world.things.values(), key=lambda thing: thing.pickupable):
        place = (thing.position[0], thing.position[2])
        plan.square(pen, place, 0.05 if thing.pickupable else 0.12, OBJECT if thing.pickupable else FIXTURE)
        if not thing.pickupable:
            pen.text(plan.pixel(place), thing.id, fill="black")
    plan.square(pen, (world.agent.x, world.agent.z), 0.1, AGENT)
    return np.asarray(image)


class _Plan:
    """Transformation of floor coordinates to pixels: x to the right, z up."""

    def __init__(self, places: Iterable[tuple[float, float]], size: int) -> None:
        corners = np.array(list(places))
        low, high = corners.min(axis=0) - MARGIN, corners.max(axis=0) + MARGIN
        self._low, self._high = low, high
        self._scale = size / float((high - low).max())  # pixels per metre
        width, height = ((high - low) * self._scale).round().astype(int)
        self.shape = int(width), int(height)

    def pixel(self, place: tuple[float, float]) -> tuple[float, float]:
        return (place[0] - self._low[0]) * self._scale, (self._high[1] - place[1]) * self._scale

    def square(self, pen: ImageDraw, place: tuple[float, float], half: float, color: str) -> None:
        """Draw a square around ``place``; ``half`` is half its side, in metres."""
        x, y = self.pixel(place)
        half_pixels = half * self._scale
        pen.rectangle((x - half_pixels, y - half_pixels, x + half_pixels, y + half_pixels), fill=color)

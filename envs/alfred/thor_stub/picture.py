"""Schematic images of a room: raw RGB, bottom row first. Things are boxes with their type's name and colour."""

from __future__ import annotations

import colorsys
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from math import cos, radians, sin, tan

import numpy as np
from PIL import Image, ImageDraw, ImageFont

from envs.alfred.scene import Position
from envs.alfred.thor_stub.actions.handling import is_on
from envs.alfred.thor_stub.actions.scenery import CEILING, map_camera
from envs.alfred.thor_stub.geometry import corners
from envs.alfred.thor_stub.room import Room
from envs.alfred.thor_stub.session import Camera, Session
from envs.alfred.thor_stub.traits import size_of

Color = tuple[int, int, int]
Pixel = tuple[float, float]

WALL: Color = (214, 208, 196)
FLOOR: Color = (158, 132, 104)
OUTSIDE: Color = (40, 40, 46)
AGENT: Color = (200, 30, 30)
ON_COLOR: Color = (255, 235, 90)  # the outline of devices that are on
EDGE: Color = (50, 50, 50)
NEAR = 0.08  # metres; nothing nearer to the camera is drawn
FONT = ImageFont.load_default(10)
LABEL_RANGE = 3.0  # metres within which things have labels
# Faces of a box: numbers of the corners (as in `corners`), axis and sign of the normal, brightness.
FACES = (
    ((0, 1, 3, 2), 0, 1, 0.8), ((4, 5, 7, 6), 0, -1, 0.8), ((0, 1, 5, 4), 1, 1, 1.0), ((2, 3, 7, 6), 1, -1, 0.5),
    ((0, 2, 6, 4), 2, 1, 0.65), ((1, 3, 7, 5), 2, -1, 0.65),
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class _Box:
    """A thing to draw."""

    kind: str
    center: Position
    size: tuple[float, float, float]
    is_lit: bool


@dataclass(frozen=True, slots=True)
class _Lens:
    """A pinhole camera. The rows of ``axes`` (3, 3) point right, up and forward; ``focal_length`` is in pixels."""

    eye: np.ndarray
    axes: np.ndarray
    focal_length: float
    width: int
    height: int

    def project(self, points: list[list[float]]) -> np.ndarray:
        """Return for n points an array (n, 3): column and row in pixels, and the distance ahead in metres."""
        relative = (np.array(points) - self.eye) @ self.axes.T
        ahead = np.maximum(relative[:, 2], NEAR)
        scale = self.focal_length / ahead
        return np.stack(
            (self.width / 2 + relative[:, 0] * scale, self.height / 2 - relative[:, 1] * scale, relative[:, 2]), axis=1
        )


def first_person(session: Session) -> bytes:
    """Return the agent's image; in map view, the room from above."""
    if session.map_view:
        return camera_image(session, map_camera(session.room))
    body = session.room.body
    angle = session.settings.sight.angle
    return _perspective(session, _lens(session, body.eye, body.horizon, body.rotation, angle))


def camera_image(session: Session, camera: Camera) -> bytes:
    """Return the image of an additional camera. An orthographic one is assumed to look straight down."""
    if camera.extent is not None:
        return _from_above(session, camera.position, camera.extent)
    pitch, yaw, _ = camera.rotation
    return _perspective(session, _lens(session, camera.position, pitch, yaw, camera.angle))


def _lens(session: Session, eye: Position, pitch: float, yaw: float, angle: float) -> _Lens:
    """Return the camera; ``pitch`` (down), ``yaw`` (right) and ``angle`` (vertical field of view) are in degrees."""
    down, turn = radians(pitch), radians(yaw)
    right = cos(turn), 0.0, -sin(turn)
    up = sin(turn) * sin(down), cos(down), cos(turn) * sin(down)
    ahead = sin(turn) * cos(down), -sin(down), cos(turn) * cos(down)
    axes = np.array((right, up, ahead))
    return _Lens(np.array(eye), axes, session.height / 2 / tan(radians(angle) / 2), session.width, session.height)


def _perspective(session: Session, lens: _Lens) -> bytes:
    image = Image.new("RGB", (lens.width, lens.height), OUTSIDE)
    pen = ImageDraw.Draw(image)
    for color, outline in _planes(session.room):
        pixels = _clipped(outline, lens)
        if len(pixels) > 2:
            pen.polygon(pixels, fill=color)
    if boxes := list(_boxes(session.room)):
        _draw_boxes(image, pen, lens, boxes)
    return _rgb_bytes(image)


def _planes(room: Room) -> Iterator[tuple[Color, np.ndarray]]:
    """Yield the colour and corners of each wall and of the floor."""
    (x0, z0), (x1, z1) = _extent(room)
    outline = ((x0, z0), (x1, z0), (x1, z1), (x0, z1))
    for number, (x, z) in enumerate(outline):
        right, ahead = outline[(number + 1) % 4]
        shade = tuple(value - 12 * (number % 2) for value in WALL)
        yield shade, np.array(((x, 0, z), (right, 0, ahead), (right, CEILING, ahead), (x, CEILING, z)))
    yield FLOOR, np.array([(x, 0.0, z) for x, z in outline])


def _clipped(outline: np.ndarray, lens: _Lens) -> list[Pixel]:
    """Clip an outline (n, 3), in metres, to the part in front of the camera. Return the corners in pixels."""
    ahead = (outline - lens.eye) @ lens.axes[2] - NEAR
    points: list[list[float]] = []
    for number in range(len(outline)):
        start, end = outline[number], outline[(number + 1) % len(outline)]
        a, b = ahead[number], ahead[(number + 1) % len(outline)]
        if a >= 0:
            points.append(start.tolist())
        if (a >= 0) != (b >= 0):
            points.append((start + (end - start) * (a / (a - b))).tolist())
    return [(column, row) for column, row, _ in lens.project(points).tolist()] if points else []


def _extent(room: Room) -> tuple[Pixel, Pixel]:
    (x0, z0), (x1, z1) = room.bounds
    return (x0 - 0.5, z0 - 0.5), (x1 + 0.5, z1 + 0.5)


def _boxes(room: Room) -> Iterator[_Box]:
    """Yield the boxes to draw; the floor, things replaced by slices, and things behind a closed door are not drawn."""
    for entity in room.entities.values():
        if entity.type != "Floor" and not room.hidden(entity):
            yield _Box(entity.type, room.position(entity), size_of(entity.type), is_on(room, entity))


def _draw_boxes(image: Image.Image, pen: ImageDraw.ImageDraw, lens: _Lens, boxes: list[_Box]) -> None:
    """Draw the boxes, the farthest first."""
    points = lens.project([corner for box in boxes for corner in corners(box.center, box.size)]).reshape(-1, 8, 3)
    middles = lens.project([list(box.center) for box in boxes])
    visible = (
        (middles[:, 2] > NEAR)
        & ((points[:, :, 2] > NEAR).sum(axis=1) > 4)
        & (points[:, :, 0].max(axis=1) > 0)
        & (points[:, :, 0].min(axis=1) < lens.width)
        & (points[:, :, 1].max(axis=1) > 0)
        & (points[:, :, 1].min(axis=1) < lens.height)
    )
    eye = tuple(lens.eye.tolist())
    for number in np.argsort(-middles[:, 2]).tolist():
        if visible[number]:
            column, row, ahead = middles[number].tolist()
            _draw_box(pen, boxes[number], points[number, :, :2].tolist(), eye)
            if ahead < LABEL_RANGE:
                mask = _label(boxes[number].kind)
                image.paste((255, 255, 255), (int(column) - mask.width // 2, int(row) - mask.height // 2), mask)


def _draw_box(pen: ImageDraw.ImageDraw, box: _Box, points: list[list[float]], eye: Position) -> None:
    color = _color(box.kind)
    for indices, axis, side, light in FACES:
        if (eye[axis] - box.center[axis]) * side > box.size[axis] / 2:
            shade = tuple(int(value * light) for value in color)
            outline = [(points[index][0], points[index][1]) for index in indices]
            pen.polygon(outline, fill=shade, outline=ON_COLOR if box.is_lit else EDGE)


def _from_above(session: Session, center: Position, extent: float) -> bytes:
    """Draw the room from above, x to the right, z up; ``extent``: metres from the middle to the upper edge."""
    scale = session.height / 2 / extent
    image = Image.new("RGB", (session.width, session.height), OUTSIDE)
    pen = ImageDraw.Draw(image)

    def rectangle(low: Pixel, high: Pixel, fill: Color, outline: Color) -> None:
        x0, x1 = (session.width / 2 + (x - center[0]) * scale for x in (low[0], high[0]))
        y0, y1 = (session.height / 2 - (z - center[2]) * scale for z in (high[1], low[1]))
        pen.rectangle((x0, y0, x1, y1), fill, outline)

    rectangle(*_extent(session.room), FLOOR, WALL)
    for box in sorted(_boxes(session.room), key=lambda box: box.center[1]):
        (x, _, z), (width, _, depth) = box.center, box.size
        low, high = (x - width / 2, z - depth / 2), (x + width / 2, z + depth / 2)
        rectangle(low, high, _color(box.kind), ON_COLOR if box.is_lit else EDGE)
    body = session.room.body
    rectangle((body.x - 0.1, body.z - 0.1), (body.x + 0.1, body.z + 0.1), AGENT, AGENT)
    return _rgb_bytes(image)


def _rgb_bytes(image: Image.Image) -> bytes:
    return image.tobytes("raw", "RGB", 0, -1)


@cache
def _label(kind: str) -> Image.Image:
    x0, y0, x1, y1 = FONT.getbbox(kind)
    mask = Image.new("L", (int(x1 - x0) + 1, int(y1 - y0) + 1))
    ImageDraw.Draw(mask).text((-x0, -y0), kind, fill=255, font=FONT)
    return mask


@cache
def _color(kind: str) -> Color:
    """Return the colour of a type, the same in every process."""
    number = zlib.crc32(kind.encode())
    red, green, blue = colorsys.hsv_to_rgb(number % 360 / 360, 0.35 + number // 360 % 40 / 100, 0.85)
    return int(red * 255), int(green * 255), int(blue * 255)

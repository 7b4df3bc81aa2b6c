"""Furniture of the four rooms of a generated apartment: a random choice of pieces, without their places."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from random import Random


@dataclass(frozen=True, slots=True)
class Piece:
    """A piece of furniture with its parts and accessories."""

    kind: str
    on: tuple[str, ...] = ()  # side by side on top
    above: tuple[str, ...] = ()  # side by side on the wall over the piece
    within: tuple[str, ...] = ()  # built in, side by side
    beside: tuple[str, ...] = ()  # on the floor around the piece


@dataclass(frozen=True, slots=True)
class Furnishing:
    """Content of a room: pieces along the walls and in the middle, things on the walls and under the ceiling."""

    walls: tuple[Piece, ...]
    middle: tuple[Piece, ...] = ()
    on_walls: tuple[str, ...] = ()
    overhead: tuple[str, ...] = ("ceilinglamp",)


def furnishing(room: str, rng: Random) -> Furnishing:
    """Draw a room's content; ``room`` is one of ``ROOMS``."""
    return _DRAW[room](rng)


def _times(rng: Random, kind: str, *counts: int) -> tuple[str, ...]:
    """Repeat a class name; draw the number of times from ``counts``."""
    return (kind,) * rng.choice(counts)


def _pieces(rng: Random, kind: str, *counts: int) -> list[Piece]:
    return [Piece(name) for name in _times(rng, kind, *counts)]


def _shares(rng: Random, total: int, parts: int, most: int) -> list[int]:
    """Distribute ``total`` things at random over ``parts`` places, at most ``most`` at each."""
    shares = [0] * parts
    for _ in range(total):
        shares[rng.choice([i for i, share in enumerate(shares) if share < most])] += 1
    return shares


def _counters(rng: Random) -> list[Piece]:
    """Draw two or three counters and distribute sink, appliances, wall cabinets and drawers over them."""
    count = rng.randint(2, 3)
    tops: list[list[str]] = [["sink", "faucet"], *([] for _ in range(count - 1))]
    for kind in ("microwave", "toaster", "coffeemaker"):
        rng.choice(tops[1:]).append(kind)
    cabinets = _shares(rng, rng.randint(2, min(8, 3 * count)), count, 3)
    drawers = _shares(rng, rng.randint(0, min(8, 4 * count)), count, 4)
    return [
        Piece("kitchencounter", tuple(top), above=("kitchencabinet",) * wall, within=("kitchencounterdrawer",) * drawer)
        for top, wall, drawer in zip(tops, cabinets, drawers, strict=True)
    ]


def _desk(rng: Random) -> Piece:
    computer = ("computer", "cpuscreen", "keyboard", "mouse")
    return Piece("desk", (*computer, *_times(rng, "tablelamp", 0, 1)), beside=("chair",))


def _nightstand(rng: Random) -> Piece:
    return Piece("nightstand", _times(rng, "tablelamp", 0, 1, 1))


def _television(rng: Random) -> Piece:
    return Piece("tvstand", ("tv",), beside=_times(rng, "speaker", 0, 0, 1, 2))


def _sockets(rng: Random) -> tuple[str, ...]:
    return ("lightswitch", *_times(rng, "powersocket", 1, 2))


def _kitchen(rng: Random) -> Furnishing:
    walls = [Piece("fridge"), *_pieces(rng, "fridge", 0, 0, 0, 0, 1), *_counters(rng)]
    walls += [Piece("dishwasher"), Piece("stove", above=("stovefan",), within=("oventray",))]
    walls += _pieces(rng, "garbagecan", 0, 1, 1) + _pieces(rng, "bookshelf", 0, 0, 1) + _pieces(rng, "tvstand", 0, 0, 1)
    around = rng.choice((("chair",) * 2, ("chair",) * 3, ("chair",) * 4, ("bench",) * 2))
    hung = ("window", *_sockets(rng), *_times(rng, "wallphone", 0, 1), *_times(rng, "wallpictureframe", 0, 1, 2))
    overhead = (*_times(rng, "ceilinglamp", 1, 2), *_times(rng, "ceilingfan", 0, 0, 1))
    return Furnishing(
        tuple(walls), (Piece("kitchentable", beside=around),), (*hung, *_times(rng, "walllamp", 0, 2)), overhead
    )


def _livingroom(rng: Random) -> Furnishing:
    walls = [Piece("sofa"), *_pieces(rng, "sofa", 0, 0, 1), _television(rng)]
    walls += _pieces(rng, "bookshelf", 1, 2, 3) + _pieces(rng, "cabinet", 1, 1, 2) + _pieces(rng, "closet", 0, 0, 1)
    walls += [_desk(rng) for _ in _times(rng, "desk", 0, 1, 1)]
    walls += [_nightstand(rng) for _ in _times(rng, "nightstand", 0, 1)]
    walls += _pieces(rng, "amplifier", 0, 0, 1) + _pieces(rng, "coatrack", 0, 0, 1)
    middle = [*_pieces(rng, "coffeetable", 1, 1, 2), *_pieces(rng, "rug", 1, 1, 2)]
    hung = ("window", *_times(rng, "window", 0, 1), *_sockets(rng), *_times(rng, "wallpictureframe", 1, 2, 3, 4))
    hung += (*_times(rng, "walllamp", 0, 2, 4), *_times(rng, "wallshelf", 0, 0, 1, 2))
    overhead = (*_times(rng, "ceilinglamp", 1, 2, 3), *_times(rng, "ceilingfan", 0, 0, 1))
    return Furnishing(tuple(walls), tuple(middle), hung, overhead)


def _bedroom(rng: Random) -> Furnishing:
    walls = [Piece("bed"), *(_nightstand(rng) for _ in _times(rng, "nightstand", 1, 2))]
    walls += _pieces(rng, "closet", 1, 1, 2) + _pieces(rng, "bookshelf", 0, 1, 1, 2)
    walls += [_desk(rng) for _ in _times(rng, "desk", 0, 1, 1)]
    walls += [_television(rng) for _ in _times(rng, "tvstand", 0, 0, 1)]
    walls += _pieces(rng, "garbagecan", 0, 1) + _pieces(rng, "bench", 0, 0, 1) + _pieces(rng, "standingmirror", 0, 0, 1)
    middle = [*_pieces(rng, "coffeetable", 0, 0, 1), *_pieces(rng, "rug", 0, 1, 1)]
    hung = ("window", *_times(rng, "window", 0, 1), *_sockets(rng), *_times(rng, "wallpictureframe", 1, 2, 3))
    hung += (*_times(rng, "walllamp", 0, 2), *_times(rng, "wallshelf", 0, 0, 1))
    return Furnishing(tuple(walls), tuple(middle), hung, _times(rng, "ceilinglamp", 1, 2, 3))


def _bathroom(rng: Random) -> Furnishing:
    walls = [Piece("bathroomcounter", ("sink", "faucet"), above=("bathroomcabinet",)), Piece("toilet")]
    walls += rng.choice(([Piece("bathtub")], [Piece("stall")], [Piece("bathtub"), Piece("stall")]))
    walls += [Piece("washingmachine"), *_pieces(rng, "garbagecan", 0, 0, 1), *_pieces(rng, "cabinet", 0, 0, 0, 0, 1)]
    hung = (*_times(rng, "window", 0, 1), "lightswitch", *_times(rng, "towelrack", 1, 2, 3))
    hung += (*_times(rng, "wallpictureframe", 0, 1), *_times(rng, "walllamp", 0, 2), *_times(rng, "wallshelf", 0, 0, 1))
    return Furnishing(tuple(walls), tuple(_pieces(rng, "rug", 0, 1)), hung, _times(rng, "ceilinglamp", 1, 2))


_DRAW: Mapping[str, Callable[[Random], Furnishing]] = {
    "kitchen": _kitchen, "livingroom": _livingroom, "bedroom": _bedroom, "bathroom": _bathroom,
}  # fmt: skip
ROOMS = tuple(_DRAW)

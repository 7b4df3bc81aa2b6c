"""Blueprints of the four room types (furniture at the walls and in the middle), and weights for drawing objects."""

from __future__ import annotations

from dataclasses import dataclass
from random import Random


@dataclass(frozen=True, slots=True)
class Part:
    """One fixture of a piece of furniture: its offset along the wall, height and distance from the wall, in metres."""

    type: str
    along: float
    height: float
    depth: float


@dataclass(frozen=True, slots=True)
class Unit:
    """A piece of furniture with its fixtures and footprint in metres."""

    width: float
    depth: float
    parts: tuple[Part, ...]


@dataclass(frozen=True, slots=True)
class Blueprint:
    """The furniture of a room: units for the walls, units for the middle of the room."""

    walls: tuple[Unit, ...]
    middle: tuple[Unit, ...] = ()


def single(kind: str, width: float, depth: float, height: float, *extra: Part) -> Unit:
    """Return a unit that has one fixture in its middle, and ``extra`` parts on, above or in that fixture."""
    return Unit(width, depth, (Part(kind, width / 2, height, depth / 2), *extra))


def _stack(kind: str, along: float, heights: tuple[float, ...], depth: float = 0.3) -> tuple[Part, ...]:
    return tuple(Part(kind, along, height, depth) for height in heights)


def _drawers(rng: Random, along: float, low: int, high: int) -> tuple[Part, ...]:
    """Return a chest of ``low`` to ``high`` drawers, one above the other."""
    count = rng.randint(low, high)
    return _stack("Drawer", along, tuple(round(0.75 - 0.2 * i, 2) for i in range(count)))


def _counter(rng: Random, appliances: list[str]) -> Unit:
    width = rng.choice((1.2, 1.6, 2.0))
    parts = [Part("CounterTop", width / 2, 0.95, 0.3)]
    parts += [Part(kind, width * (i + 1) / (len(appliances) + 1), 1.1, 0.2) for i, kind in enumerate(appliances)]
    parts += [Part("Cabinet", 0.3 + 0.6 * i, 2.0, 0.2) for i in range(rng.randint(0, 2))]
    parts += [Part("Cabinet", 0.3 + 0.6 * i, 0.4, 0.3) for i in range(rng.randint(0, 2))]
    parts += _drawers(rng, width - 0.25, 1, 3) if rng.random() < 0.6 else ()
    return Unit(width, 0.65, tuple(parts))


def _kitchen(rng: Random) -> Blueprint:
    counters = rng.randint(1, 2)
    appliances: list[list[str]] = [[] for _ in range(counters)]
    appliances[rng.randrange(counters)].append("Microwave")
    for kind, probability in (("CoffeeMachine", 0.8), ("Toaster", 0.5)):
        if rng.random() < probability:
            appliances[rng.randrange(counters)].append(kind)
    sink = [Part("SinkBasin", 0.5, 0.8, 0.35), Part("Faucet", 0.5, 1.1, 0.1)]
    sink += [Part("Cabinet", 0.25 + 0.5 * i, 0.4, 0.3) for i in range(rng.randint(0, 2))]
    burners = tuple(Part("StoveBurner", x, 0.95, z) for x in (0.2, 0.55) for z in (0.2, 0.45))
    walls = [single("Fridge", 0.9, 0.8, 0.9), Unit(1.0, 0.65, tuple(sink)), Unit(0.75, 0.65, burners)]
    walls += [_counter(rng, kinds) for kinds in appliances]
    walls += [single("GarbageCan", 0.45, 0.4, 0.2)] if rng.random() < 0.9 else []
    walls += [Unit(0.8, 0.35, _stack("Shelf", 0.4, (0.5, 1.0, 1.5)[: rng.randint(1, 3)]))] if rng.random() < 0.2 else []
    walls += [single("SideTable", 0.6, 0.5, 0.7)] if rng.random() < 0.15 else []
    middle = (single("DiningTable", 1.6, 0.9, 0.75),) if rng.random() < 0.55 else ()
    return Blueprint(tuple(walls), middle)


def _lamps(rng: Random) -> tuple[bool, bool]:
    """Draw whether there is a desk lamp and a floor lamp: mostly only one, so that "the lamp" is unambiguous."""
    draw = rng.random()
    return draw < 0.55, draw >= 0.45


def _side_table(rng: Random, lamp: bool) -> Unit:
    extra = [Part("DeskLamp", 0.15, 0.95, 0.2)] if lamp else []
    extra += _stack("Drawer", 0.3, (0.4,)) if rng.random() < 0.5 else ()
    return single("SideTable", 0.6, 0.5, 0.6, *extra)


def _bookcase(rng: Random) -> Unit:
    return Unit(0.9, 0.4, _stack("Shelf", 0.45, (0.3, 0.8, 1.3, 1.8)[: rng.randint(1, 4)], 0.2))


def _living_room(rng: Random) -> Blueprint:
    desk_lamp, floor_lamp = _lamps(rng)
    walls = [single("Sofa", 2.0, 0.9, 0.5), _side_table(rng, desk_lamp)]
    walls += [single("ArmChair", 0.9, 0.9, 0.5)] * rng.choice((0, 1, 1, 2))
    walls += [single("FloorLamp", 0.4, 0.4, 1.4)] if floor_lamp else []
    walls += [_side_table(rng, False)] if rng.random() < 0.5 else []
    if rng.random() < 0.5:
        walls.append(single("TVStand", 1.4, 0.45, 0.5, *_stack("Drawer", 0.4, (0.35, 0.15)[: rng.randint(0, 2)])))
    walls += [single("Dresser", 1.2, 0.5, 0.9, *_drawers(rng, 0.6, 1, 4))] if rng.random() < 0.5 else []
    for kind, probability, size in (("GarbageCan", 0.5, 0.4), ("Ottoman", 0.25, 0.6), ("Safe", 0.12, 0.5)):
        walls += [single(kind, size, size, 0.3)] if rng.random() < probability else []
    walls += [_bookcase(rng)] if rng.random() < 0.5 else []
    if rng.random() < 0.15:
        walls.append(Unit(1.2, 0.5, tuple(Part("Cabinet", 0.3 + 0.6 * i, 0.5, 0.3) for i in range(2))))
    middle = [single("CoffeeTable", 1.1, 0.6, 0.4)] if rng.random() < 0.85 else []
    if not middle or rng.random() < 0.3:
        middle.append(single("DiningTable", 1.6, 0.9, 0.75))
    return Blueprint(tuple(walls), tuple(middle))


def _bedroom(rng: Random) -> Blueprint:
    desk_lamp, floor_lamp = _lamps(rng)
    on_desk = desk_lamp and rng.random() < 0.5
    lamp = (Part("DeskLamp", 0.2, 1.05, 0.2),) if on_desk else ()
    walls = [single("Bed", 1.6, 2.0, 0.6), _side_table(rng, desk_lamp and not on_desk)]
    walls += [single("Desk", 1.3, 0.6, 0.75, *lamp, *_drawers(rng, 1.1, 1, 3))] if on_desk or rng.random() < 0.5 else []
    walls += [single("FloorLamp", 0.4, 0.4, 1.4)] if floor_lamp else []
    walls += [_side_table(rng, False)] if rng.random() < 0.4 else []
    walls += [single("Dresser", 1.2, 0.5, 0.9, *_drawers(rng, 0.6, 1, 5))] if rng.random() < 0.6 else []
    for kind, probability, size in (("GarbageCan", 0.5, 0.4), ("Safe", 0.2, 0.5), ("ArmChair", 0.2, 0.9)):
        walls += [single(kind, size, size, 0.3)] if rng.random() < probability else []
    walls += [single("LaundryHamper", 0.5, 0.5, 0.4)] if rng.random() < 0.2 else []
    walls += [_bookcase(rng)] if rng.random() < 0.65 else []
    if rng.random() < 0.15:
        walls.append(Unit(1.2, 0.6, tuple(Part("Cabinet", 0.3 + 0.6 * i, 0.9, 0.3) for i in range(2))))
    return Blueprint(tuple(walls), (single("DiningTable", 1.2, 0.8, 0.75),) if rng.random() < 0.12 else ())


def _vanity(rng: Random) -> Unit:
    basins = rng.choice((1, 1, 2))
    width = 0.8 + 0.7 * basins
    parts = [Part("CounterTop", width / 2, 0.85, 0.3)]
    for i in range(basins):
        parts += [Part("SinkBasin", 0.5 + 0.7 * i, 0.75, 0.3), Part("Faucet", 0.5 + 0.7 * i, 0.95, 0.1)]
    parts += [Part("Cabinet", 0.3 + 0.5 * i, 0.4, 0.3) for i in range(rng.randint(0, 3))]
    parts += _drawers(rng, width - 0.2, 1, 4) if rng.random() < 0.5 else ()
    return Unit(width, 0.6, tuple(parts))


def _bathroom(rng: Random) -> Blueprint:
    holder = (Part("ToiletPaperHanger", 0.1, 0.8, 0.1),) if rng.random() < 0.85 else ()
    walls = [single("Toilet", 0.8, 0.7, 0.7, *holder), _vanity(rng)]
    walls += [single("BathtubBasin", 1.7, 0.8, 0.3)] if rng.random() < 0.7 else []
    walls += [single("GarbageCan", 0.4, 0.4, 0.2)] if rng.random() < 0.9 else []
    for kind, probability, height in (("HandTowelHolder", 0.6, 1.4), ("TowelHolder", 0.5, 1.4), ("Cart", 0.2, 0.7)):
        walls += [single(kind, 0.5, 0.35, height)] if rng.random() < probability else []
    for kind, probability, size in (("SideTable", 0.1, 0.5), ("Dresser", 0.1, 1.0), ("LaundryHamper", 0.15, 0.5)):
        walls += [single(kind, size, 0.5, 0.7)] if rng.random() < probability else []
    if rng.random() < 0.4:
        walls.append(Unit(0.7, 0.3, _stack("Shelf", 0.35, (1.6, 1.3, 1.0)[: rng.randint(1, 3)], 0.15)))
    if rng.random() < 0.25:
        walls.append(Unit(0.6, 0.4, _stack("Cabinet", 0.3, (1.6, 0.6)[: rng.randint(1, 2)], 0.2)))
    return Blueprint(tuple(walls))


BLUEPRINTS = {"kitchen": _kitchen, "livingroom": _living_room, "bedroom": _bedroom, "bathroom": _bathroom}

# Weight of each object type in a room type, from its frequency in ALFRED.
OBJECT_WEIGHTS: dict[str, dict[str, float]] = {
    "kitchen": {
        "Apple": 3, "Bread": 2.5, "Egg": 2.5, "Lettuce": 2.5, "Potato": 3, "Tomato": 3, "Bowl": 2, "Cup": 2, "Mug": 2.5,
        "Plate": 2, "Pan": 2, "Pot": 2, "Knife": 2.5, "ButterKnife": 2.5, "Fork": 2, "Spoon": 2, "Spatula": 1.5,
        "Ladle": 1.2, "DishSponge": 2, "SaltShaker": 1.5, "PepperShaker": 1.5, "SoapBottle": 1.5, "Kettle": 1,
        "WineBottle": 1, "Glassbottle": 0.7, "Vase": 0.4, "Statue": 0.3, "Book": 0.4, "CreditCard": 0.3,
        "CellPhone": 0.4, "Pen": 0.3, "Pencil": 0.3, "SprayBottle": 0.4, "Cloth": 0.4, "PaperTowelRoll": 0.3,
    },
    "livingroom": {
        "Statue": 2, "CreditCard": 3, "RemoteControl": 3, "KeyChain": 3, "Vase": 2, "Laptop": 2, "Box": 2.5,
        "Pillow": 1.5, "Watch": 2, "Newspaper": 2, "Book": 1.5, "Plate": 1.2, "Bowl": 1.2, "WateringCan": 0.8,
        "CellPhone": 1.5, "TissueBox": 1.2, "Pencil": 1, "Pen": 1, "Candle": 1, "Mug": 0.6, "BasketBall": 0.5,
        "TennisRacket": 0.4, "BaseballBat": 0.3, "AlarmClock": 0.4, "CD": 0.5, "Boots": 0.3,
    },
    "bedroom": {
        "CreditCard": 2.5, "CD": 2.5, "Pencil": 2.5, "Pen": 2.5, "KeyChain": 2.5, "CellPhone": 2.5, "Book": 2.5,
        "AlarmClock": 2, "Pillow": 2, "Laptop": 1.8, "Mug": 2, "Bowl": 1.5, "BaseballBat": 0.7, "TennisRacket": 0.7,
        "BasketBall": 0.7, "Box": 1, "TeddyBear": 0.5, "RemoteControl": 1, "Vase": 0.6, "Cloth": 0.8, "Watch": 1,
        "TissueBox": 0.6, "Statue": 0.6, "Newspaper": 0.5, "Boots": 0.3, "SprayBottle": 0.2, "Plate": 0.4,
    },
    "bathroom": {
        "ToiletPaper": 3, "Candle": 2.5, "SprayBottle": 2.5, "SoapBar": 2.5, "SoapBottle": 2.5, "Cloth": 2.5,
        "HandTowel": 2, "Towel": 1, "ScrubBrush": 0.6, "Plunger": 1, "TissueBox": 1, "DishSponge": 1.2,
        "PaperTowelRoll": 0.2, "Newspaper": 0.2, "Vase": 0.3, "WateringCan": 0.2,
    },
}  # fmt: skip


# Weight of each receptacle type as a place for objects (default 1).
PLACE_WEIGHT = {
    "CounterTop": 4.0, "DiningTable": 4.0, "CoffeeTable": 3.0, "Desk": 3.0, "Dresser": 3.0, "SideTable": 2.0,
    "Shelf": 1.2, "Drawer": 1.3, "Cabinet": 1.3, "Fridge": 3.0, "Microwave": 0.4, "GarbageCan": 0.5, "Toaster": 0.0,
    "CoffeeMachine": 0.4, "Bed": 2.0, "Sofa": 1.5, "HandTowelHolder": 4.0, "TowelHolder": 4.0, "StoveBurner": 0.7,
    "ToiletPaperHanger": 1.5, "LaundryHamper": 0.5, "Safe": 0.6, "BathtubBasin": 0.7,
}  # fmt: skip

# Usable area of a receptacle, (width, depth) in metres; default 0.2 x 0.2.
SURFACES = {
    "CounterTop": (1.0, 0.4), "DiningTable": (1.4, 0.7), "CoffeeTable": (0.9, 0.4), "Desk": (1.0, 0.4),
    "Bed": (1.2, 1.6), "Sofa": (1.6, 0.5), "Dresser": (0.9, 0.3), "SideTable": (0.4, 0.3), "TVStand": (1.0, 0.3),
    "ArmChair": (0.5, 0.5), "Shelf": (0.6, 0.2), "SinkBasin": (0.3, 0.3), "BathtubBasin": (1.2, 0.4),
    "Fridge": (0.4, 0.3), "Ottoman": (0.4, 0.4), "StoveBurner": (0.0, 0.0), "CoffeeMachine": (0.0, 0.0),
    "ToiletPaperHanger": (0.0, 0.0), "HandTowelHolder": (0.0, 0.0),
}  # fmt: skip

FLOOR_TYPES = frozenset(
    {"BaseballBat", "BasketBall", "Boots", "Box", "PaperTowelRoll", "Plunger", "ScrubBrush", "TeddyBear"}
    | {"TennisRacket"}
)
HOLDS_ONE = frozenset({"StoveBurner", "CoffeeMachine", "ToiletPaperHanger", "HandTowelHolder", "TowelHolder"})

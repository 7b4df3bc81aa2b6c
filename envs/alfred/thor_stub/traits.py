"""Traits of AI2-THOR 5.0: its object types, rough sizes of their objects, and how ids and names are formed."""

from __future__ import annotations

import hashlib
from collections.abc import Container, Mapping
from functools import cache
from types import MappingProxyType
from typing import Any

from envs.alfred import objects
from envs.alfred.data.mining import official_id
from envs.alfred.objects import types
from envs.alfred.scene import Position

THOR5_TYPE_NAMES: Mapping[str, str] = MappingProxyType(
    {"Glassbottle": "Bottle", "PaperTowel": "PaperTowelRoll", "ToiletPaperRoll": "ToiletPaper"}
)
"""Names of ALFRED's types in 5.0, if different."""

OPENABLE = types("Book Box Cabinet Drawer Fridge Kettle Laptop LaundryHamper Microwave Safe Toilet")
OPEN_AT_FIRST = types("LaundryHamper")  # since the symbolic world has no action that opens it
OPEN_TO_PUT = types("Box Cabinet Drawer Fridge LaundryHamper Microwave")  # receptacles that refuse a put while closed
TOGGLEABLE = types(
    "Candle CellPhone CoffeeMachine DeskLamp Faucet FloorLamp Laptop LightSwitch Microwave StoveKnob Toaster"
)
DIRTYABLE = types("Bed Bowl Cloth Cup Mug Pan Plate Pot")
FILLABLE = types("Bottle Bowl Cup Kettle Mug Pot WateringCan WineBottle")
COOKABLE = types("BreadSliced Potato PotatoSliced")
BREAKABLE = types("Bottle Bowl CellPhone Cup Egg Laptop Mug Plate Statue Vase Window WineBottle")
USABLE = types("PaperTowelRoll SoapBottle TissueBox ToiletPaper")
MOVEABLE = types(
    """ArmChair Bed Cart Chair CoffeeMachine CoffeeTable Desk DeskLamp DiningTable Dresser FloorLamp GarbageCan
    LaundryHamper Microwave Ottoman SideTable Sofa TVStand Toaster"""
)
HOT = types("Candle Microwave StoveBurner Toaster")
RECEPTACLES = objects.RECEPTACLES | types("Floor Chair Sink Bathtub")
PICKUPABLE = (objects.PICKUPABLE - frozenset(THOR5_TYPE_NAMES)) | frozenset(THOR5_TYPE_NAMES.values())
FLOOR_STANDING = types(
    """ArmChair BathtubBasin Bed Cart CoffeeTable CounterTop Desk DiningTable Dresser FloorLamp Fridge GarbageCan
    LaundryHamper Ottoman SideTable Sofa TVStand Toilet"""
)

_SIZES: dict[str, tuple[float, float, float]] = {
    "Bed CounterTop DiningTable Sofa": (1.2, 0.5, 0.8),
    "ArmChair BathtubBasin CoffeeTable Desk Dresser TVStand": (0.8, 0.5, 0.6), "Fridge": (0.8, 1.8, 0.7),
    "FloorLamp": (0.3, 1.6, 0.3), "Microwave": (0.5, 0.3, 0.35), "Cabinet Drawer Shelf Window": (0.5, 0.3, 0.4),
    "Cart Chair GarbageCan LaundryHamper Ottoman Safe SideTable SinkBasin Toilet": (0.45, 0.45, 0.45),
    "StoveBurner": (0.25, 0.03, 0.25), "Box Laptop Pillow BaseballBat TennisRacket": (0.3, 0.2, 0.3),
    "Floor": (0.1, 0.01, 0.1), "LightSwitch StoveKnob": (0.06, 0.06, 0.03),
}  # fmt: skip
_SIZE = {kind: size for kinds, size in _SIZES.items() for kind in kinds.split()}
_INSIDE = {"SinkBasin": "Sink", "BathtubBasin": "Bathtub"}  # maps a basin's type to the type with which its ids begin
_SHIFT = 0.01  # metres added to x, so that ids differ from those of 2.1, as in AI2-THOR 5.0; also the step of `free_id`


@cache
def thor5_type(kind: str) -> str:
    """Return a type's name in 5.0."""
    return THOR5_TYPE_NAMES.get(kind, kind)


@cache
def size_of(kind: str) -> tuple[float, float, float]:
    """Return the rough width, height and depth of a type, in metres."""
    return _SIZE.get(kind) or ((0.12, 0.12, 0.12) if kind in PICKUPABLE else (0.3, 0.3, 0.3))


def is_loose(kind: str) -> bool:
    """Return whether a type is loose: ``SetObjectPoses`` removes such an object unless it is listed."""
    return kind in PICKUPABLE or kind in MOVEABLE


@cache
def template(kind: str) -> Mapping[str, Any]:
    """Return the metadata that all objects of a type share, with defaults for the rest. Do not modify the mapping."""
    moves = is_loose(kind)
    return {
        "name": "", "position": None, "rotation": None, "visible": False, "isInteractable": False,
        "receptacle": kind in RECEPTACLES, "toggleable": kind in TOGGLEABLE, "isToggled": False,
        "breakable": kind in BREAKABLE, "isBroken": False, "canFillWithLiquid": kind in FILLABLE,
        "isFilledWithLiquid": False, "fillLiquid": None, "dirtyable": kind in DIRTYABLE, "isDirty": False,
        "canBeUsedUp": kind in USABLE, "isUsedUp": False, "cookable": kind in COOKABLE, "isCooked": False,
        "temperature": "RoomTemp", "isHeatSource": kind in HOT, "isColdSource": kind == "Fridge",
        "sliceable": kind in objects.SLICEABLE, "isSliced": False, "openable": kind in OPENABLE, "isOpen": False,
        "openness": 0.0, "pickupable": kind in PICKUPABLE, "isPickedUp": False, "moveable": kind in MOVEABLE,
        "mass": 1.0 if moves else 0.0, "salientMaterials": ["Plastic"] if moves else None, "receptacleObjectIds": None,
        "distance": 0.0, "objectType": kind, "objectId": "", "assetId": "", "parentReceptacles": None,
        "controlledObjects": None, "isMoving": False, "axisAlignedBoundingBox": None, "objectOrientedBoundingBox": None,
    }  # fmt: skip


def object_id(kind: str, position: Position) -> str:
    """Return an id: "Mug|+00.13|+00.91|-01.20", "Sink|+00.13|+00.91|-01.20|SinkBasin"; ``kind`` is a name of 5.0."""
    x, y, z = position
    outer = _INSIDE.get(kind)
    base_id = official_id(outer or kind, (x + _SHIFT, y, z))
    return f"{base_id}|{kind}" if outer else base_id


def free_id(kind: str, position: Position, ids: Container[str]) -> str:
    """Return an unused id: the height in it is increased until the id is free."""
    x, y, z = position
    candidate = object_id(kind, position)
    while candidate in ids:
        y += _SHIFT
        candidate = object_id(kind, (x, y, z))
    return candidate


def game_name(scene: str, kind: str, object_id: str) -> str:
    """Return the name of the game object, the same in every process: "Mug_291e6e8a"."""
    return f"{kind}_{hashlib.sha256(f'{scene} {object_id}'.encode()).hexdigest()[:8]}"

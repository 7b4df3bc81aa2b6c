"""Types of fixtures and objects, grouped by ability as in ALFRED's gen/constants.py (commit f91f4c0), and their names.

Types are AI2-THOR's ("DeskLamp"). A sink holds things in its ``SinkBasin``, a bathtub in its ``BathtubBasin``.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import cache
from types import MappingProxyType

ROOMS = ("kitchen", "livingroom", "bedroom", "bathroom")


def types(names: str) -> frozenset[str]:
    """Return the set of types that ``names`` lists, separated by spaces."""
    return frozenset(names.split())


MOVABLE_RECEPTACLES = types("Bowl Box Cup Mug Plate Pan Pot")
CONTAINERS = types("Fridge Cabinet Microwave Drawer Safe Box")  # types that hide their content while closed
OPENABLE = CONTAINERS | {"Laptop"}
STARTS_OPEN = types("Box Laptop")  # ALFRED's plans never open a box; they close a laptop before picking it up
LAMPS = types("DeskLamp FloorLamp")
TOGGLEABLE = LAMPS | {"Faucet", "Microwave"}
KNIVES = types("Knife ButterKnife")
SLICEABLE = types("Apple Bread Lettuce Potato Tomato")  # ALFRED lists Egg too, but no plan cuts one
SLICED = frozenset(f"{name}Sliced" for name in SLICEABLE)
SLICES = 3  # number of pieces of every cut in the symbolic world; AI2-THOR's number varies from cut to cut
HEATABLE = types("Apple Bread Potato Tomato AppleSliced BreadSliced PotatoSliced TomatoSliced Cup Egg Mug Plate")
COOLABLE = SLICED | types("Apple Bread Lettuce Potato Tomato Bowl Cup Egg Mug Pan Plate Pot WineBottle")
CLEANABLE = (SLICED - {"BreadSliced"}) | types(
    """Apple Lettuce Potato Tomato Bowl ButterKnife Cloth Cup DishSponge Egg Fork Kettle Knife Ladle Mug Pan Plate Pot
    SoapBar Spatula Spoon"""
)
LOTA_PICKUPABLE = types(
    """AlarmClock Apple BaseballBat BasketBall Book Bowl Box Bread ButterKnife CD Candle CellPhone Cloth CreditCard Cup
    DishSponge Egg Fork Glassbottle HandTowel Kettle KeyChain Knife Ladle Laptop Lettuce Mug Newspaper Pan Pen Pencil
    PepperShaker Pillow Plate Plunger Pot Potato RemoteControl SaltShaker SoapBar SoapBottle Spatula Spoon SprayBottle
    Statue TennisRacket TissueBox ToiletPaper Tomato Vase Watch WateringCan WineBottle"""
)
PICKUPABLE = (LOTA_PICKUPABLE | SLICED) | types(
    "Boots Footstool PaperTowel PaperTowelRoll ScrubBrush TeddyBear ToiletPaperRoll Towel"
)

_ACCEPTED: dict[str, str] = {
    "ArmChair Ottoman Sofa": """
        BasketBall Book Box CellPhone Cloth CreditCard KeyChain Laptop Newspaper Pillow RemoteControl""",
    "BathtubBasin": "Cloth DishSponge HandTowel SoapBar",
    "Bed": "BaseballBat BasketBall Book CellPhone Laptop Newspaper Pillow TennisRacket",
    "Bowl": """
        Apple AppleSliced ButterKnife CD Candle CellPhone Cloth CreditCard DishSponge Egg Fork KeyChain Knife Ladle
        Lettuce LettuceSliced Mug PaperTowel Pen Pencil Potato PotatoSliced RemoteControl Spatula Spoon Tomato
        TomatoSliced Watch""",
    "Box": """
        AlarmClock Book CD Candle CellPhone Cloth CreditCard DishSponge Glassbottle KeyChain Mug PaperTowel Pen Pencil
        RemoteControl Statue TissueBox Vase Watch""",
    "Cabinet": """
        Book Bowl Box CD Candle Cloth Cup DishSponge Glassbottle HandTowel Kettle Ladle Mug Newspaper Pan PepperShaker
        Plate Plunger Pot SaltShaker SoapBar SoapBottle SprayBottle TissueBox ToiletPaper ToiletPaperRoll Vase
        WateringCan WineBottle""",
    "Cart": """
        Candle Cloth DishSponge HandTowel Mug PaperTowel Plunger SoapBar SoapBottle SprayBottle Statue TissueBox
        ToiletPaper ToiletPaperRoll Vase""",
    "CoffeeMachine": "Mug",
    "CoffeeTable CounterTop DiningTable SideTable": """
        AlarmClock Apple AppleSliced BaseballBat BasketBall Book Bowl Box Bread BreadSliced ButterKnife CD Candle
        CellPhone Cloth CreditCard Cup DishSponge Egg Fork Glassbottle HandTowel Kettle KeyChain Knife Ladle Laptop
        Lettuce LettuceSliced Mug Newspaper Pan PaperTowel Pen Pencil PepperShaker Plate Pot Potato PotatoSliced
        RemoteControl SaltShaker SoapBar SoapBottle Spatula Spoon SprayBottle Statue TennisRacket TissueBox ToiletPaper
        ToiletPaperRoll Tomato TomatoSliced Vase Watch WateringCan WineBottle""",
    "Cup": "ButterKnife Fork Spoon",
    "Desk": """
        AlarmClock BasketBall Book Bowl Box CD Candle CellPhone Cloth CreditCard Cup Glassbottle KeyChain Laptop Mug
        Newspaper Pen Pencil Plate RemoteControl SoapBottle SprayBottle Statue TennisRacket TissueBox ToiletPaper
        ToiletPaperRoll Vase Watch WateringCan WineBottle""",
    "Drawer": """
        Book ButterKnife CD Candle CellPhone Cloth CreditCard DishSponge Fork HandTowel KeyChain Knife Ladle Newspaper
        Pen Pencil PepperShaker RemoteControl SaltShaker SoapBar SoapBottle Spatula Spoon SprayBottle TissueBox
        ToiletPaper ToiletPaperRoll Watch WateringCan""",
    "Dresser": """
        AlarmClock BasketBall Book Bowl Box CD Candle CellPhone Cloth CreditCard Cup Glassbottle KeyChain Laptop Mug
        Newspaper Pen Pencil Plate RemoteControl SprayBottle Statue TennisRacket TissueBox ToiletPaper ToiletPaperRoll
        Vase Watch WateringCan WineBottle""",
    "Fridge": """
        Apple AppleSliced Bowl Bread BreadSliced Cup Egg Glassbottle Lettuce LettuceSliced Mug Pan Plate Pot Potato
        PotatoSliced Tomato TomatoSliced WineBottle""",
    "GarbageCan": """
        Apple AppleSliced Bread BreadSliced CD Cloth DishSponge Egg HandTowel Lettuce LettuceSliced Newspaper
        PaperTowel Pen Pencil Potato PotatoSliced SoapBar SoapBottle SprayBottle TissueBox ToiletPaper ToiletPaperRoll
        Tomato TomatoSliced WineBottle""",
    "HandTowelHolder": "HandTowel",
    "LaundryHamper": "Cloth",
    "Microwave": """
        Apple AppleSliced Bowl Bread BreadSliced Cup Egg Glassbottle Mug Plate Potato PotatoSliced Tomato
        TomatoSliced""",
    "Mug": "ButterKnife Fork KeyChain Knife Pen Pencil Spoon Watch",
    "Pan Pot": """
        Apple AppleSliced ButterKnife DishSponge Egg Fork Knife Ladle Lettuce LettuceSliced Potato PotatoSliced Spatula
        Spoon Tomato TomatoSliced""",
    "Plate": """
        AlarmClock Apple AppleSliced Book ButterKnife CD Candle CellPhone Cloth CreditCard DishSponge Egg Fork
        Glassbottle KeyChain Knife Ladle Lettuce LettuceSliced Mug PaperTowel Pen Pencil Potato PotatoSliced Spatula
        Spoon TissueBox Tomato TomatoSliced Watch""",
    "Safe": "CD CellPhone CreditCard KeyChain Statue Vase Watch",
    "Shelf": """
        AlarmClock Book Bowl Box CD Candle CellPhone Cloth CreditCard Cup DishSponge Glassbottle HandTowel Kettle
        KeyChain Mug Newspaper PaperTowel Pen Pencil PepperShaker Plate Pot RemoteControl SaltShaker SoapBar SoapBottle
        SprayBottle Statue TissueBox ToiletPaper ToiletPaperRoll Vase Watch WateringCan WineBottle""",
    "SinkBasin": """
        Apple AppleSliced Bowl ButterKnife Cloth Cup DishSponge Egg Fork Glassbottle HandTowel Kettle Knife Ladle
        Lettuce LettuceSliced Mug Pan Plate Pot Potato PotatoSliced SoapBar Spatula Spoon Tomato TomatoSliced""",
    "StoveBurner": "Kettle Pan Pot",
    "TVStand": "TissueBox",
    "Toaster": "BreadSliced",
    "Toilet": """
        Candle Cloth DishSponge HandTowel Newspaper PaperTowel SoapBar SoapBottle SprayBottle TissueBox ToiletPaper
        ToiletPaperRoll""",
    "ToiletPaperHanger": "ToiletPaper ToiletPaperRoll",
    "TowelHolder": "Towel",
}
ACCEPTED: Mapping[str, frozenset[str]] = MappingProxyType(
    {name: types(content) for names, content in _ACCEPTED.items() for name in names.split()}
)
"""Maps a receptacle type to the object types that ALFRED's goals and plans put there. AI2-THOR does not check this."""

RECEPTACLES = frozenset(ACCEPTED)
FIXTURES = (RECEPTACLES - MOVABLE_RECEPTACLES) | TOGGLEABLE
KNOWN_TYPES = FIXTURES | PICKUPABLE


def accepts(receptacle_type: str) -> frozenset[str]:
    """Return the object types that ALFRED puts into this receptacle type; empty if the type is not a receptacle."""
    return ACCEPTED.get(receptacle_type, frozenset())


def may_hold(receptacle_type: str, object_type: str) -> bool:
    """Return whether a goal may combine the types: `ACCEPTED` allows it, and not both are movable receptacles."""
    nested = receptacle_type in MOVABLE_RECEPTACLES and object_type in MOVABLE_RECEPTACLES
    return object_type in accepts(receptacle_type) and not nested


@cache
def whole_type(object_type: str) -> str:
    """Return the type that a slice was cut from: "AppleSliced" -> "Apple"; other types are returned unchanged."""
    return object_type.removesuffix("Sliced") if object_type in SLICED else object_type


@cache
def id_type(object_type: str) -> str:
    """Return the type part of an instance id: "AlarmClock" -> "alarmclock"."""
    return object_type.lower()


@cache
def lota_words(object_type: str) -> str:
    """Return the LoTA-Bench name of a type: "AlarmClock" -> "alarm clock", "CD" -> "CD", "SinkBasin" -> "sink"."""
    short = object_type.removesuffix("Basin")
    return short if short.isupper() else " ".join(re.findall(r"[A-Z]+(?![a-z])|[A-Z][a-z]*", short)).lower()


@cache
def name_of(thing_id: str) -> str:
    """Return an instance's name in grounded skills: "cabinet_3" -> "cabinet 3"."""
    return thing_id.replace("_", " ")

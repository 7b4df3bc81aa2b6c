"""Catalog of the classes in embedded apartments: category, properties and size.

Class names and properties are those of the newer simulator: ``properties_data_all.json`` of VirtualHome 58970fd (MIT),
and its graphs for the few classes that the file leaves out. Sizes are our own estimates.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from envs.wah.graph import Vector
from keep_agent.errors import DataError


@dataclass(frozen=True, slots=True)
class Kind:
    """A class of things. ``size``: metres along x, y (up) and z, with the back to a wall along x."""

    category: str
    properties: tuple[str, ...]
    size: Vector


def kind_of(class_name: str) -> Kind:
    """Return the kind of a class. Raises DataError for a class that no embedded apartment has."""
    try:
        return KINDS[class_name]
    except KeyError:
        raise DataError(
            f"no class {class_name!r} in the embedded apartments; envs.wah.apartments.catalog.KINDS lists them"
        ) from None


# States that the properties allow but the simulator never reports.
_NEVER: Mapping[str, str] = {"coffeemaker": "CLOSED", "fridge": "OFF", "radio": "CLOSED"}


def default_states(class_name: str) -> tuple[str, ...]:
    """Return the initial states, sorted: closed and off, except that doors are open, lamps and light switches on."""
    kind = kind_of(class_name)
    states = set()
    if "CAN_OPEN" in kind.properties:
        states.add("OPEN" if kind.category == "Doors" else "CLOSED")
    if "HAS_SWITCH" in kind.properties:
        states.add("ON" if kind.category == "Lamps" or class_name == "lightswitch" else "OFF")
    return tuple(sorted(states - {_NEVER.get(class_name)}))


def _kind(category: str, properties: str, *size: float) -> Kind:
    return Kind(category, tuple(properties.split()), (size[0], size[1], size[2]))


KINDS: Mapping[str, Kind] = {
    # Rooms and parts of the building
    "character": _kind("Characters", "", 0.5, 1.7, 0.5),
    "kitchen": _kind("Rooms", "", 6, 2.8, 6),
    "livingroom": _kind("Rooms", "", 6, 2.8, 6),
    "bedroom": _kind("Rooms", "", 6, 2.8, 6),
    "bathroom": _kind("Rooms", "", 6, 2.8, 6),
    "floor": _kind("Floor", "SURFACES", 2, 0.1, 2),
    "wall": _kind("Walls", "", 2, 2.8, 0.1),
    "ceiling": _kind("Ceiling", "", 2, 0.1, 2),
    "door": _kind("Doors", "CAN_OPEN", 0.9, 2.1, 0.1),
    "doorjamb": _kind("Doors", "", 1, 2.2, 0.2),
    "window": _kind("Windows", "CAN_OPEN", 1.4, 1.3, 0.1),
    # Furniture on the floor; the height of seats is that of the sitting surface, so that things on them touch it
    "bathroomcounter": _kind("Furniture", "SURFACES", 1.4, 0.85, 0.55),
    "bathtub": _kind("Furniture", "LIEABLE SITTABLE", 1.7, 0.55, 0.8),
    "bed": _kind("Furniture", "LIEABLE SITTABLE SURFACES", 1.7, 0.5, 2.1),
    "bench": _kind("Furniture", "LIEABLE MOVABLE SITTABLE SURFACES", 1.2, 0.45, 0.4),
    "bookshelf": _kind("Furniture", "CONTAINERS SURFACES", 1, 1.8, 0.35),
    "cabinet": _kind("Furniture", "CAN_OPEN CONTAINERS SURFACES", 1.2, 0.9, 0.45),
    "chair": _kind("Furniture", "GRABBABLE MOVABLE SITTABLE SURFACES", 0.45, 0.45, 0.45),
    "closet": _kind("Furniture", "CAN_OPEN CONTAINERS", 1.5, 2.2, 0.6),
    "coatrack": _kind("Furniture", "GRABBABLE HANGABLE MOVABLE", 0.4, 1.7, 0.4),
    "coffeetable": _kind("Furniture", "MOVABLE SURFACES", 1.1, 0.4, 0.6),
    "desk": _kind("Furniture", "CAN_OPEN MOVABLE SURFACES", 1.5, 0.75, 0.7),
    "garbagecan": _kind("Furniture", "CAN_OPEN CONTAINERS MOVABLE", 0.3, 0.5, 0.3),
    "kitchencounter": _kind("Furniture", "SURFACES", 1.8, 0.9, 0.6),
    "kitchentable": _kind("Furniture", "MOVABLE SURFACES", 1.6, 0.75, 0.9),
    "nightstand": _kind("Furniture", "CAN_OPEN CONTAINERS SURFACES", 0.5, 0.55, 0.45),
    "sofa": _kind("Furniture", "LIEABLE MOVABLE SITTABLE SURFACES", 2, 0.45, 0.9),
    "stall": _kind("Furniture", "", 0.9, 2.1, 0.9),
    "standingmirror": _kind("Furniture", "", 0.6, 1.7, 0.3),
    "toilet": _kind("Furniture", "CAN_OPEN CONTAINERS SITTABLE", 0.45, 0.75, 0.7),
    "tvstand": _kind("Furniture", "MOVABLE SURFACES", 1.5, 0.5, 0.45),
    # Furniture on walls or built into other furniture
    "bathroomcabinet": _kind("Furniture", "CAN_OPEN CONTAINERS SURFACES", 0.8, 0.7, 0.2),
    "faucet": _kind("Furniture", "HAS_SWITCH", 0.1, 0.25, 0.2),
    "kitchencabinet": _kind("Furniture", "CAN_OPEN CONTAINERS SURFACES", 0.6, 0.7, 0.35),
    "kitchencounterdrawer": _kind("Furniture", "", 0.45, 0.2, 0.5),
    "sink": _kind("Furniture", "CONTAINERS RECIPIENT", 0.5, 0.15, 0.4),
    "towelrack": _kind("Furniture", "GRABBABLE MOVABLE SURFACES", 0.7, 0.1, 0.1),
    "wallshelf": _kind("Furniture", "", 0.9, 0.05, 0.25),
    # Appliances and electronics
    "coffeemaker": _kind("Appliances", "CAN_OPEN CONTAINERS HAS_PLUG HAS_SWITCH MOVABLE RECIPIENT", 0.25, 0.35, 0.3),
    "dishwasher": _kind("Appliances", "CAN_OPEN CONTAINERS HAS_SWITCH", 0.6, 0.85, 0.6),
    "fridge": _kind("Appliances", "CAN_OPEN CONTAINERS HAS_PLUG HAS_SWITCH", 0.8, 1.8, 0.7),
    "microwave": _kind("Appliances", "CAN_OPEN CONTAINERS HAS_PLUG HAS_SWITCH", 0.5, 0.3, 0.4),
    "oventray": _kind("Appliances", "GRABBABLE MOVABLE SURFACES", 0.45, 0.05, 0.4),
    "stove": _kind("Appliances", "CAN_OPEN CONTAINERS HAS_SWITCH SURFACES", 0.7, 0.9, 0.6),
    "stovefan": _kind("Appliances", "", 0.7, 0.5, 0.45),
    "toaster": _kind("Appliances", "CONTAINERS HAS_PLUG HAS_SWITCH MOVABLE", 0.3, 0.2, 0.2),
    "washingmachine": _kind("Appliances", "CAN_OPEN CONTAINERS HAS_PLUG HAS_SWITCH RECIPIENT", 0.6, 0.85, 0.6),
    "amplifier": _kind("Electronics", "", 0.5, 0.5, 0.3),
    "ceilingfan": _kind("Electronics", "", 1, 0.3, 1),
    "clock": _kind("Electronics", "GRABBABLE HAS_PLUG HAS_SWITCH LOOKABLE MOVABLE", 0.15, 0.2, 0.1),
    "computer": _kind("Electronics", "HAS_SWITCH LOOKABLE", 0.2, 0.4, 0.4),
    "cpuscreen": _kind("Electronics", "", 0.5, 0.4, 0.15),
    "keyboard": _kind("Electronics", "GRABBABLE HAS_PLUG MOVABLE", 0.4, 0.03, 0.15),
    "lightswitch": _kind("Electronics", "HAS_PLUG HAS_SWITCH", 0.1, 0.1, 0.02),
    "mouse": _kind("Electronics", "GRABBABLE HAS_PLUG MOVABLE", 0.06, 0.04, 0.1),
    "mousemat": _kind("Electronics", "MOVABLE SURFACES", 0.25, 0.01, 0.2),
    "powersocket": _kind("Electronics", "", 0.1, 0.1, 0.02),
    "radio": _kind("Electronics", "CAN_OPEN GRABBABLE HAS_PLUG HAS_SWITCH MOVABLE SURFACES", 0.3, 0.2, 0.15),
    "speaker": _kind("Electronics", "", 0.2, 0.4, 0.25),
    "tv": _kind("Electronics", "HAS_PLUG HAS_SWITCH LOOKABLE", 1.1, 0.65, 0.1),
    "wallphone": _kind("Electronics", "GRABBABLE HAS_PLUG HAS_SWITCH MOVABLE", 0.15, 0.25, 0.1),
    "ceilinglamp": _kind("Lamps", "", 0.4, 0.2, 0.4),
    "tablelamp": _kind("Lamps", "HAS_PLUG HAS_SWITCH", 0.25, 0.45, 0.25),
    "walllamp": _kind("Lamps", "", 0.15, 0.25, 0.15),
    # Decor
    "candle": _kind("Decor", "GRABBABLE HAS_SWITCH MOVABLE", 0.08, 0.12, 0.08),
    "curtains": _kind("Decor", "CAN_OPEN COVER_OBJECT MOVABLE", 1.6, 1.5, 0.1),
    "globe": _kind("Decor", "GRABBABLE MOVABLE", 0.3, 0.4, 0.3),
    "orchid": _kind("Decor", "", 0.25, 0.5, 0.25),
    "photoframe": _kind("Props", "", 0.15, 0.2, 0.05),
    "pillow": _kind("Decor", "GRABBABLE MOVABLE", 0.5, 0.15, 0.4),
    "rug": _kind("Decor", "GRABBABLE LIEABLE MOVABLE SITTABLE SURFACES", 2, 0.02, 1.4),
    "vase": _kind("Decor", "", 0.15, 0.35, 0.15),
    "wallpictureframe": _kind("Decor", "GRABBABLE HANGABLE HAS_PAPER MOVABLE", 0.6, 0.5, 0.03),
    # Food and drink
    "alcohol": _kind("Food", "DRINKABLE GRABBABLE MOVABLE POURABLE", 0.08, 0.3, 0.08),
    "apple": _kind("Food", "GRABBABLE MOVABLE", 0.08, 0.08, 0.08),
    "bananas": _kind("Food", "GRABBABLE MOVABLE", 0.2, 0.1, 0.15),
    "bellpepper": _kind("Food", "GRABBABLE MOVABLE", 0.1, 0.1, 0.1),
    "bottlewater": _kind("Food", "DRINKABLE POURABLE", 0.08, 0.25, 0.08),
    "breadslice": _kind("Food", "CUTTABLE EATABLE GRABBABLE MOVABLE", 0.12, 0.12, 0.02),
    "candybar": _kind("Food", "EATABLE GRABBABLE MOVABLE", 0.15, 0.02, 0.05),
    "carrot": _kind("Food", "CUTTABLE EATABLE GRABBABLE MOVABLE", 0.2, 0.04, 0.04),
    "cereal": _kind("Food", "EATABLE GRABBABLE MOVABLE", 0.2, 0.3, 0.08),
    "chicken": _kind("Food", "GRABBABLE MOVABLE", 0.25, 0.12, 0.2),
    "chips": _kind("Food", "GRABBABLE MOVABLE", 0.2, 0.25, 0.08),
    "chocolatesyrup": _kind("Food", "CUTTABLE EATABLE GRABBABLE MOVABLE", 0.08, 0.2, 0.08),
    "crackers": _kind("Food", "GRABBABLE MOVABLE", 0.15, 0.2, 0.06),
    "creamybuns": _kind("Food", "CUTTABLE EATABLE GRABBABLE MOVABLE", 0.12, 0.08, 0.12),
    "cupcake": _kind("Food", "EATABLE GRABBABLE MOVABLE", 0.08, 0.08, 0.08),
    "cutlets": _kind("Food", "GRABBABLE MOVABLE", 0.2, 0.05, 0.15),
    "juice": _kind("Food", "DRINKABLE GRABBABLE MOVABLE POURABLE", 0.1, 0.25, 0.1),
    "lemon": _kind("Food", "GRABBABLE MOVABLE", 0.08, 0.06, 0.06),
    "lime": _kind("Food", "GRABBABLE MOVABLE", 0.06, 0.06, 0.06),
    "milk": _kind("Food", "CAN_OPEN DRINKABLE GRABBABLE MOVABLE POURABLE", 0.1, 0.25, 0.1),
    "mincedmeat": _kind("Food", "GRABBABLE MOVABLE", 0.2, 0.06, 0.15),
    "pancake": _kind("Food", "CUTTABLE EATABLE GRABBABLE MOVABLE", 0.18, 0.05, 0.18),
    "pear": _kind("Food", "GRABBABLE MOVABLE", 0.08, 0.12, 0.08),
    "pie": _kind("Food", "CUTTABLE EATABLE GRABBABLE MOVABLE", 0.25, 0.06, 0.25),
    "plum": _kind("Food", "GRABBABLE MOVABLE", 0.06, 0.06, 0.06),
    "potato": _kind("Food", "GRABBABLE MOVABLE", 0.1, 0.06, 0.08),
    "poundcake": _kind("Food", "EATABLE GRABBABLE MOVABLE", 0.25, 0.1, 0.12),
    "pudding": _kind("Food", "CUTTABLE EATABLE GRABBABLE MOVABLE", 0.1, 0.08, 0.1),
    "salad": _kind("Food", "CUTTABLE EATABLE GRABBABLE MOVABLE", 0.2, 0.1, 0.2),
    "salmon": _kind("Food", "GRABBABLE MOVABLE", 0.3, 0.05, 0.15),
    "sundae": _kind("Food", "CUTTABLE EATABLE GRABBABLE MOVABLE", 0.1, 0.15, 0.1),
    "tomato": _kind("Food", "GRABBABLE MOVABLE", 0.08, 0.08, 0.08),
    "whippedcream": _kind("Food", "CUTTABLE EATABLE GRABBABLE MOVABLE", 0.07, 0.2, 0.07),
    "wine": _kind("Food", "DRINKABLE GRABBABLE MOVABLE POURABLE", 0.08, 0.32, 0.08),
    # Props
    "barsoap": _kind("Props", "CREAM GRABBABLE MOVABLE", 0.08, 0.04, 0.06),
    "boardgame": _kind("Props", "GRABBABLE LOOKABLE MOVABLE SURFACES", 0.4, 0.08, 0.3),
    "book": _kind("Props", "CAN_OPEN CUTTABLE GRABBABLE HAS_PAPER MOVABLE READABLE", 0.15, 0.04, 0.2),
    "box": _kind("Props", "CAN_OPEN CONTAINERS COVER_OBJECT GRABBABLE MOVABLE RECIPIENT", 0.3, 0.2, 0.25),
    "cellphone": _kind("Props", "GRABBABLE HAS_PLUG HAS_SWITCH MOVABLE", 0.08, 0.02, 0.15),
    "clothespants": _kind("Props", "CLOTHES GRABBABLE HANGABLE MOVABLE", 0.4, 0.06, 0.3),
    "clothespile": _kind("Props", "CAN_OPEN CONTAINERS GRABBABLE MOVABLE", 0.4, 0.1, 0.3),
    "clothesshirt": _kind("Props", "CLOTHES GRABBABLE HANGABLE MOVABLE", 0.4, 0.05, 0.3),
    "coffeepot": _kind("Props", "CAN_OPEN GRABBABLE MOVABLE RECIPIENT", 0.15, 0.2, 0.15),
    "condimentbottle": _kind("Props", "CREAM GRABBABLE MOVABLE POURABLE", 0.06, 0.2, 0.06),
    "condimentshaker": _kind("Props", "EATABLE GRABBABLE MOVABLE POURABLE", 0.05, 0.1, 0.05),
    "cookingpot": _kind("Props", "CAN_OPEN GRABBABLE MOVABLE RECIPIENT", 0.3, 0.2, 0.25),
    "crayons": _kind("Props", "GRABBABLE MOVABLE", 0.12, 0.03, 0.1),
    "cutleryfork": _kind("Props", "GRABBABLE MOVABLE", 0.03, 0.02, 0.2),
    "cutleryknife": _kind("Props", "GRABBABLE MOVABLE", 0.03, 0.02, 0.22),
    "cuttingboard": _kind("Props", "GRABBABLE MOVABLE SURFACES", 0.4, 0.02, 0.25),
    "deodorant": _kind("Props", "", 0.06, 0.15, 0.06),
    "dishbowl": _kind("Props", "GRABBABLE MOVABLE RECIPIENT", 0.16, 0.07, 0.16),
    "dishwashingliquid": _kind("Props", "CREAM GRABBABLE MOVABLE POURABLE", 0.08, 0.22, 0.06),
    "facecream": _kind("Props", "CREAM GRABBABLE MOVABLE POURABLE", 0.07, 0.06, 0.07),
    "folder": _kind("Props", "CAN_OPEN CONTAINERS GRABBABLE HAS_PAPER MOVABLE READABLE", 0.25, 0.03, 0.32),
    "fryingpan": _kind("Props", "CONTAINERS GRABBABLE MOVABLE RECIPIENT SURFACES", 0.3, 0.06, 0.45),
    "glasses": _kind("Props", "CLOTHES GRABBABLE MOVABLE", 0.14, 0.05, 0.05),
    "hairproduct": _kind("Props", "CAN_OPEN GRABBABLE MOVABLE POURABLE", 0.07, 0.2, 0.07),
    "hanger": _kind("Props", "GRABBABLE HANGABLE MOVABLE", 0.4, 0.2, 0.03),
    "knifeblock": _kind("Props", "", 0.12, 0.22, 0.18),
    "lotionbottle": _kind("Props", "CAN_OPEN GRABBABLE MOVABLE POURABLE", 0.07, 0.18, 0.07),
    "magazine": _kind("Props", "CAN_OPEN COVER_OBJECT GRABBABLE HAS_PAPER MOVABLE READABLE", 0.22, 0.01, 0.28),
    "mug": _kind("Props", "GRABBABLE MOVABLE POURABLE RECIPIENT", 0.1, 0.1, 0.08),
    "notes": _kind("Props", "GRABBABLE HAS_PAPER MOVABLE READABLE", 0.1, 0.02, 0.1),
    "painkillers": _kind("Props", "", 0.06, 0.08, 0.06),
    "paper": _kind("Props", "GRABBABLE HAS_PAPER MOVABLE READABLE", 0.21, 0.01, 0.3),
    "perfume": _kind("Props", "", 0.06, 0.12, 0.06),
    "plate": _kind("Props", "GRABBABLE MOVABLE RECIPIENT SURFACES", 0.25, 0.03, 0.25),
    "remotecontrol": _kind("Props", "GRABBABLE HAS_SWITCH MOVABLE", 0.05, 0.03, 0.18),
    "slippers": _kind("Props", "CLOTHES GRABBABLE HANGABLE MOVABLE", 0.25, 0.08, 0.28),
    "sportsball": _kind("Props", "GRABBABLE MOVABLE", 0.22, 0.22, 0.22),
    "teddybear": _kind("Props", "GRABBABLE MOVABLE", 0.25, 0.3, 0.2),
    "toiletpaper": _kind("Props", "COVER_OBJECT CUTTABLE GRABBABLE HANGABLE HAS_PAPER MOVABLE", 0.12, 0.1, 0.12),
    "toothbrush": _kind("Props", "GRABBABLE MOVABLE RECIPIENT", 0.02, 0.02, 0.18),
    "toothpaste": _kind("Props", "CAN_OPEN CREAM GRABBABLE MOVABLE POURABLE", 0.04, 0.04, 0.16),
    "towel": _kind("Props", "COVER_OBJECT GRABBABLE MOVABLE", 0.35, 0.06, 0.25),
    "toy": _kind("Props", "GRABBABLE MOVABLE", 0.15, 0.12, 0.15),
    "washingsponge": _kind("Props", "GRABBABLE MOVABLE", 0.1, 0.04, 0.07),
    "waterglass": _kind("Props", "GRABBABLE MOVABLE POURABLE RECIPIENT", 0.07, 0.12, 0.07),
    "wineglass": _kind("Props", "GRABBABLE MOVABLE POURABLE RECIPIENT", 0.08, 0.2, 0.08),
}

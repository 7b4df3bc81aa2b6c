"""Catalog of the classes in generated apartments: category, properties and size.

Class names and properties are those of the simulator since 2.0. Their source is ``properties_data_all.json`` of
VirtualHome 58970fd (MIT licence); classes missing there are taken from the simulator's graphs. Sizes are estimates.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from envs.wah.graph import Vector
from keep_agent.errors import DataError


@dataclass(frozen=True, slots=True)
class ObjectClass:
    """A class of nodes. ``size``: width, height and depth in metres; the depth is measured from back to front."""

    category: str
    properties: tuple[str, ...]
    size: Vector


def object_class(class_name: str) -> ObjectClass:
    """Return the entry of a class. Raises DataError for a class that no generated apartment has."""
    try:
        return CLASSES[class_name]
    except KeyError:
        raise DataError(
            f"no class {class_name!r} in the embedded apartments; envs.wah.apartments.catalog.CLASSES lists them"
        ) from None


# By class: a state that its properties allow, but that the simulator never reports.
_UNUSED_STATES: Mapping[str, str] = {"coffeemaker": "CLOSED", "fridge": "OFF", "radio": "CLOSED"}


def default_states(class_name: str) -> tuple[str, ...]:
    """Return the initial states, sorted: doors are open, lamps and light switches on, other things closed and off."""
    kind = object_class(class_name)
    states = set()
    if "CAN_OPEN" in kind.properties:
        states.add("OPEN" if kind.category == "Doors" else "CLOSED")
    if "HAS_SWITCH" in kind.properties:
        states.add("ON" if kind.category == "Lamps" or class_name == "lightswitch" else "OFF")
    return tuple(sorted(states - {_UNUSED_STATES.get(class_name)}))


def _parse_class(category: str, words: list[str]) -> ObjectClass:
    width, height, depth = (float(word) if "." in word else int(word) for word in words[:3])
    return ObjectClass(category, tuple(words[3:]), (width, height, depth))


# Classes by category: name, size and properties. The height of a seat is that of its sitting surface, so that things
# placed on the top of its box touch the seat.
_CLASS_TABLE: Mapping[str, str] = {
    "Characters": "character 0.5 1.7 0.5",
    "Rooms": "kitchen 6 2.8 6; livingroom 6 2.8 6; bedroom 6 2.8 6; bathroom 6 2.8 6",
    "Floor": "floor 2 0.1 2 SURFACES",
    "Walls": "wall 2 2.8 0.1",
    "Ceiling": "ceiling 2 0.1 2",
    "Doors": "door 0.9 2.1 0.1 CAN_OPEN; doorjamb 1 2.2 0.2",
    "Windows": "window 1.4 1.3 0.1 CAN_OPEN",
    "Furniture": """
        bathroomcounter 1.4 0.85 0.55 SURFACES; bathtub 1.7 0.55 0.8 LIEABLE SITTABLE;
        bed 1.7 0.5 2.1 LIEABLE SITTABLE SURFACES; bench 1.2 0.45 0.4 LIEABLE MOVABLE SITTABLE SURFACES;
        bookshelf 1 1.8 0.35 CONTAINERS SURFACES; cabinet 1.2 0.9 0.45 CAN_OPEN CONTAINERS SURFACES;
        chair 0.45 0.45 0.45 GRABBABLE MOVABLE SITTABLE SURFACES; closet 1.5 2.2 0.6 CAN_OPEN CONTAINERS;
        coatrack 0.4 1.7 0.4 GRABBABLE HANGABLE MOVABLE; coffeetable 1.1 0.4 0.6 MOVABLE SURFACES;
        desk 1.5 0.75 0.7 CAN_OPEN MOVABLE SURFACES; garbagecan 0.3 0.5 0.3 CAN_OPEN CONTAINERS MOVABLE;
        kitchencounter 1.8 0.9 0.6 SURFACES; kitchentable 1.6 0.75 0.9 MOVABLE SURFACES;
        nightstand 0.5 0.55 0.45 CAN_OPEN CONTAINERS SURFACES; sofa 2 0.45 0.9 LIEABLE MOVABLE SITTABLE SURFACES;
        stall 0.9 2.1 0.9; standingmirror 0.6 1.7 0.3; toilet 0.45 0.75 0.7 CAN_OPEN CONTAINERS SITTABLE;
        tvstand 1.5 0.5 0.45 MOVABLE SURFACES; bathroomcabinet 0.8 0.7 0.2 CAN_OPEN CONTAINERS SURFACES;
        faucet 0.1 0.25 0.2 HAS_SWITCH; kitchencabinet 0.6 0.7 0.35 CAN_OPEN CONTAINERS SURFACES;
        kitchencounterdrawer 0.45 0.2 0.5; sink 0.5 0.15 0.4 CONTAINERS RECIPIENT;
        towelrack 0.7 0.1 0.1 GRABBABLE MOVABLE SURFACES; wallshelf 0.9 0.05 0.25
    """,
    "Appliances": """
        coffeemaker 0.25 0.35 0.3 CAN_OPEN CONTAINERS HAS_PLUG HAS_SWITCH MOVABLE RECIPIENT;
        dishwasher 0.6 0.85 0.6 CAN_OPEN CONTAINERS HAS_SWITCH;
        fridge 0.8 1.8 0.7 CAN_OPEN CONTAINERS HAS_PLUG HAS_SWITCH;
        microwave 0.5 0.3 0.4 CAN_OPEN CONTAINERS HAS_PLUG HAS_SWITCH;
        oventray 0.45 0.05 0.4 GRABBABLE MOVABLE SURFACES; stove 0.7 0.9 0.6 CAN_OPEN CONTAINERS HAS_SWITCH SURFACES;
        stovefan 0.7 0.5 0.45; toaster 0.3 0.2 0.2 CONTAINERS HAS_PLUG HAS_SWITCH MOVABLE;
        washingmachine 0.6 0.85 0.6 CAN_OPEN CONTAINERS HAS_PLUG HAS_SWITCH RECIPIENT
    """,
    "Electronics": """
        amplifier 0.5 0.5 0.3; ceilingfan 1 0.3 1; clock 0.15 0.2 0.1 GRABBABLE HAS_PLUG HAS_SWITCH LOOKABLE MOVABLE;
        computer 0.2 0.4 0.4 HAS_SWITCH LOOKABLE; cpuscreen 0.5 0.4 0.15;
        keyboard 0.4 0.03 0.15 GRABBABLE HAS_PLUG MOVABLE; lightswitch 0.1 0.1 0.02 HAS_PLUG HAS_SWITCH;
        mouse 0.06 0.04 0.1 GRABBABLE HAS_PLUG MOVABLE; mousemat 0.25 0.01 0.2 MOVABLE SURFACES;
        powersocket 0.1 0.1 0.02; radio 0.3 0.2 0.15 CAN_OPEN GRABBABLE HAS_PLUG HAS_SWITCH MOVABLE SURFACES;
        speaker 0.2 0.4 0.25; tv 1.1 0.65 0.1 HAS_PLUG HAS_SWITCH LOOKABLE;
        wallphone 0.15 0.25 0.1 GRABBABLE HAS_PLUG HAS_SWITCH MOVABLE
    """,
    "Lamps": "ceilinglamp 0.4 0.2 0.4; tablelamp 0.25 0.45 0.25 HAS_PLUG HAS_SWITCH; walllamp 0.15 0.25 0.15",
    "Decor": """
        candle 0.08 0.12 0.08 GRABBABLE HAS_SWITCH MOVABLE; curtains 1.6 1.5 0.1 CAN_OPEN COVER_OBJECT MOVABLE;
        globe 0.3 0.4 0.3 GRABBABLE MOVABLE; orchid 0.25 0.5 0.25; pillow 0.5 0.15 0.4 GRABBABLE MOVABLE;
        rug 2 0.02 1.4 GRABBABLE LIEABLE MOVABLE SITTABLE SURFACES; vase 0.15 0.35 0.15;
        wallpictureframe 0.6 0.5 0.03 GRABBABLE HANGABLE HAS_PAPER MOVABLE
    """,
    "Props": """
        photoframe 0.15 0.2 0.05; barsoap 0.08 0.04 0.06 CREAM GRABBABLE MOVABLE;
        boardgame 0.4 0.08 0.3 GRABBABLE LOOKABLE MOVABLE SURFACES;
        book 0.15 0.04 0.2 CAN_OPEN CUTTABLE GRABBABLE HAS_PAPER MOVABLE READABLE;
        box 0.3 0.2 0.25 CAN_OPEN CONTAINERS COVER_OBJECT GRABBABLE MOVABLE RECIPIENT;
        cellphone 0.08 0.02 0.15 GRABBABLE HAS_PLUG HAS_SWITCH MOVABLE;
        clothespants 0.4 0.06 0.3 CLOTHES GRABBABLE HANGABLE MOVABLE;
        clothespile 0.4 0.1 0.3 CAN_OPEN CONTAINERS GRABBABLE MOVABLE;
        clothesshirt 0.4 0.05 0.3 CLOTHES GRABBABLE HANGABLE MOVABLE;
        coffeepot 0.15 0.2 0.15 CAN_OPEN GRABBABLE MOVABLE RECIPIENT;
        condimentbottle 0.06 0.2 0.06 CREAM GRABBABLE MOVABLE POURABLE;
        condimentshaker 0.05 0.1 0.05 EATABLE GRABBABLE MOVABLE POURABLE;
        cookingpot 0.3 0.2 0.25 CAN_OPEN GRABBABLE MOVABLE RECIPIENT; crayons 0.12 0.03 0.1 GRABBABLE MOVABLE;
        cutleryfork 0.03 0.02 0.2 GRABBABLE MOVABLE; cutleryknife 0.03 0.02 0.22 GRABBABLE MOVABLE;
        cuttingboard 0.4 0.02 0.25 GRABBABLE MOVABLE SURFACES; deodorant 0.06 0.15 0.06;
        dishbowl 0.16 0.07 0.16 GRABBABLE MOVABLE RECIPIENT;
        dishwashingliquid 0.08 0.22 0.06 CREAM GRABBABLE MOVABLE POURABLE;
        facecream 0.07 0.06 0.07 CREAM GRABBABLE MOVABLE POURABLE;
        folder 0.25 0.03 0.32 CAN_OPEN CONTAINERS GRABBABLE HAS_PAPER MOVABLE READABLE;
        fryingpan 0.3 0.06 0.45 CONTAINERS GRABBABLE MOVABLE RECIPIENT SURFACES;
        glasses 0.14 0.05 0.05 CLOTHES GRABBABLE MOVABLE; hairproduct 0.07 0.2 0.07 CAN_OPEN GRABBABLE MOVABLE POURABLE;
        hanger 0.4 0.2 0.03 GRABBABLE HANGABLE MOVABLE; knifeblock 0.12 0.22 0.18;
        lotionbottle 0.07 0.18 0.07 CAN_OPEN GRABBABLE MOVABLE POURABLE;
        magazine 0.22 0.01 0.28 CAN_OPEN COVER_OBJECT GRABBABLE HAS_PAPER MOVABLE READABLE;
        mug 0.1 0.1 0.08 GRABBABLE MOVABLE POURABLE RECIPIENT; notes 0.1 0.02 0.1 GRABBABLE HAS_PAPER MOVABLE READABLE;
        painkillers 0.06 0.08 0.06; paper 0.21 0.01 0.3 GRABBABLE HAS_PAPER MOVABLE READABLE; perfume 0.06 0.12 0.06;
        plate 0.25 0.03 0.25 GRABBABLE MOVABLE RECIPIENT SURFACES;
        remotecontrol 0.05 0.03 0.18 GRABBABLE HAS_SWITCH MOVABLE;
        slippers 0.25 0.08 0.28 CLOTHES GRABBABLE HANGABLE MOVABLE; sportsball 0.22 0.22 0.22 GRABBABLE MOVABLE;
        teddybear 0.25 0.3 0.2 GRABBABLE MOVABLE;
        toiletpaper 0.12 0.1 0.12 COVER_OBJECT CUTTABLE GRABBABLE HANGABLE HAS_PAPER MOVABLE;
        toothbrush 0.02 0.02 0.18 GRABBABLE MOVABLE RECIPIENT;
        toothpaste 0.04 0.04 0.16 CAN_OPEN CREAM GRABBABLE MOVABLE POURABLE;
        towel 0.35 0.06 0.25 COVER_OBJECT GRABBABLE MOVABLE; toy 0.15 0.12 0.15 GRABBABLE MOVABLE;
        washingsponge 0.1 0.04 0.07 GRABBABLE MOVABLE; waterglass 0.07 0.12 0.07 GRABBABLE MOVABLE POURABLE RECIPIENT;
        wineglass 0.08 0.2 0.08 GRABBABLE MOVABLE POURABLE RECIPIENT
    """,
    "Food": """
        alcohol 0.08 0.3 0.08 DRINKABLE GRABBABLE MOVABLE POURABLE; apple 0.08 0.08 0.08 GRABBABLE MOVABLE;
        bananas 0.2 0.1 0.15 GRABBABLE MOVABLE; bellpepper 0.1 0.1 0.1 GRABBABLE MOVABLE;
        bottlewater 0.08 0.25 0.08 DRINKABLE POURABLE; breadslice 0.12 0.12 0.02 CUTTABLE EATABLE GRABBABLE MOVABLE;
        candybar 0.15 0.02 0.05 EATABLE GRABBABLE MOVABLE; carrot 0.2 0.04 0.04 CUTTABLE EATABLE GRABBABLE MOVABLE;
        cereal 0.2 0.3 0.08 EATABLE GRABBABLE MOVABLE; chicken 0.25 0.12 0.2 GRABBABLE MOVABLE;
        chips 0.2 0.25 0.08 GRABBABLE MOVABLE; chocolatesyrup 0.08 0.2 0.08 CUTTABLE EATABLE GRABBABLE MOVABLE;
        crackers 0.15 0.2 0.06 GRABBABLE MOVABLE; creamybuns 0.12 0.08 0.12 CUTTABLE EATABLE GRABBABLE MOVABLE;
        cupcake 0.08 0.08 0.08 EATABLE GRABBABLE MOVABLE; cutlets 0.2 0.05 0.15 GRABBABLE MOVABLE;
        juice 0.1 0.25 0.1 DRINKABLE GRABBABLE MOVABLE POURABLE; lemon 0.08 0.06 0.06 GRABBABLE MOVABLE;
        lime 0.06 0.06 0.06 GRABBABLE MOVABLE; milk 0.1 0.25 0.1 CAN_OPEN DRINKABLE GRABBABLE MOVABLE POURABLE;
        mincedmeat 0.2 0.06 0.15 GRABBABLE MOVABLE; pancake 0.18 0.05 0.18 CUTTABLE EATABLE GRABBABLE MOVABLE;
        pear 0.08 0.12 0.08 GRABBABLE MOVABLE; pie 0.25 0.06 0.25 CUTTABLE EATABLE GRABBABLE MOVABLE;
        plum 0.06 0.06 0.06 GRABBABLE MOVABLE; potato 0.1 0.06 0.08 GRABBABLE MOVABLE;
        poundcake 0.25 0.1 0.12 EATABLE GRABBABLE MOVABLE; pudding 0.1 0.08 0.1 CUTTABLE EATABLE GRABBABLE MOVABLE;
        salad 0.2 0.1 0.2 CUTTABLE EATABLE GRABBABLE MOVABLE; salmon 0.3 0.05 0.15 GRABBABLE MOVABLE;
        sundae 0.1 0.15 0.1 CUTTABLE EATABLE GRABBABLE MOVABLE; tomato 0.08 0.08 0.08 GRABBABLE MOVABLE;
        whippedcream 0.07 0.2 0.07 CUTTABLE EATABLE GRABBABLE MOVABLE;
        wine 0.08 0.32 0.08 DRINKABLE GRABBABLE MOVABLE POURABLE
    """,
}
CLASSES: Mapping[str, ObjectClass] = {
    name: _parse_class(category, words)
    for category, classes in _CLASS_TABLE.items()
    for name, *words in map(str.split, classes.split(";"))
}

"""Belongings of a household: for each class of loose things the classes of furniture it may lie in or on."""

from __future__ import annotations

from collections.abc import Mapping

from envs.wah.apartments.catalog import kind_of

# Classes of goals: left out of the clutter, so that a task's generator determines every instance.
GOAL_OBJECTS = (
    "apple",
    "book",
    "coffeepot",
    "cupcake",
    "cutleryfork",
    "juice",
    "pancake",
    "plate",
    "poundcake",
    "pudding",
    "waterglass",
    "wine",
    "wineglass",
)

_LARDER = ("kitchencabinet", "kitchencounter", "kitchentable")
_COLD = ("fridge", "kitchencounter", "kitchentable")
_BAKED = ("fridge", "microwave", "stove", "kitchencabinet", "kitchencounter", "kitchentable", "coffeetable", "cabinet")
_FRUIT = ("fridge", "kitchencounter", "kitchentable", "coffeetable")
_DRINK = ("fridge", "kitchencabinet", "kitchencounter", "kitchentable", "coffeetable", "cabinet")
_DISHES = ("kitchencabinet", "dishwasher", "kitchencounter", "kitchentable")
_GLASSES = (*_DISHES, "coffeetable", "cabinet")
_READING = ("bookshelf", "coffeetable", "desk", "nightstand", "sofa")
_PAPERS = ("desk", "bookshelf", "coffeetable", "cabinet")
_POCKETS = ("coffeetable", "nightstand", "desk", "sofa", "tvstand")
_PLAY = ("bookshelf", "cabinet", "coffeetable", "desk")
_DISPLAY = ("bookshelf", "tvstand", "nightstand", "desk")
_BATH = ("bathroomcabinet", "bathroomcounter")
_WARDROBE = ("closet",)

LIKELY: Mapping[str, tuple[str, ...]] = {
    "alcohol": _DRINK,
    "apple": (*_FRUIT, "kitchencabinet", "microwave", "cabinet"),
    "bananas": _FRUIT,
    "barsoap": ("bathroomcounter",),
    "bellpepper": _COLD,
    "boardgame": _PLAY,
    "book": _READING,
    "bottlewater": (*_COLD, "nightstand", "desk"),
    "box": ("bookshelf", "closet", "cabinet"),
    "breadslice": ("toaster", "kitchencounter", "kitchentable"),
    "candle": (*_DISPLAY, "coffeetable", "kitchentable"),
    "candybar": (*_LARDER, "coffeetable", "desk"),
    "carrot": _COLD,
    "cellphone": _POCKETS,
    "cereal": _LARDER,
    "chicken": (*_COLD, "stove"),
    "chips": (*_LARDER, "coffeetable", "sofa"),
    "chocolatesyrup": (*_LARDER, "fridge"),
    "clock": ("nightstand", "desk", "bookshelf"),
    "clothespants": (*_WARDROBE, "bed"),
    "clothespile": (*_WARDROBE, "washingmachine", "bed"),
    "clothesshirt": (*_WARDROBE, "bed"),
    "coffeepot": (*_LARDER, "dishwasher", "coffeetable"),
    "condimentbottle": (*_LARDER, "fridge"),
    "condimentshaker": _LARDER,
    "cookingpot": ("stove", "kitchencabinet", "kitchencounter", "dishwasher"),
    "crackers": (*_LARDER, "coffeetable"),
    "crayons": _PLAY,
    "creamybuns": _BAKED,
    "cupcake": _BAKED,
    "cutleryfork": _DISHES,
    "cutleryknife": _DISHES,
    "cutlets": (*_COLD, "stove"),
    "cuttingboard": ("kitchencounter",),
    "deodorant": _BATH,
    "dishbowl": _GLASSES,
    "dishwashingliquid": ("kitchencounter",),
    "facecream": (*_BATH, "nightstand"),
    "folder": _PAPERS,
    "fryingpan": ("stove", "kitchencabinet", "kitchencounter"),
    "glasses": _POCKETS,
    "globe": ("bookshelf", "desk"),
    "hairproduct": _BATH,
    "hanger": _WARDROBE,
    "juice": _DRINK,
    "knifeblock": ("kitchencounter",),
    "lemon": _FRUIT,
    "lime": _FRUIT,
    "lotionbottle": _BATH,
    "magazine": _READING,
    "milk": ("fridge", "kitchencounter", "kitchentable"),
    "mincedmeat": ("fridge", "kitchencounter"),
    "mug": (*_GLASSES, "desk", "nightstand"),
    "mousemat": ("desk",),
    "notes": _PAPERS,
    "orchid": (*_DISPLAY, "coffeetable", "kitchentable"),
    "painkillers": (*_BATH, "nightstand"),
    "pancake": _BAKED,
    "paper": _PAPERS,
    "pear": _FRUIT,
    "perfume": (*_BATH, "nightstand", "desk"),
    "photoframe": _DISPLAY,
    "pie": _BAKED,
    "pillow": ("bed", "sofa"),
    "plate": (*_DISHES, "coffeetable", "cabinet"),
    "plum": _FRUIT,
    "potato": _COLD,
    "poundcake": _BAKED,
    "pudding": _BAKED,
    "radio": ("bookshelf", "nightstand", "desk", "kitchencounter"),
    "remotecontrol": ("coffeetable", "sofa", "tvstand", "nightstand"),
    "salad": ("fridge", "kitchencounter", "kitchentable"),
    "salmon": (*_COLD, "stove"),
    "slippers": ("closet", "bookshelf"),
    "sportsball": ("closet", "bookshelf"),
    "sundae": ("fridge", "kitchentable"),
    "teddybear": ("bed", "sofa", "bookshelf"),
    "toiletpaper": _BATH,
    "tomato": _COLD,
    "toothbrush": _BATH,
    "toothpaste": _BATH,
    "towel": (*_BATH, "towelrack", "washingmachine", "closet"),
    "toy": _PLAY,
    "vase": (*_DISPLAY, "coffeetable"),
    "washingsponge": ("kitchencounter", "sink"),
    "waterglass": _GLASSES,
    "whippedcream": ("fridge", "kitchencounter"),
    "wine": _DRINK,
    "wineglass": _GLASSES,
}

# Containers whose top is used instead of their inside, and the classes for which it is.
_ON_TOP: Mapping[str, tuple[str, ...]] = {"nightstand": tuple(LIKELY), "stove": ("cookingpot", "fryingpan")}


def goes_inside(class_name: str, holder: str) -> bool:
    """Return whether a thing is put into a holder instead of on it; ``holder``: class of a container or surface."""
    return "CONTAINERS" in kind_of(holder).properties and class_name not in _ON_TOP.get(holder, ())

"""English names of VirtualHome's classes: LoTA-Bench's names, which skills contain, and synonyms for instructions."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from functools import cache
from types import MappingProxyType

# LoTA-Bench's names of VirtualHome's classes that differ from the class names only by spaces and capitals. The source,
# LoTA-Bench's file wah_objects_sim2nl.json, lacks the names in the last line.
_SPACED_NAMES = """
    balance ball, bar soap, bathroom cabinet, bathroom counter, bell pepper, board game, candy bar, ceiling fan,
    cell phone, Chinese food, chocolate syrup, closet drawer, coat rack, coffee maker, coffee pot, coffee table,
    condiment bottle, condiment shaker, cooking pot, cpu screen, creamy buns, cutlery fork, cutlery knife,
    cutting board, dishwashing liquid, face cream, frying pan, garbage can, hair product, kitchen cabinet,
    kitchen counter, kitchen counter drawer, kitchen table, knife block, light switch, living room, lotion bottle,
    minced meat, mouse mat, oven tray, paper tray, photo frame, pound cake, power socket, remote control,
    standing mirror, stove fan, table lamp, teddy bear, towel rack, tv stand, wall lamp, wall phone,
    wall picture frame, wall shelf, washing machine, washing sponge, water glass, whipped cream, wine glass,
    chef knife, dining table, paper towel, shelf soap set, soap set, wall tv
"""
_SPOKEN_NAMES: dict[str, str] = {
    "bottlewater": "bottled water",
    "breadslice": "slice of bread",
    "character": "user",
    "clothespants": "pants",
    "clothespile": "pile of clothes",
    "clothesshirt": "shirt",
    "dishbowl": "bowl",
    "microwave": "microwave oven",
    "salmon": "salmod",  # sic: the spelling in the benchmark's skills
    "sportsball": "ball",
} | {name.replace(" ", "").lower(): name for name in re.split(r",\s+", _SPACED_NAMES.strip())}
_CLASS_NAMES = {words: name for name, words in _SPOKEN_NAMES.items()}
_CLASS = re.compile(r"[a-z]+")

# Synonyms in instructions: the usual name comes first, frequent names are repeated. A class without an entry has only
# its spoken name.
SYNONYMS: Mapping[str, tuple[str, ...]] = MappingProxyType({
    "bananas": ("bananas", "bunch of bananas"), "barsoap": ("bar of soap", "bar soap"),
    "book": ("book", "book", "book", "novel"), "bottlewater": ("bottled water", "bottle of water", "water bottle"),
    "breadslice": ("slice of bread", "bread slice", "piece of bread"), "ceilinglamp": ("ceiling lamp",),
    "cellphone": ("cell phone", "phone", "mobile phone"), "chips": ("chips", "bag of chips", "potato chips"),
    "clothesshirt": ("shirt", "t-shirt"),
    "coffeepot": ("coffee pot", "coffee pot", "pot of coffee", "coffeepot", "coffee"),
    "coffeetable": ("coffee table", "coffee table", "coffee table in the living room", "living room table",
        "table in the living room", "low table", "table"),
    "condimentbottle": ("condiment bottle", "bottle of sauce", "sauce bottle"),
    "condimentshaker": ("condiment shaker", "salt shaker", "spice shaker"), "cookingpot": ("cooking pot", "pot"),
    "cupcake": ("cupcake", "cupcake", "cupcake", "muffin", "cup cake", "fairy cake"),
    "cutleryfork": ("cutlery fork", "fork", "fork", "fork", "dinner fork", "table fork"),
    "cutleryknife": ("cutlery knife", "knife", "knife", "knife", "dinner knife", "table knife"),
    "dishbowl": ("bowl", "dish bowl"),
    "dishwasher": ("dishwasher", "dishwasher", "dishwasher", "dish washer", "dishwashing machine"),
    "fridge": ("fridge", "fridge", "refrigerator", "refrigerator", "kitchen fridge"),
    "fryingpan": ("frying pan", "pan", "skillet"),
    "juice": ("juice", "juice", "bottle of juice", "fruit juice", "juice bottle", "bottle of fruit juice",
        "carton of juice"),
    "kitchencounter": ("kitchen counter", "counter", "countertop"),
    "kitchentable": ("kitchen table", "kitchen table", "dining table", "dining table", "table in the kitchen",
        "dinner table", "table"),
    "microwave": ("microwave", "microwave oven"), "milk": ("milk", "carton of milk", "bottle of milk"),
    "mug": ("mug", "coffee mug"), "pancake": ("pancake", "pancake", "pancake", "flapjack", "hotcake", "griddle cake"),
    "plate": ("plate", "plate", "plate", "dinner plate", "dish"),
    "poundcake": ("pound cake", "pound cake", "poundcake", "loaf cake", "loaf of pound cake"),
    "pudding": ("pudding", "pudding", "cup of pudding", "pudding cup"),
    "remotecontrol": ("remote control", "remote", "tv remote"),
    "salmon": ("salmon", "piece of salmon", "salmon fillet"), "sofa": ("sofa", "sofa", "couch", "couch", "settee"),
    "toiletpaper": ("toilet paper", "roll of toilet paper"), "tv": ("tv", "television"),
    "waterglass": ("water glass", "glass", "glass", "drinking glass", "tumbler", "glass for water", "waterglass"),
    "wine": ("wine", "bottle of wine", "bottle of wine", "wine bottle"),
    "wineglass": ("wine glass", "wine glass", "glass for wine", "wineglass"),
})  # fmt: skip

# Units in which things are counted, by name: "some juice", but "two bottles of juice".
MEASURES: Mapping[str, str] = MappingProxyType({
    "alcohol": "bottle", "bananas": "bunch", "cereal": "box", "chips": "bag", "Chinese food": "box", "chicken": "piece",
    "chocolate syrup": "bottle", "coffee": "pot", "crackers": "packet", "dishwashing liquid": "bottle",
    "face cream": "tube", "fruit juice": "bottle", "juice": "bottle", "milk": "carton", "minced meat": "packet",
    "pants": "pair", "potato chips": "bag", "salad": "bowl", "salmon": "piece", "creamy buns": "pack",
    "slippers": "pair", "toilet paper": "roll", "toothpaste": "tube", "whipped cream": "can", "wine": "bottle",
})  # fmt: skip

_HEAD = re.compile(r"^(.*?)( (?:of|for|in) .*)?$")
_IRREGULAR = {"mouse": "mice", "tv": "tvs"}


def spoken_name(class_name: str) -> str:
    """Return LoTA-Bench's English name of a class: "kitchentable" -> "kitchen table"."""
    return _SPOKEN_NAMES.get(class_name, class_name)


def class_of_words(words: str) -> str | None:
    """Return the class with a spoken name: "kitchen table" -> "kitchentable"; None if no class can have this name."""
    if words in _CLASS_NAMES:
        return _CLASS_NAMES[words]
    return words if _CLASS.fullmatch(words) and words not in _SPOKEN_NAMES else None


def article(words: str) -> str:
    """Return the indefinite article of a name: "an" before a vowel, else "a"."""
    return "an" if words[0] in "aeiou" else "a"


@cache
def plural(words: str) -> str:
    """Return the plural of a name: "glass for wine" -> "glasses for wine"; "chips" is unchanged."""
    head, rest = _HEAD.fullmatch(words).groups("")
    start, space, noun = head.rpartition(" ")
    return f"{start}{space}{_plural(noun)}{rest}"


def _plural(noun: str) -> str:
    if noun in _IRREGULAR:
        return _IRREGULAR[noun]
    if noun.endswith(("ss", "x", "ch", "sh", "ato")):
        return noun + "es"
    if noun.endswith("s"):
        return noun
    if noun.endswith("fe"):
        return noun[:-2] + "ves"
    if noun.endswith(("shelf", "loaf")):
        return noun[:-1] + "ves"
    if noun.endswith("y") and noun[-2] not in "aeiou":
        return noun[:-1] + "ies"
    return noun + "s"


def names_for(class_name: str, rivals: Iterable[str] = ()) -> tuple[str, ...]:
    """Return synonyms of a class that cannot mean a rival class, usual name first; if none is left, the usual name."""
    rival_names = {name for rival in rivals if rival != class_name for name in _names(rival)}
    names = tuple(name for name in _names(class_name) if not any(_ambiguous(name, rival) for rival in rival_names))
    return names or _names(class_name)[:1]


def _names(class_name: str) -> tuple[str, ...]:
    return SYNONYMS.get(class_name, (spoken_name(class_name),))


def _ambiguous(name: str, rival: str) -> bool:
    """Return whether a name or its plural can mean the rival: "glass" can mean a "wine glass"."""
    return f" {rival}".endswith((f" {name}", f" {plural(name)}"))


def _classes(names: str) -> frozenset[str]:
    return frozenset(names.split())


PICKABLE = _classes(
    """
    alcohol apple bananas barsoap bellpepper boardgame book box breadslice bucket candle candybar carrot cellphone
    cereal chair chicken chinesefood chips chocolatesyrup clock clothespants clothespile clothesshirt coatrack
    coffeepot condimentbottle condimentshaker cookingpot crackers crayons creamybuns cupcake cutleryfork
    cutleryknife cutlets cuttingboard dishbowl dishwashingliquid facecream folder fryingpan glasses globe
    hairproduct hanger juice keyboard lime lotionbottle magazine milk milkshake mincedmeat mouse mug notes
    oventray pancake paper pear pie pillow plate plum poundcake pudding radio remotecontrol rug salad salmon
    slippers sportsball sundae teddybear toiletpaper toothbrush toothpaste towel towelrack toy wallphone
    wallpictureframe washingsponge waterglass whippedcream wine wineglass
    """
)
OPENABLE = _classes(
    """
    bathroomcabinet book bookshelf box cabinet closet clothespile coffeemaker coffeepot cookingpot curtains desk
    dishwasher door folder fridge garbagecan hairproduct kitchencabinet lotionbottle magazine microwave milk
    nightstand printer radio stove toilet toothpaste washingmachine window
    """
)
SWITCHABLE = _classes(
    """
    candle cellphone clock coffeemaker computer dishwasher faucet fridge lightswitch microwave printer radio
    remotecontrol stove toaster tv wallphone washingmachine
    """
)
# LoTA-Bench's lists PUT_INTO and PUT_ONTO. Things are put into the classes of PUT_INTO, and onto all other classes.
PUT_INTO = _classes(
    """
    bathroomcabinet bookshelf box cabinet closet clothespile coffeemaker dishwasher folder fridge fryingpan
    garbagecan kitchencabinet microwave nightstand printer sink stove toaster toilet washingmachine
    """
)
PUT_ONTO = _classes(
    """
    bathroomcabinet bathroomcounter bed bench boardgame bookshelf cabinet chair coffeetable cuttingboard desk
    floor fryingpan kitchencabinet kitchencounter kitchentable mousemat nightstand oventray plate radio rug sofa
    stove towelrack
    """
)
FINDABLE = PICKABLE | OPENABLE | SWITCHABLE | PUT_INTO | PUT_ONTO

"""Belongings of a household: for each class of movable things the classes of furniture that may hold it."""

from __future__ import annotations

from collections.abc import Mapping

from envs.wah.apartments.catalog import object_class

# Classes of goal objects: only `lay_out` places them. The clutter of an apartment has no things of these classes.
GOAL_OBJECTS = (
    "apple", "book", "coffeepot", "cupcake", "cutleryfork", "juice", "pancake", "plate", "poundcake", "pudding",
    "waterglass", "wine", "wineglass",
)  # fmt: skip
# First, groups of furniture classes, named in capitals. Then, for each class of things, the furniture that may hold it.
_TABLE = """
    LARDER: kitchencabinet kitchencounter kitchentable; COLD: fridge kitchencounter kitchentable;
    BAKED: fridge microwave stove kitchencabinet kitchencounter kitchentable coffeetable cabinet;
    FRUIT: fridge kitchencounter kitchentable coffeetable;
    DRINK: fridge kitchencabinet kitchencounter kitchentable coffeetable cabinet;
    DISHES: kitchencabinet dishwasher kitchencounter kitchentable; GLASSES: DISHES coffeetable cabinet;
    READING: bookshelf coffeetable desk nightstand sofa; PAPERS: desk bookshelf coffeetable cabinet;
    POCKETS: coffeetable nightstand desk sofa tvstand; PLAY: bookshelf cabinet coffeetable desk;
    DISPLAY: bookshelf tvstand nightstand desk; BATH: bathroomcabinet bathroomcounter; WARDROBE: closet;
    alcohol: DRINK; apple: FRUIT kitchencabinet microwave cabinet; bananas: FRUIT; barsoap: bathroomcounter;
    bellpepper: COLD; boardgame: PLAY; book: READING; bottlewater: COLD nightstand desk; box: bookshelf closet cabinet;
    breadslice: toaster kitchencounter kitchentable; candle: DISPLAY coffeetable kitchentable;
    candybar: LARDER coffeetable desk; carrot: COLD; cellphone: POCKETS; cereal: LARDER; chicken: COLD stove;
    chips: LARDER coffeetable sofa; chocolatesyrup: LARDER fridge; clock: nightstand desk bookshelf;
    clothespants: WARDROBE bed; clothespile: WARDROBE washingmachine bed; clothesshirt: WARDROBE bed;
    coffeepot: LARDER dishwasher coffeetable; condimentbottle: LARDER fridge; condimentshaker: LARDER;
    cookingpot: stove kitchencabinet kitchencounter dishwasher; crackers: LARDER coffeetable; crayons: PLAY;
    creamybuns: BAKED; cupcake: BAKED; cutleryfork: DISHES; cutleryknife: DISHES; cutlets: COLD stove;
    cuttingboard: kitchencounter; deodorant: BATH; dishbowl: GLASSES; dishwashingliquid: kitchencounter;
    facecream: BATH nightstand; folder: PAPERS; fryingpan: stove kitchencabinet kitchencounter; glasses: POCKETS;
    globe: bookshelf desk; hairproduct: BATH; hanger: WARDROBE; juice: DRINK; knifeblock: kitchencounter; lemon: FRUIT;
    lime: FRUIT; lotionbottle: BATH; magazine: READING; milk: fridge kitchencounter kitchentable;
    mincedmeat: fridge kitchencounter; mug: GLASSES desk nightstand; mousemat: desk; notes: PAPERS;
    orchid: DISPLAY coffeetable kitchentable; painkillers: BATH nightstand; pancake: BAKED; paper: PAPERS; pear: FRUIT;
    perfume: BATH nightstand desk; photoframe: DISPLAY; pie: BAKED; pillow: bed sofa; plate: DISHES coffeetable cabinet;
    plum: FRUIT; potato: COLD; poundcake: BAKED; pudding: BAKED; radio: bookshelf nightstand desk kitchencounter;
    remotecontrol: coffeetable sofa tvstand nightstand; salad: fridge kitchencounter kitchentable; salmon: COLD stove;
    slippers: closet bookshelf; sportsball: closet bookshelf; sundae: fridge kitchentable;
    teddybear: bed sofa bookshelf; toiletpaper: BATH; tomato: COLD; toothbrush: BATH; toothpaste: BATH;
    towel: BATH towelrack washingmachine closet; toy: PLAY; vase: DISPLAY coffeetable;
    washingsponge: kitchencounter sink; waterglass: GLASSES; whippedcream: fridge kitchencounter; wine: DRINK;
    wineglass: GLASSES
"""


def _parse_places(table: str) -> dict[str, tuple[str, ...]]:
    places: dict[str, tuple[str, ...]] = {}
    for line in table.split(";"):
        name, words = line.strip().split(": ")
        places[name] = tuple(place for word in words.split() for place in places.get(word, (word,)))
    return {name: kinds for name, kinds in places.items() if name.islower()}


LIKELY_PLACES: Mapping[str, tuple[str, ...]] = _parse_places(_TABLE)

# By class of container: the classes of things that are put on top of it instead of inside.
_ON_TOP: Mapping[str, tuple[str, ...]] = {"nightstand": tuple(LIKELY_PLACES), "stove": ("cookingpot", "fryingpan")}


def goes_inside(class_name: str, holder: str) -> bool:
    """Return whether a thing is put into a holder instead of on it; ``holder``: class of a container or surface."""
    return "CONTAINERS" in object_class(holder).properties and class_name not in _ON_TOP.get(holder, ())

"""Everyday names of things by AI2-THOR type, the usual one first, with plurals and prepositions."""

from __future__ import annotations

OBJECT_NAMES: dict[str, tuple[str, ...]] = {
    "AlarmClock": ("alarm clock", "clock"), "Apple": ("apple",), "BaseballBat": ("baseball bat", "bat"),
    "BasketBall": ("basketball", "ball"), "Book": ("book",), "Boots": ("pair of boots",), "Bowl": ("bowl", "dish"),
    "Box": ("box", "cardboard box"), "Bread": ("loaf of bread", "bread", "bread loaf"),
    "ButterKnife": ("butter knife", "table knife", "knife"), "CD": ("CD", "compact disc", "disc", "disk"),
    "Candle": ("candle",), "CellPhone": ("cell phone", "phone", "cellphone", "mobile phone"),
    "Cloth": ("cloth", "rag", "washcloth"), "CreditCard": ("credit card", "card"),
    "Cup": ("cup", "glass", "drinking glass", "wine glass", "goblet"), "DishSponge": ("sponge", "dish sponge"),
    "Egg": ("egg",), "Footstool": ("footstool", "stool"), "Fork": ("fork",), "Glassbottle": ("glass bottle", "bottle"),
    "HandTowel": ("hand towel", "towel", "small towel"), "Kettle": ("kettle", "tea kettle", "tea pot", "teapot"),
    "KeyChain": ("set of keys", "key chain", "keychain", "key"), "Knife": ("knife", "kitchen knife", "sharp knife"),
    "Ladle": ("ladle", "soup ladle", "large spoon", "scoop"), "Laptop": ("laptop", "laptop computer", "computer"),
    "Lettuce": ("head of lettuce", "lettuce", "cabbage"), "Mug": ("mug", "coffee mug", "coffee cup", "cup"),
    "Newspaper": ("newspaper", "paper"), "Pan": ("pan", "frying pan", "skillet"),
    "PaperTowelRoll": ("roll of paper towels", "paper towel roll"), "Pen": ("pen",), "Pencil": ("pencil",),
    "PepperShaker": ("pepper shaker", "pepper"), "Pillow": ("pillow", "cushion"), "Plate": ("plate", "dish"),
    "Plunger": ("plunger", "toilet plunger"), "Pot": ("pot", "cooking pot"), "Potato": ("potato",),
    "RemoteControl": ("remote control", "remote", "tv remote"), "SaltShaker": ("salt shaker", "salt"),
    "ScrubBrush": ("scrub brush", "toilet brush"), "SoapBar": ("bar of soap", "soap bar", "soap"),
    "SoapBottle": ("soap bottle", "bottle of soap", "bottle of lotion", "soap dispenser", "pump bottle"),
    "Spatula": ("spatula", "turner"), "Spoon": ("spoon",),
    "SprayBottle": ("spray bottle", "bottle of cleaner", "cleaning spray"),
    "Statue": ("statue", "figurine", "sculpture", "trophy"), "TeddyBear": ("teddy bear", "stuffed bear"),
    "TennisRacket": ("tennis racket", "racket"), "TissueBox": ("tissue box", "box of tissues"),
    "ToiletPaper": ("roll of toilet paper", "toilet paper", "toilet roll", "toilet paper roll", "toilet paper tube"),
    "ToiletPaperRoll": ("empty toilet paper roll",), "Tomato": ("tomato",),
    "Towel": ("bath towel", "towel", "large towel"), "Vase": ("vase",), "Watch": ("watch", "wrist watch"),
    "WateringCan": ("watering can", "watering pot"), "WineBottle": ("wine bottle", "bottle of wine", "bottle"),
}  # fmt: skip

PLACE_NAMES: dict[str, tuple[str, ...]] = {
    "ArmChair": ("armchair", "arm chair", "chair", "recliner", "seat"),
    "BathtubBasin": ("bathtub", "tub", "bath tub", "bath"), "Bed": ("bed",), "Cabinet": ("cabinet", "cupboard"),
    "Cart": ("cart", "rack", "metal cart"), "CoffeeMachine": ("coffee machine", "coffee maker"),
    "CoffeeTable": ("coffee table", "table", "low table"),
    "CounterTop": ("counter", "countertop", "counter top", "kitchen counter", "kitchen island", "island"),
    "Desk": ("desk",), "DiningTable": ("dining table", "table", "kitchen table"), "Drawer": ("drawer",),
    "Dresser": ("dresser", "chest of drawers", "tv stand"), "Fridge": ("fridge", "refrigerator"),
    "GarbageCan": ("garbage can", "trash can", "bin", "trash", "garbage", "trash bin", "waste basket", "recycling bin"),
    "HandTowelHolder": ("hand towel holder",), "LaundryHamper": ("laundry hamper", "hamper"),
    "Microwave": ("microwave", "microwave oven"), "Ottoman": ("ottoman", "foot stool"), "Safe": ("safe",),
    "Shelf": ("shelf", "shelving unit"),
    "SideTable": ("side table", "table", "end table", "nightstand", "night stand", "small table", "stand"),
    "SinkBasin": ("sink", "sink basin", "basin"), "Sofa": ("sofa", "couch"),
    "StoveBurner": ("stove", "stove burner", "burner"), "TVStand": ("tv stand",), "Toaster": ("toaster",),
    "Toilet": ("toilet", "back of the toilet", "toilet tank", "toilet lid"),
    "ToiletPaperHanger": ("toilet paper holder", "toilet paper hanger", "toilet roll holder"),
    "TowelHolder": ("towel holder", "towel rack"),
}  # fmt: skip

LAMP_NAMES: dict[str, tuple[str, ...]] = {
    "DeskLamp": ("desk lamp", "lamp", "table lamp", "light", "small lamp"),
    "FloorLamp": ("floor lamp", "lamp", "standing lamp", "light", "tall lamp"),
}

NAMES = OBJECT_NAMES | PLACE_NAMES | LAMP_NAMES

# Names that take "some" instead of "a", with their plurals: "some lettuce", but "two heads of lettuce".
MASS_PLURALS = {
    "bread": "loaves of bread", "lettuce": "heads of lettuce", "soap": "bars of soap",
    "toilet paper": "rolls of toilet paper", "pepper": "pepper shakers", "salt": "salt shakers",
    "cleaning spray": "bottles of cleaning spray",
}  # fmt: skip

_IN = frozenset(
    {"BathtubBasin", "Cabinet", "Drawer", "Fridge", "GarbageCan", "LaundryHamper", "Microwave", "Safe", "SinkBasin"}
    | {"Bowl", "Box", "Cup", "Mug", "Pan", "Pot", "Toaster"}
)
_IN_OR_ON = frozenset({"ArmChair", "CoffeeMachine", "Plate", "Pan", "Toaster"})


def prepositions(kind: str) -> tuple[str, ...]:
    """Return the prepositions ("in", "on") for putting a thing into or onto ``kind``."""
    words = ("in",) if kind in _IN else ("on",)
    return (*words, "on" if words == ("in",) else "in") if kind in _IN_OR_ON else words


def plural(noun: str) -> str:
    """Return the plural of a name: "bar of soap" -> "bars of soap"."""
    if noun in MASS_PLURALS:
        return MASS_PLURALS[noun]
    head, of, rest = noun.partition(" of ")
    if head.endswith("fe"):
        head = head[:-2] + "ves"
    elif head == "loaf" or head.endswith("shelf") or head.endswith(" loaf"):
        head = head[:-1] + "ves"
    elif head.endswith(("s", "x", "ch", "sh", "ato")):
        head += "es"
    else:
        head += "s"
    return head + of + rest


def names_for(kind: str, present: frozenset[str]) -> tuple[str, ...]:
    """Return the names of a type that fit the room and no other type ``present``; if there are none, the usual name."""
    ambiguous = {name for neighbor in present if neighbor != kind for name in NAMES.get(neighbor, ())}
    if present and "Fridge" not in present:
        ambiguous |= {name for name in NAMES[kind] if "kitchen" in name or "island" in name}
    return tuple(name for name in NAMES[kind] if name not in ambiguous) or NAMES[kind][:1]

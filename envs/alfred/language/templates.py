"""Sentence patterns for the seven task types, with slots in braces.

``{a}`` is the object with its article ("an apple"), ``{the}`` "the apple", ``{two}`` "two apples", ``{plural}``
"apples". A second word in the braces is an adjective: ``{a hot}`` is "a hot apple". ``{on}`` is the destination with
its preposition ("in the fridge"), ``{to}`` "to the fridge", ``{onto}`` "into the fridge".
``{a_carrier}``, ``{the_carrier}`` and ``{in_carrier}`` stand for the movable receptacle, ``{a_lamp}`` and
``{the_lamp}`` for the lamp, ``{a_whole}`` and ``{the_whole}`` for the object that is cut. ``[put]``, ``[heat]``, ...
stand for any of their synonyms in ``WORDS``.
"""

from __future__ import annotations

import re

WORDS: dict[str, tuple[str, ...]] = {
    "put": ("put", "place", "set"),
    "move": ("move", "bring", "take", "carry"),
    "putting": ("putting", "placing"),
    "heat": ("heat", "warm", "microwave", "heat up", "warm up", "cook"),
    "heats": ("heated", "hot", "warm", "warmed", "microwaved", "cooked"),
    "cool": ("cool", "chill", "cool down", "refrigerate"),
    "cools": ("chilled", "cold", "cooled", "cool", "refrigerated"),
    "wash": ("wash", "clean", "rinse", "rinse off", "wash off"),
    "washes": ("clean", "washed", "rinsed", "cleaned", "wet"),
    "cut": ("slice", "cut", "cut up", "slice up"),
    "look": ("look at", "examine", "inspect", "view", "see"),
    "hold": ("holding", "carrying"),
    "get": ("get", "grab", "pick up", "take", "fetch"),
    "with": ("with", "containing", "holding"),
    "then": ("then", "and then", "and"),
}  # fmt: skip

_TREATMENTS: dict[str, dict[str, str]] = {
    "pick_heat_then_place_in_recep": {
        **{"VERB": "heat", "ADJECTIVE": "heats", "GERUND": "heating", "CUT": "microwave"},
        **{"WITH": "heat {a} in the microwave", "AT": "cook {the} in the microwave", "BY": "the microwave to heat"},
    },
    "pick_cool_then_place_in_recep": {
        **{"VERB": "cool", "ADJECTIVE": "cools", "GERUND": "cooling", "CUT": "chill"},
        **{"WITH": "chill {a} in the fridge", "AT": "cool {the} in the refrigerator", "BY": "the fridge to cool"},
    },
    "pick_clean_then_place_in_recep": {
        **{"VERB": "wash", "ADJECTIVE": "washes", "GERUND": "washing", "CUT": "rinse"},
        **{"WITH": "wash {a} in the sink", "AT": "rinse {the} under the faucet", "BY": "the sink to clean"},
    },
}  # fmt: skip
_TREATMENT_TEMPLATES = (
    "[put] {a [ADJECTIVE]} {on}", "[put] {the [ADJECTIVE]} {on}", "[VERB] {a} and [put] it {on}",
    "[VERB] {the}, [then] [put] it {on}", "[VERB] {a} to [put] it {on}", "[get] {a}, [VERB] it and [put] it {on}",
    "[put] {a} {on} after GERUND it", "WITH and [put] it {on}", "AT, [then] [put] it {on}",
    "use BY {a}, [then] [put] it {on}", "[move] {a [ADJECTIVE]} {to}", "there should be {a [ADJECTIVE]} {on}",
    "leave {a [ADJECTIVE]} {on}", "to [put] {a [ADJECTIVE]} {on}",
)  # fmt: skip
_SLICED_TREATMENT_TEMPLATES = (
    "[cut] {a_whole}, [VERB] a slice and [put] it {on}", "[cut] {the_whole}, CUT one piece, [then] [put] it {on}",
    "use a knife to cut {the_whole}, VERB a slice, [put] it {on}", "[put] {a [ADJECTIVE]} {on}",
    "[VERB] {a} and [put] it {on}",
)  # fmt: skip


def _for_treatments(patterns: tuple[str, ...]) -> dict[str, tuple[str, ...]]:
    """Return the patterns of the tasks that heat, cool or clean, with capital words replaced as `_TREATMENTS` says."""
    return {
        kind: tuple(re.sub("[A-Z]{2,}", lambda match, words=words: words[match[0]], form) for form in patterns)
        for kind, words in _TREATMENTS.items()
    }


TEMPLATES: dict[str, tuple[str, ...]] = {
    "pick_and_place_simple": (
        "[put] {a} {on}", "[put] {the} {on}", "[move] {a} {to}", "[move] {the} {to}", "move {a} {onto}",
        "[get] {a} and [put] it {on}", "[get] {the}, [then] [put] it {on}", "find {a} and leave it {on}",
        "leave {a} {on}", "there should be {a} {on}", "make sure {a} is {on}", "I want {a} {on}", "[putting] {a} {on}",
        "to [put] {a} {on}",
    ),
    "pick_two_obj_and_place": (
        "[put] {two} {on}", "[put] {two} {onto}", "[move] {two} {to}", "move {two} {onto}",
        "[get] {two} and [put] them {on}", "[put] {a} and another one {on}",
        "[put] {a} {on}, then [put] a second one next to it", "gather {two} {on}", "collect {two} and [put] them {on}",
        "[put] both {plural} {on}", "move the two {plural} {to}", "there should be {two} {on}", "[putting] {two} {on}",
        "to [put] {two} {on}",
    ),
    "look_at_obj_in_light": (
        "[look] {a} under {the_lamp}", "[look] {the} under the light of {the_lamp}",
        "[look] {a} by the light of {a_lamp}", "[look] {the} in the light of {the_lamp}",
        "[look] {a} with {the_lamp} on", "[get] {a} and turn on {the_lamp}", "[get] {the}, [then] switch on {the_lamp}",
        "turn on {the_lamp} while [hold] {a}", "turn {the_lamp} on with {a} in your hand",
        "hold {a} while turning on {a_lamp}", "hold {the} under {the_lamp} and turn it on",
        "[move] {a} to {the_lamp} and turn the light on", "use {the_lamp} to [look] {the}",
        "carry {a} to {a_lamp} and switch it on",
    ),
    **_for_treatments(_TREATMENT_TEMPLATES),
    "pick_and_place_with_movable_recep": (
        "[put] {a_carrier} [with] {a} {on}", "[put] {a_carrier} with {a} in it {on}",
        "[put] {the_carrier} with {the} {on}", "[put] {a} {in_carrier} and [put] {the_carrier} {on}",
        "[put] {the} {in_carrier}, [then] move {the_carrier} {to}", "[put] {a} {in_carrier} and [put] both {on}",
        "[move] {a_carrier} [with] {a} {to}", "[move] {the_carrier} with {the} in it {to}",
        "[get] {a}, [put] it {in_carrier}, [then] [put] {the_carrier} {on}", "[put] {a} {in_carrier} {on}",
        "leave {a_carrier} with {a} {on}", "there should be {a_carrier} with {a} in it {on}",
        "[putting] {a_carrier} with {a} {on}", "to [put] {a_carrier} with {a} in it {on}",
    ),
}  # fmt: skip

# {a} and {the} stand for the slice.
SLICED_TEMPLATES: dict[str, tuple[str, ...]] = {
    "pick_and_place_simple": (
        "[cut] {a_whole} and [put] a slice {on}", "[cut] {the_whole}, [then] [put] one piece {on}",
        "use a knife to cut {the_whole} and [put] a piece {on}", "[put] {a} {on}", "[move] {a} {to}",
    ),
    "pick_two_obj_and_place": (
        "[cut] {a_whole} and [put] two slices {on}", "[cut] {the_whole}, [then] [put] two pieces {on}",
        "use a knife to cut {the_whole} and [put] two slices {on}", "[put] {two} {on}", "[move] {two} {to}",
    ),
    **_for_treatments(_SLICED_TREATMENT_TEMPLATES),
    "pick_and_place_with_movable_recep": (
        "[cut] {a_whole}, [put] a slice {in_carrier} and [put] {the_carrier} {on}",
        "[cut] {the_whole}, [then] [put] {a_carrier} with a piece {on}",
        "use a knife to cut {the_whole}, [put] a slice {in_carrier}, move {the_carrier} {to}",
        "[put] {a_carrier} with {a} {on}", "[put] {a} {in_carrier} and [put] {the_carrier} {on}",
    ),
}  # fmt: skip
GARBAGE_TEMPLATES: dict[str, tuple[str, ...]] = {
    "pick_and_place_simple": ("throw {a} {onto}", "throw away {the}", "dispose of {a} {on}", "throw {the} out"),
    "pick_two_obj_and_place": ("throw {two} {onto}", "throw away {two}", "dispose of {two} {on}", "discard {two}"),
    **_for_treatments(("throw {a [ADJECTIVE]} {onto}", "[VERB] {a} and throw it away")),
}  # fmt: skip
# For objects with one known start place: {from} is "from the counter".
SOURCE_TEMPLATES: dict[str, tuple[str, ...]] = {
    "pick_and_place_simple": ("[move] {a} {from} {to}", "[get] {the} {from} and [put] it {on}"),
    "pick_two_obj_and_place": ("[move] {two} {from} {to}", "[get] {two} {from} and [put] them {on}"),
    "look_at_obj_in_light": ("[get] {the} {from} and turn on {the_lamp}", "[look] {a} {from} under {the_lamp}"),
    **_for_treatments(("[VERB] {a} {from} and [put] it {on}", "[get] {the} {from} to VERB and [put] {on}")),
    "pick_and_place_with_movable_recep": (
        "[put] {the} {from} {in_carrier} and [put] {the_carrier} {on}",
        "[get] {a} {from}, [put] it {in_carrier}, [put] {the_carrier} {on}",
    ),
}  # fmt: skip
SLICE_NAMES = ("slice of {}", "{} slice", "piece of {}", "sliced {}", "cut {}", "piece of sliced {}")
ADJECTIVES = ("black", "white", "green", "blue", "red", "brown", "yellow", "grey", "small", "large", "wooden", "round")

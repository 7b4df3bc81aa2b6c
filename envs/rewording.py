"""Rewording of instructions: the same tasks in words that no training template and few annotators use.

* ``polite``: the instruction within a request, such as "Could you please ... when you have a moment?";
* ``typos``: slips of the keyboard in about one long word out of six, at least one per instruction;
* ``synonyms``: other words for verbs, objects and places, such as "refrigerator" for "fridge";
* ``sentences``: the instruction in several sentences, after one that has nothing to do with it;
* ``all``: one of the four, drawn for every instruction.

The draws depend only on the instruction, the kind and the seed.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from random import Random
from types import MappingProxyType
from typing import Any

from envs.splits import LazyEpisodes
from keep_agent.errors import check_choice

REQUESTS = (
    "Could you please {} when you have a moment?", "Would you be so kind as to {}?",
    "Hi robot, I need you to {}, thanks a lot!", "I would be grateful if you could {}.",
    "If it is not too much trouble, {}.", "Hey, do me a favour and {}, will you?", "Excuse me, may I ask you to {}?",
    "My back hurts today, so please {} for me.",
)  # fmt: skip
ASIDES = (
    "My sister is coming over tonight.", "I have been cleaning since this morning.",
    "Do not worry about the noise outside.", "The weather is lovely today.", "I am on the phone right now.",
    "We are running a bit late.", "You did a good job yesterday.", "There is a lot to do in this house.",
)  # fmt: skip
SYNONYMS = MappingProxyType({
    "put": ("set", "lay", "deposit"), "place": ("set", "lay", "position"), "move": ("carry", "bring"),
    "take": ("grab", "fetch"), "get": ("fetch", "grab"), "pick up": ("grab", "collect"),
    "find": ("locate", "search for"), "turn on": ("switch on", "light up"), "examine": ("inspect", "study"),
    "look at": ("inspect", "view"), "heat": ("warm up",), "heated": ("warmed up",), "cook": ("heat through",),
    "microwaved": ("warmed up",), "chill": ("make cold", "refrigerate"), "chilled": ("cold",),
    "cool": ("make cold", "refrigerate"), "cooled": ("cold",), "wash": ("scrub", "clean up"), "washed": ("scrubbed",),
    "rinse": ("scrub",), "rinsed": ("scrubbed",), "sliced": ("cut up",), "fridge": ("refrigerator", "icebox"),
    "refrigerator": ("fridge", "icebox"), "couch": ("settee", "sofa"), "sofa": ("settee", "couch"),
    "trash can": ("waste bin", "rubbish bin"), "garbage can": ("waste bin", "rubbish bin"),
    "stove": ("cooker", "hob"), "counter": ("worktop", "kitchen top"), "countertop": ("worktop", "kitchen top"),
    "cabinet": ("cupboard",), "cupboard": ("kitchen cabinet",), "drawer": ("pull-out compartment",),
    "night stand": ("bedside table",), "nightstand": ("bedside table",), "dresser": ("chest of drawers",),
    "cell phone": ("mobile",), "phone": ("mobile",), "remote": ("clicker",), "remote control": ("clicker",),
    "laptop": ("notebook computer",), "computer": ("machine",), "lamp": ("reading light",), "light": ("lamp",),
    "tissue": ("kleenex",), "credit card": ("bank card",), "keys": ("bunch of keys",), "watch": ("wristwatch",),
    "cup": ("beaker",), "pan": ("skillet",), "pot": ("saucepan",), "plate": ("dish",), "towel": ("bath cloth",),
    "cloth": ("rag",), "bar of soap": ("soap bar",), "toilet paper": ("toilet roll",), "spray bottle": ("sprayer",),
    "table": ("tabletop",), "potato": ("spud",), "bed": ("mattress",), "chair": ("seat",), "box": ("carton",),
    "book": ("volume",), "vase": ("flower holder",),
})  # fmt: skip
KEYBOARD = ("qwertyuiop", "asdfghjkl", "zxcvbnm")
LONG_WORD, TYPO_SHARE = 4, 1 / 6  # least letters of a word that gets a typo; share of these words that get one
_NAMES = re.compile(
    r"\b(?:" + "|".join(sorted(map(re.escape, SYNONYMS), key=len, reverse=True)) + r")\b", re.IGNORECASE
)
_VERBS = (
    "put|place|set|move|take|get|turn|heat|cook|chill|cool|wash|clean|rinse|slice|cut|examine|look|bring|drop|carry"
)
_CLAUSES = re.compile(  # boundaries of clauses that can be sentences
    rf"\s*(?:[,;.]|\band\b|\bthen\b)(?:\s*\b(?:and|then)\b)*\s+(?=(?:{_VERBS})\b)", re.IGNORECASE
)


def reworded(episodes: Sequence[Any], kind: str, seed: int = 0) -> Sequence[Any]:
    """Return the episodes with all instructions reworded by ``kind``. Raises ConfigError for an unknown kind."""
    check_choice("env.rewording", kind, REWORDINGS)
    return LazyEpisodes(lambda number: _reworded(episodes[number], kind, seed), range(len(episodes)))


def _reworded(episode: Any, kind: str, seed: int) -> Any:
    tasks = (replace(task, instruction=reword(task.instruction, kind, seed)) for task in episode.tasks)
    return replace(episode, tasks=tuple(tasks))


def reword(text: str, kind: str, seed: int = 0) -> str:
    """Return an instruction in other words."""
    rng = Random(f"{seed}/{kind}/{text}")
    return REWORDINGS[kind](" ".join(text.split()), rng)


def _polite(text: str, rng: Random) -> str:
    return rng.choice(REQUESTS).format(_lower_first(text.rstrip(" .!")))


def _typos(text: str, rng: Random) -> str:
    words = text.split(" ")
    long = [number for number, word in enumerate(words) if len(word) >= LONG_WORD and word.isalpha()]
    for number in rng.sample(long, min(len(long), max(1, round(TYPO_SHARE * len(long))))):
        words[number] = _slip(words[number], rng)
    return " ".join(words)


def _slip(word: str, rng: Random) -> str:
    """Return the word with one letter behind the first swapped, dropped, doubled or missed."""
    place = rng.randrange(1, len(word) - 1)
    before, letter, after = word[:place], word[place], word[place + 1 :]
    swapped, doubled = before + after[0] + letter + after[1:], before + 2 * letter + after
    slips = [swapped, before + after, doubled, before + _neighbour(letter, rng) + after]
    return rng.choice([slip for slip in slips if slip != word])


def _neighbour(letter: str, rng: Random) -> str:
    row = next((row for row in KEYBOARD if letter.lower() in row), letter.lower())
    place = row.find(letter.lower())
    return rng.choice([row[number] for number in (place - 1, place + 1) if 0 <= number < len(row)] or [letter])


def _synonyms(text: str, rng: Random) -> str:
    return _NAMES.sub(lambda match: rng.choice(SYNONYMS[match.group().lower()]), text)


def _sentences(text: str, rng: Random) -> str:
    clauses = [clause.strip() for clause in _CLAUSES.split(text.rstrip(" .!")) if clause.strip()]
    return " ".join([rng.choice(ASIDES), *(f"{clause[0].upper()}{clause[1:]}." for clause in clauses)])


def _any(text: str, rng: Random) -> str:
    return rng.choice([_polite, _typos, _synonyms, _sentences])(text, rng)


def _lower_first(text: str) -> str:
    return text[:1].lower() + text[1:]


REWORDINGS: Mapping[str, Callable[[str, Random], str]] = MappingProxyType({
    "polite": _polite, "typos": _typos, "synonyms": _synonyms, "sentences": _sentences, "all": _any,
})  # fmt: skip

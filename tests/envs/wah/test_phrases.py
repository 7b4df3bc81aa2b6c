"""Instructions for Watch-And-Help goals: varied, well-formed, and the goal can be read back from each."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Sequence
from pathlib import Path
from random import Random

import pytest

from envs.wah.language.names import MEASURES, SYNONYMS, article, class_of_words, names_for, plural, spoken_name
from envs.wah.language.phrases import TASK_TYPES, all_phrasings, phrase
from envs.wah.language.templates import NUMBERS
from keep_agent.errors import DataError

Goal = tuple[tuple[str, int], ...]

FOOD = ("apple", "cupcake", "pudding", "juice", "wine", "pancake", "poundcake", "coffeepot")
TABLEWARE = ("plate", "waterglass", "wineglass", "cutleryfork")
EXTRAS = ("cutleryknife", "chips", "book")
PLACES = ("kitchentable", "coffeetable", "dishwasher", "fridge", "sofa")
WASHED = re.compile(r"\b(wash|washed|clean|cleaned|do|run|running|start|switch|turn)\b", re.IGNORECASE)
DIRT = re.compile(r"[\[\]{}]|  |\ba [aeiou]|\ban [^aeiou]|\b1 \w+ses\b|,,| ,| \.|\?\.|[.?]{2}", re.IGNORECASE)


def random_goal(task_type: str, rng: Random) -> Goal:
    pool = TABLEWARE if task_type in ("setup_table", "put_dishwasher") else FOOD
    kinds = rng.sample((*pool, "cutleryknife", "chips"), rng.randint(1, 6))
    place = {"put_dishwasher": "inside_{}_dishwasher", "put_fridge": "inside_{}_fridge"}.get(task_type)
    place = place or f"on_{{}}_{rng.choice(('kitchentable', 'coffeetable'))}"
    things = [(place.format(kind), rng.choice((1, 1, 1, 2, 3))) for kind in kinds]
    if task_type == "put_dishwasher" and rng.random() < 0.5:
        things.append(("turnOn_dishwasher", 1))
    if task_type == "read_book":
        things = things * rng.randint(0, 1) + [("holds_book", 1), ("sit_sofa", 1)]
    return tuple(things)


def _words(kind: str) -> set[str]:
    names = {*names_for(kind), spoken_name(kind)}
    names |= {f"{MEASURES[name]} of {name}" for name in names if name in MEASURES}
    return names | {plural(name) for name in names}


KINDS = {words: kind for kind in (*FOOD, *TABLEWARE, *PLACES, *EXTRAS) for words in _words(kind)}
COUNTED_NAME = re.compile(
    rf"\b(?:(\d+|{'|'.join(NUMBERS)}|a couple of)x? )?"
    rf"\b({'|'.join(sorted(KINDS, key=len, reverse=True))})\b"
    r"(?: x(\d+))?"
)


def read_back(sentence: str, task_type: str) -> dict[str, int]:
    """Return the classes in a sentence with counts, by a small reader that knows the names but not the patterns."""
    table = "coffeetable" if task_type in ("prepare_snack", "read_book") else "kitchentable"
    matches = COUNTED_NAME.findall(re.sub(r"\b(the|dirty) dishes\b", "", sentence.lower()))
    return {table if name == "table" else KINDS[name]: _count(before or after) for before, name, after in matches}


def _count(words: str) -> int:
    if not words:
        return 1
    return NUMBERS.index(words) if words in NUMBERS else 2 if words == "a couple of" else int(words)


def classes_of(goal: Goal) -> dict[str, int]:
    atoms = [(predicate.split("_"), count) for predicate, count in goal]
    return {words[1]: count for words, count in atoms} | {words[-1]: 1 for words, _ in atoms}


@pytest.mark.parametrize("task_type", TASK_TYPES)
def test_the_goal_can_be_read_back_from_instructions_and_all_usual_phrasings(task_type: str) -> None:
    rng = Random(task_type)
    for number in range(1000):
        goal = random_goal(task_type, rng)
        usual = all_phrasings(task_type, goal) if number < 20 else []
        assert number >= 20 or len(usual) >= 25
        for sentence in (phrase(task_type, goal, rng), *usual):
            assert read_back(sentence, task_type) == classes_of(goal), (sentence, goal)
            assert not DIRT.search(sentence), sentence


def test_washing_is_mentioned_if_and_only_if_the_dishwasher_runs() -> None:
    rng = Random(1)
    for _ in range(1500):
        goal = random_goal("put_dishwasher", rng)
        sentence = phrase("put_dishwasher", goal, rng)
        assert bool(WASHED.search(sentence)) == (("turnOn_dishwasher", 1) in goal), sentence


GLASSES: Goal = (("on_waterglass_kitchentable", 1), ("on_wineglass_kitchentable", 2))


def test_sentences_are_deterministic_and_varied() -> None:
    assert phrase("setup_table", GLASSES, Random(5)) == phrase("setup_table", GLASSES, Random(5))
    assert len({phrase("setup_table", GLASSES, Random(seed)) for seed in range(1000)}) >= 900
    single = (("inside_apple_fridge", 1),)
    assert len({phrase("put_fridge", single, Random(seed)) for seed in range(1000)}) >= 200


def test_orders_cases_and_punctuation_vary() -> None:
    sentences = [phrase("setup_table", GLASSES, Random(seed)) for seed in range(200)]
    assert any(s.index("wine") < s.index("wa") for s in sentences if "wa" in s)
    assert {s[0].isupper() for s in sentences} == {True, False} and {s[-1] for s in sentences} >= {".", "?", "e", "s"}


def test_ambiguous_names_are_avoided() -> None:
    assert "glass" in names_for("waterglass", ["waterglass", "plate"])
    assert "glass" not in names_for("waterglass", ["waterglass", "wineglass"])
    assert "pot" in names_for("cookingpot") and "pot" not in names_for("cookingpot", ["coffeepot"])
    assert names_for("glasses", ["waterglass"]) == ("glasses",)


def test_a_bare_table_is_the_usual_one_of_the_task() -> None:
    coffee = [phrase("setup_table", (("on_plate_coffeetable", 1),), Random(seed)).lower() for seed in range(500)]
    assert all(re.search(r"coffee|low|living room", sentence) for sentence in coffee)
    kitchen = [phrase("setup_table", (("on_plate_kitchentable", 1),), Random(seed)).lower() for seed in range(500)]
    alone = [s for s in kitchen if not re.search("kitchen|dining|dinner table", s)]
    assert 0 < len(alone) < 100


def test_any_class_and_any_count() -> None:
    sentences = all_phrasings("put_fridge", (("inside_bottlewater_fridge", 12), ("inside_peach_fridge", 1)))
    assert all("12 bottled waters" in sentence and "peach" in sentence for sentence in sentences)
    assert all("some chips" in s for s in all_phrasings("put_fridge", (("inside_chips_fridge", 1),)) if ":" not in s)
    assert not any(
        "none" in s for s in all_phrasings("put_fridge", (("inside_pie_fridge", 1), ("inside_none_fridge", 0)))
    )


@pytest.mark.parametrize(
    ("task_type", "goal", "message"),
    [
        ("juggle", [("on_apple_coffeetable", 1)], "juggle"),
        ("put_fridge", [("near_apple_fridge", 1)], "near_apple_fridge"),
        ("put_fridge", [("inside_apple_fridge", 1), ("on_wine_coffeetable", 1)], "coffeetable, fridge"),
        ("put_dishwasher", [("turnOn_dishwasher", 1)], "dishwasher"),
        ("put_fridge", [], "things"),
        ("read_book", [("holds_book", 1)], "seat"),
        ("put_fridge", [("inside_apple_fridge", 1), ("sit_sofa", 1)], "no book or seat"),
        ("put_fridge", [("inside_apple_fridge", 1), ("turnOn_fridge", 1)], "turns nothing on"),
    ],
)
def test_impossible_goals_are_errors(task_type: str, goal: Sequence[tuple[str, int]], message: str) -> None:
    with pytest.raises(DataError, match=message):
        phrase(task_type, goal, Random(0))


@pytest.mark.parametrize(
    ("singular", "plural_form"),
    [("wine glass", "wine glasses"), ("glass for wine", "glasses for wine"), ("bottle of wine", "bottles of wine"),
     ("table knife", "table knives"), ("loaf of pound cake", "loaves of pound cake"), ("chips", "chips"),
     ("dish", "dishes"), ("box", "boxes"), ("mouse", "mice"), ("toy", "toys"), ("slice of bread", "slices of bread")],
)  # fmt: skip
def test_plurals(singular: str, plural_form: str) -> None:
    assert plural(singular) == plural_form


def test_spoken_and_class_names_are_inverse() -> None:
    assert [spoken_name(name) for name in ("kitchentable", "dishbowl", "plate")] == ["kitchen table", "bowl", "plate"]
    for name in (*FOOD, *TABLEWARE, *PLACES, *SYNONYMS):
        assert class_of_words(spoken_name(name)) == name
    assert class_of_words("kitchentable") is class_of_words("salmon") is class_of_words("flying carpet") is None
    assert (article("apple"), article("plate")) == ("an", "a")


def test_names_are_the_benchmarks(wah_data: Callable[[str], Path]) -> None:
    table = json.loads(wah_data("resources/wah_objects_sim2nl.json").read_text())
    assert {name: spoken_name(name) for name in table} == table
    assert {name: class_of_words(words) for name, words in table.items()} == {name: name for name in table}

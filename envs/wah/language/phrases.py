"""Phrases for the goals of Watch-And-Help's tasks, with varied sentence patterns, names and lists."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from operator import itemgetter
from random import Random
from typing import Any

from envs.wah.language import templates
from envs.wah.language.names import MEASURES, article, names_for, plural
from envs.wah.scene import TASK_TYPES
from keep_agent.errors import DataError

Goal = Sequence[tuple[str, int]]
Choose = Callable[[Sequence[Any]], Any]  # chooses one of several options; the first is the usual one

_WORD = re.compile(r"\[(\w+)\]")
_SENTENCE = re.compile(r"(?<=[.!?] )[a-z]")
_WORD_COUNTS = {"on": 3, "inside": 3, "turnOn": 2, "holds": 2, "sit": 2}
# By task type: the class that "the table" means.
_THE_TABLE = {
    "prepare_snack": "coffeetable", "prepare_food": "kitchentable", "setup_table": "kitchentable",
    "read_book": "coffeetable",
}  # fmt: skip


def phrase(task_type: str, goal: Goal, rng: Random) -> str:
    """Return one or two sentences that express the whole goal."""

    def choose(options: Sequence[Any]) -> Any:
        usual = len(options) == 1 or rng.random() < 0.4
        return options[0] if usual else rng.choice(options[1:])

    parts = _parts(goal)
    order = rng.sample(parts.things, len(parts.things)) if rng.random() < 0.5 else parts.things
    slots = _slots(task_type, parts, order, choose)
    commands, statements = _patterns(task_type, parts)
    form = rng.choice(commands + statements)
    sentence = _render(form, slots, choose)
    if form in commands:
        wrappers = templates.WRAPPERS if ":" in sentence else templates.WRAPPERS + templates.LATE_WRAPPERS
        sentence = choose(wrappers).format(sentence)
    return _punctuate(sentence, rng)


def all_phrasings(task_type: str, goal: Goal) -> list[str]:
    """Return the goal in every sentence pattern once, with the usual names and words."""
    parts = _parts(goal)
    usual = itemgetter(0)
    slots = _slots(task_type, parts, parts.things, usual)
    forms = [form for group in _patterns(task_type, parts) for form in group]
    return list(dict.fromkeys(_render(form, slots, usual) for form in forms))


@dataclass(frozen=True, slots=True)
class _GoalParts:
    """Parts of a goal; a class is "" if the goal has no such part."""

    things: tuple[tuple[str, int], ...]  # (class, count)
    place: str  # class of the place for the things
    inside: bool  # whether the things go into the place instead of onto it
    runs: bool  # whether the place is turned on
    book: str  # class to hold
    seat: str  # class to sit on


def _parts(goal: Goal) -> _GoalParts:
    atoms = [(predicate.split("_"), count) for predicate, count in goal if count > 0]
    for words, _ in atoms:
        if len(words) != _WORD_COUNTS.get(words[0]):
            raise DataError(f"unknown predicate {'_'.join(words)!r}; predicates begin with {', '.join(_WORD_COUNTS)}")

    def object_of(*relations: str) -> str:
        last = {words[-1] for words, _ in atoms if words[0] in relations}
        if len(last) > 1:
            raise DataError(
                f"an instruction has one place, book or seat, not {', '.join(sorted(last))}; make it two tasks"
            )
        return last.pop() if last else ""

    things = tuple((words[1], count) for words, count in atoms if len(words) == 3)
    place, machine = object_of("on", "inside"), object_of("turnOn")
    if machine not in ("", place):
        raise DataError(f"{machine} is turned on, but the goal puts nothing into it; add a thing or leave turnOn out")
    return _GoalParts(things, place, bool(object_of("inside")), bool(machine), object_of("holds"), object_of("sit"))


def _patterns(task_type: str, parts: _GoalParts) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Return the sentence patterns for a task: commands, and statements."""
    if task_type not in TASK_TYPES:
        raise DataError(f"unknown task type {task_type!r}; choose one of {', '.join(TASK_TYPES)}")
    reads = task_type == "read_book"
    if (bool(parts.book), bool(parts.seat)) != (reads, reads) or not (reads or parts.things):
        needed = "a book and a seat" if reads else "things, and no book or seat"
        raise DataError(f"the goal of a {task_type} needs {needed}")
    if parts.runs and task_type != "put_dishwasher":
        raise DataError(f"{task_type} turns nothing on, but the goal has turnOn_{parts.place}; leave it out")
    kind = "run_dishwasher" if parts.runs else "read_and_snack" if reads and parts.things else task_type
    return _patterns_for_count(templates.COMMANDS[kind], parts), _patterns_for_count(templates.STATEMENTS[kind], parts)


def _patterns_for_count(forms: tuple[str, ...], parts: _GoalParts) -> tuple[str, ...]:
    """Return the patterns that fit the number of things: patterns with a list need several things."""
    single = len(parts.things) == 1
    return tuple(form for form in forms if not (single and ("{rest}" in form or "{items}" in form)))


def _render(form: str, slots: dict[str, str], choose: Choose) -> str:
    return _WORD.sub(lambda match: choose(templates.WORDS[match[1]]), form).format_map(slots)


def _punctuate(sentence: str, rng: Random) -> str:
    if rng.random() < 0.8:
        sentence = _SENTENCE.sub(lambda match: match[0].upper(), sentence[0].upper() + sentence[1:])
    if sentence.endswith("?"):
        return sentence if rng.random() < 0.85 else sentence[:-1]
    return sentence + "." if rng.random() < 0.7 else sentence


def _slots(task_type: str, parts: _GoalParts, order: Sequence[tuple[str, int]], choose: Choose) -> dict[str, str]:
    """Return the text for each slot (placeholder) of `templates`; names and styles are drawn once per sentence."""
    kinds = [kind for kind, _ in order]
    names = [(choose(names_for(kind, kinds)), count) for kind, count in order]
    slots = _reading_slots(parts, choose)
    if not names:
        return slots
    style, item_style = choose(templates.DETERMINERS), choose(templates.ITEM_STYLES)
    things = [_with_count(name, count, _determiner(style, i, choose), choose) for i, (name, count) in enumerate(names)]
    items = [_with_count(name, count, item_style, choose) for name, count in names]
    (name, count), *more = names
    joints = templates.LONG_JOINTS + templates.JOINTS if len(things) > 2 else templates.JOINTS
    single = not more and count == 1 and plural(name) != name
    slots |= _destination_slots(task_type, parts, choose, bare=style == "bare")
    return slots | {
        "things": _join(things, choose(joints)), "first": things[0], "rest": _join(things[1:], templates.JOINTS[0]),
        "items": _join(items, choose(templates.ITEM_JOINTS)),
        "them": "it" if single else "them", "are": "is" if single else "are",
    }  # fmt: skip


def _destination_slots(task_type: str, parts: _GoalParts, choose: Choose, bare: bool) -> dict[str, str]:
    names = names_for(parts.place)
    if _THE_TABLE.get(task_type) != parts.place:
        names = tuple(name for name in names if name != "table")
    name = choose(names)
    place = name if bare and choose((False, True)) else f"the {name}"
    words = ("in", "in", "in", "inside") if parts.inside else ("on", "on", "on", "on top of")
    return {
        "place": place, "on": f"{choose(words)} {place}", "onto": f"{choose((*words, f'{words[0]}to'))} {place}",
        "to": f"to {place}",
    }  # fmt: skip


def _reading_slots(parts: _GoalParts, choose: Choose) -> dict[str, str]:
    slots = {}
    if parts.book:
        book = choose(names_for(parts.book))
        slots["book"] = f"{choose((article(book), 'the', 'the', 'one', '1'))} {book}"
    if parts.seat:
        slots["seat"] = f"the {choose(names_for(parts.seat))}"
    return slots


def _join(words: Sequence[str], joint: tuple[str, str]) -> str:
    between, before_last = joint
    return before_last.join(words) if len(words) < 3 else before_last.join((between.join(words[:-1]), words[-1]))


def _determiner(style: str, position: int, choose: Choose) -> str:
    """Return the determiner of one thing in a list; the style "once" gives "the plate, fork and glass"."""
    if style == "mixed":
        return choose(("a", "the", "one", "1"))
    if style == "once":
        return "bare" if position else choose(("the", "a"))
    return style


def _with_count(name: str, count: int, style: str, choose: Choose) -> str:
    """Return a name with a determiner or a number, in one of the styles of `templates`."""
    if style == "x":
        return f"{count}x {name}"
    if count > 1:
        return f"{name} x{count}" if style == "times" else _with_number(name, count, style, choose)
    if style == "the":
        return f"the {name}"
    if style == "a":
        return f"{_indefinite(name, choose)} {name}"
    if style in ("one", "1"):
        return f"{style} {_with_unit(name, choose)}"
    return name


def _with_number(name: str, count: int, style: str, choose: Choose) -> str:
    word = templates.NUMBERS[count] if count < len(templates.NUMBERS) else str(count)
    number = str(count) if style == "1" else choose((word, word, str(count)))
    if count == 2 and style == "a":
        number = choose((number, number, number, "a couple of"))
    noun = plural(_with_unit(name, choose))
    return f"the {number} {noun}" if style == "the" and choose((False, True)) else f"{number} {noun}"


def _indefinite(name: str, choose: Choose) -> str:
    if plural(name) == name:
        return "some"
    return choose(("some", article(name))) if name in MEASURES else article(name)


def _with_unit(name: str, choose: Choose) -> str:
    """Return a name that can follow a number: "bag of chips", "juice" or "bottle of juice"."""
    with_unit = f"{MEASURES.get(name, 'set')} of {name}"
    if plural(name) == name:
        return with_unit
    return choose((name, with_unit)) if name in MEASURES else name

"""Says a task the way people do: many sentence patterns, names and verbs for the same thing."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from random import Random

from envs.alfred.names import MASS_PLURALS, names_for, plural, prepositions
from envs.alfred.scene import Task
from envs.alfred.templates import GARBAGE_TEMPLATES, SLICE_NAMES, SLICED_TEMPLATES, TEMPLATES, WORDS
from keep_agent.errors import DataError

Choose = Callable[[Sequence[str]], str]

_WORD = re.compile(r"\[(\w+)\]")
_SLOT = re.compile(r"\{(\w+)(?: ([^}]+))?\}")
_ARTICLE = re.compile(r"\b([Aa]) (?=[aeiou])")
_PARTICLE = re.compile(r"\b(\w+) (up|down|off) it\b")  # "warm up it" -> "warm it up"


def templates(task: Task) -> tuple[str, ...]:
    """The sentence patterns that fit a task."""
    if task.type not in TEMPLATES:
        raise DataError(f"unknown task type {task.type!r}; choose one of {', '.join(TEMPLATES)}")
    garbage = GARBAGE_TEMPLATES.get(task.type, ()) if task.parent_target == "GarbageCan" else ()
    if task.sliced:
        return SLICED_TEMPLATES[task.type] * 2 + TEMPLATES[task.type] + garbage
    return TEMPLATES[task.type] + garbage


def phrase(task: Task, rng: Random, present: frozenset[str] = frozenset()) -> str:
    """One sentence for a task. Names that another type in ``present`` (the types in the room) shares are not used."""

    def choose(options: Sequence[str]) -> str:
        usual = len(options) == 1 or rng.random() < 0.4
        return options[0] if usual else rng.choice(options[1:])

    sentence = _render(rng.choice(templates(task)), task, choose, present)
    sentence = sentence[0].upper() + sentence[1:] if rng.random() < 0.8 else sentence
    return sentence + "." if rng.random() < 0.7 else sentence


def all_phrasings(task: Task) -> list[str]:
    """Every pattern once, with the usual names and words."""
    return list(dict.fromkeys(_render(form, task, lambda options: options[0], frozenset()) for form in templates(task)))


def _render(form: str, task: Task, choose: Choose, present: frozenset[str]) -> str:
    words = _WORD.sub(lambda match: choose(WORDS[match[1]]), form)
    slots = _slots(task, choose, present)
    sentence = _SLOT.sub(lambda match: slots[match[1]](match[2] or ""), words)
    return _PARTICLE.sub(r"\1 it \2", _ARTICLE.sub(r"\1n ", sentence))


def _slots(task: Task, choose: Choose, present: frozenset[str]) -> dict[str, Callable[[str], str]]:
    """What each slot says, given an adjective; names are drawn once, so that a sentence sticks to them."""
    whole = choose(names_for(task.object_target, present))
    one = choose(SLICE_NAMES).format(whole.partition(" of ")[2] or whole) if task.sliced else whole
    slots: dict[str, Callable[[str], str]] = {
        "a": lambda adjective: _with_article(one, adjective),
        "the": lambda adjective: _join("the", adjective, one),
        "two": lambda adjective: _join("two", adjective, plural(one)),
        "plural": lambda adjective: plural(one),
        "a_whole": lambda adjective: _with_article(whole, ""),
        "the_whole": lambda adjective: f"the {whole}",
    }
    if task.parent_target:
        slots |= _destination(task.parent_target, choose, present)
    if task.mrecep_target:
        carrier = choose(names_for(task.mrecep_target, present))
        inside = f"{choose(prepositions(task.mrecep_target))} the {carrier}"
        slots["a_carrier"] = lambda adjective: f"a {carrier}"
        slots["the_carrier"] = lambda adjective: f"the {carrier}"
        slots["in_carrier"] = lambda adjective: inside
    if task.toggle_target:
        lamp = choose(names_for(task.toggle_target, present))
        slots["a_lamp"] = lambda adjective: f"a {lamp}"
        slots["the_lamp"] = lambda adjective: f"the {lamp}"
    return slots


def _destination(kind: str, choose: Choose, present: frozenset[str]) -> dict[str, Callable[[str], str]]:
    place = choose(names_for(kind, present))
    words = prepositions(kind)
    on = f"{choose(words)} {choose(('the', 'a'))} {place}"
    return {
        "on": lambda adjective: on,
        "onto": lambda adjective: f"{words[0]}to the {place}",
        "to": lambda adjective: f"to the {place}",
    }


def _join(*words: str) -> str:
    return " ".join(word for word in words if word)


def _with_article(noun: str, adjective: str) -> str:
    article = "some" if noun in MASS_PLURALS else "a"
    return _join(article, adjective, noun)

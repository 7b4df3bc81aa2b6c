"""Instructions for tasks in everyday language, with many sentence patterns, names and verbs for the same meaning."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from random import Random

from envs.alfred.language.names import MASS_PLURALS, names_for, plural, prepositions
from envs.alfred.language.templates import (
    ADJECTIVES,
    GARBAGE_TEMPLATES,
    SLICE_NAMES,
    SLICED_TEMPLATES,
    SOURCE_TEMPLATES,
    TEMPLATES,
    WORDS,
)
from envs.alfred.scene import Task
from keep_agent.errors import DataError

Choose = Callable[[Sequence[str]], str]

_WORD = re.compile(r"\[(\w+)\]")
_SLOT = re.compile(r"\{(\w+)(?: ([^}]+))?\}")
_ARTICLE = re.compile(r"\b([Aa]) (?=[aeiou])")
_LONGER_PREPOSITIONS = {"in": ("in", "in", "inside"), "on": ("on", "on", "on top of")}
_PARTICLE = re.compile(r"\b(\w+) (up|down|off) it\b")  # "warm up it" -> "warm it up"


def templates(task: Task) -> tuple[str, ...]:
    """Return the sentence patterns that fit a task."""
    if task.type not in TEMPLATES:
        raise DataError(f"unknown task type {task.type!r}; choose one of {', '.join(TEMPLATES)}")
    garbage = GARBAGE_TEMPLATES.get(task.type, ()) if task.parent_target == "GarbageCan" else ()
    if task.sliced:
        return SLICED_TEMPLATES[task.type] * 2 + TEMPLATES[task.type] + garbage
    return TEMPLATES[task.type] + garbage


def phrase(task: Task, rng: Random, present: frozenset[str] = frozenset(), source: str = "") -> str:
    """Return one sentence for a task. It avoids names that also fit another type in ``present``, if it can.

    ``source`` is the type of the place where the object starts, or "". Some sentences add the place or an adjective.
    """

    def choose(options: Sequence[str]) -> str:
        usual = len(options) == 1 or rng.random() < 0.4
        return options[0] if usual else rng.choice(options[1:])

    def adjective(noun: str) -> str:
        return f"{rng.choice(ADJECTIVES)} {noun}" if rng.random() < 0.07 else noun

    tell_source = source and not task.sliced and rng.random() < 0.15
    form = rng.choice(SOURCE_TEMPLATES[task.type] if tell_source else templates(task))
    sentence = _render(form, _Wording(task, choose, adjective, present, source))
    sentence = sentence[0].upper() + sentence[1:] if rng.random() < 0.8 else sentence
    return sentence + "." if rng.random() < 0.7 else sentence


def all_phrasings(task: Task) -> list[str]:
    """Return one sentence for each pattern, with the usual names and words."""
    wording = _Wording(task, lambda options: options[0], lambda noun: noun, frozenset(), "")
    return list(dict.fromkeys(_render(form, wording) for form in templates(task)))


@dataclass(frozen=True, slots=True)
class _Wording:
    """Choices of names and words for one sentence."""

    task: Task
    choose: Choose
    adjective: Callable[[str], str]
    present: frozenset[str]
    source: str

    def name(self, kind: str) -> str:
        return self.adjective(self.choose(names_for(kind, self.present)))


def _render(form: str, wording: _Wording) -> str:
    words = _WORD.sub(lambda match: wording.choose(WORDS[match[1]]), form)
    slots = _slots(wording)

    def fill(match: re.Match[str]) -> str:
        slot = slots[match[1]]
        return slot if isinstance(slot, str) else slot(match[2] or "")

    sentence = _SLOT.sub(fill, words)
    return _PARTICLE.sub(r"\1 it \2", _ARTICLE.sub(r"\1n ", sentence))


def _slots(wording: _Wording) -> dict[str, str | Callable[[str], str]]:
    """Return each slot's text, or a function that makes it from an adjective, by slot name ("on" for ``{on}``)."""
    task = wording.task
    whole = wording.choose(names_for(task.object_target, wording.present))
    noun = wording.adjective(whole) if whole not in MASS_PLURALS else whole
    if task.sliced:
        noun = wording.choose(SLICE_NAMES).format(whole.partition(" of ")[2] or whole)
    slots: dict[str, str | Callable[[str], str]] = {
        "a": lambda adjective: _with_article(noun, adjective),
        "the": lambda adjective: _join("the", adjective, noun),
        "two": lambda adjective: _join("two", adjective, plural(noun)),
        "plural": plural(noun),
        "a_whole": _with_article(whole, ""),
        "the_whole": f"the {whole}",
    }
    if task.parent_target:
        place, words = wording.name(task.parent_target), prepositions(task.parent_target)
        on = f"{wording.choose(_LONGER_PREPOSITIONS[wording.choose(words)])} {wording.choose(('the', 'a'))} {place}"
        slots |= {"on": on, "onto": f"{words[0]}to the {place}", "to": f"to the {place}"}
    if task.mrecep_target:
        carrier = wording.name(task.mrecep_target)
        inside = f"{wording.choose(prepositions(task.mrecep_target))} the {carrier}"
        slots |= {"a_carrier": f"a {carrier}", "the_carrier": f"the {carrier}", "in_carrier": inside}
    if task.toggle_target:
        lamp = wording.name(task.toggle_target)
        slots |= {"a_lamp": f"a {lamp}", "the_lamp": f"the {lamp}"}
    if wording.source:
        slots["from"] = f"from the {wording.name(wording.source)}"
    return slots


def _join(*words: str) -> str:
    return " ".join(word for word in words if word)


def _with_article(noun: str, adjective: str) -> str:
    article = "some" if noun in MASS_PLURALS else "a"
    return _join(article, adjective, noun)

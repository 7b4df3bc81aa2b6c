"""Facts from outside, checked before a planner remembers any of them."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import fields
from typing import TYPE_CHECKING, Any

from envs.fact import Fact
from keep_agent.agent.request_validation import on_one_line
from keep_agent.errors import DataError

if TYPE_CHECKING:
    from planners.prompts.styles import FactView

CATEGORIES = ("object", "receptacle", "agent")
WORD = re.compile(r"[^\s/]{1,64}")  # a name in a line of memory
PLANNER_IDS = re.compile(r"(did|task)_(\d+)")  # what the planner calls its own segments
MOST = 64  # states of a thing, or things that the agent sees
UNTOLD = (
    "a plan was asked for, but no fact says where the agent is and what it holds: observe one of category 'agent', "
    "such as Fact('agent', 'agent', 'agent', place='countertop_1')"
)
NAMES = tuple(field.name for field in fields(Fact))


def as_list(facts: Iterable[FactView | Mapping[str, Any]]) -> list[FactView | Mapping[str, Any]]:
    """Several facts as a list, none of them checked. Raises DataError for what is not several, such as one fact."""
    if isinstance(facts, str | Mapping) or not isinstance(facts, Iterable):
        raise DataError(f"facts={facts!r:.80}: give a list of facts, such as [Fact('mug_1', 'object', 'mug')]")
    return list(facts)


def fields_of(fact: FactView | Mapping[str, Any]) -> dict[str, Any]:
    """The fields of a fact, as far as it has them."""
    if isinstance(fact, Mapping):
        return dict(fact)
    return {name: getattr(fact, name) for name in NAMES if hasattr(fact, name)}


def checked_facts(
    facts: Iterable[FactView | Mapping[str, Any]], category_of: Callable[[str], str | None]
) -> list[Fact]:
    """``facts`` as they came, or none of them. Of several about one thing the last counts.

    :param category_of: of a thing that is known already
    :raises DataError: naming the fact and what to do about it
    """
    items = [_fact(fact) for fact in facts]
    known: dict[str, str] = {}
    for fact in items:
        before = known.get(fact.id) or category_of(fact.id)
        if before not in (None, fact.category):
            raise DataError(f"fact {fact.id!r} was a {before} before, not a {fact.category}: give it another id")
        known[fact.id] = fact.category
    return list({fact.id: fact for fact in items}.values())


def _fact(source: FactView | Mapping[str, Any]) -> Fact:
    row = fields_of(source)
    strange = sorted(map(str, row.keys() - set(NAMES)))
    if strange:
        raise DataError(f"a fact has the unknown field {strange[0]!r}; its fields are {', '.join(NAMES)}")
    for name in ("id", "category", "type"):
        if name not in row:
            raise DataError(f"fact {row.get('id', row)!r:.80} has no {name}; add it")
    fact = Fact(**{**row, **{name: _words(row, name) for name in ("states", "sees") if name in row}})
    _check(fact)
    return fact


def _words(row: Mapping[str, Any], name: str) -> tuple[Any, ...]:
    value = row[name]
    if isinstance(value, str) or not isinstance(value, Iterable):
        raise DataError(f"fact {row.get('id')!r:.80} has {name}={value!r:.80}; give a list of words")
    items = tuple(value)
    if len(items) > MOST:
        raise DataError(f"fact {row.get('id')!r:.80} has {len(items)} {name}; give up to {MOST}")
    return items


def _check(fact: Fact) -> None:
    if fact.category not in CATEGORIES:
        raise DataError(f"fact {fact.id!r:.80} has category {fact.category!r:.80}; use {', '.join(CATEGORIES)}")
    related = {"place": _ids(fact.place), "holds": _ids(fact.holds), "sees": fact.sees}
    for name, words in {"id": [fact.id], "type": [fact.type], "states": fact.states, **related}.items():
        for word in words:
            if not isinstance(word, str) or not WORD.fullmatch(word) or not on_one_line(word):
                raise DataError(
                    f"fact {fact.id!r:.80} has {name}={word!r:.80}; give a word of up to 64 characters without spaces "
                    "or slashes, such as mug_1"
                )
    for name, ids in related.items():
        if fact.id in ids:
            raise DataError(f"fact {fact.id!r} has {name}={fact.id!r}: name another thing than itself")
    if PLANNER_IDS.fullmatch(fact.id):
        raise DataError(f"fact id {fact.id!r} is what the planner calls segments of its own; use another")
    if not isinstance(fact.gone, bool):
        raise DataError(f"fact {fact.id!r} has gone={fact.gone!r:.80}; give true or false")


def _ids(id: str | None) -> tuple[str, ...]:
    """The id of another thing, if one is named."""
    return () if id is None or id == "" else (id,)

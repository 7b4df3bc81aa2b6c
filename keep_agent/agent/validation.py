"""Validation of input from robots and callers: requests, facts and saved memories."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import fields, replace
from hashlib import sha256
from typing import TYPE_CHECKING, Any

from envs.fact import Fact
from envs.outcome import Outcome
from keep_agent.errors import CapacityError, ConfigError, DataError
from keep_agent.files import SURROGATE
from planners.prompts.text import clean

if TYPE_CHECKING:
    from planners.prompts.styles import FactView

MAX_TEXT = 2000  # maximum characters of an instruction or a message
MAX_SKILL = 200  # maximum characters of a skill
MAX_SKILLS = 1000  # maximum number of skills to choose from
MAX_ALL_SKILLS = 20_000  # maximum characters of all skills together, since the model scores each
LINE_BREAKS = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028\u2029\ud800-\udfff]")  # controls, line separators, surrogates
CATEGORIES = ("object", "receptacle", "agent")
WORD = re.compile(r"[^\s/]{1,64}")  # an id, a type or a state
PLANNER_IDS = re.compile(r"(did|task|example)_(\d+)")  # ids of executed skills, finished tasks and examples
MAX_WORDS = 64  # maximum number of states, or of visible objects, in a fact
AGENT_UNKNOWN = (
    "a plan was requested, but no fact gives the agent's place and hands: observe a fact of category 'agent', "
    "such as Fact('agent', 'agent', 'agent', place='countertop_1')"
)
FACT_FIELDS = tuple(field.name for field in fields(Fact))
MAX_NUMBER = 1 << 40  # maximum of any number in a saved memory
MAX_AGENT_LINE = 2 * 65 * (MAX_WORDS + 2)  # maximum characters of the agent's line: type and id of everything it names
MAX_SEGMENTS = 10_000_000  # maximum number of segments created in the lifetime of a memory
SEGMENTS_PER_THING = 4  # maximum number of segments per object or receptacle: first and latest line, a skill, a task
MEAN_TEXT, SMALL_MEMORY = 128, 1 << 20  # characters: maximum mean per segment; total allowed whatever the mean
PLANNER_SEGMENTS = {"did": ("history", "done"), "task": ("task", "tasks")}  # id prefix: category, key of the counter


def checked_request(instruction: str, skills: Sequence[str]) -> tuple[str, tuple[str, ...]]:
    """Return the instruction, and the skills without repetitions. Raises ConfigError for invalid texts."""
    if not _is_text(instruction, MAX_TEXT):
        raise ConfigError(f"instruction={instruction!r:.80}: give one to {MAX_TEXT} characters of text")
    if isinstance(skills, str) or not isinstance(skills, Collection) or not 1 <= len(skills) <= MAX_SKILLS:
        raise ConfigError(f"skills={skills!r:.80}: give a list of 1 to {MAX_SKILLS} skills that are possible now")
    for skill in skills:
        if not _is_text(skill, MAX_SKILL) or not is_one_line(skill):
            raise ConfigError(f"skill {skill!r:.80}: give one to {MAX_SKILL} characters of text on one line")
    if sum(map(len, skills)) > MAX_ALL_SKILLS:
        raise ConfigError(f"the skills have {sum(map(len, skills))} characters together; give up to {MAX_ALL_SKILLS}")
    return instruction, tuple(dict.fromkeys(skills))


def check_report(outcome: Outcome, number: int | None) -> None:
    """Raises ConfigError for an invalid report. A blank message counts as none."""
    check_outcome(outcome)
    check_number("number", number)
    message = outcome.message
    if message.strip() and not _is_text(message, MAX_TEXT):
        raise ConfigError(f"message={message!r:.80}: give up to {MAX_TEXT} characters of text")


def truncate_outcome(outcome: Outcome) -> Outcome:
    """Cut an outcome's message to `MAX_TEXT` characters, and replace halves of surrogate pairs by "?"."""
    return replace(outcome, message=outcome.message[:MAX_TEXT].encode("utf-8", "replace").decode())


def check_outcome(outcome: Outcome) -> None:
    if not isinstance(outcome, Outcome):
        raise ConfigError(f"outcome={outcome!r:.80}: give an Outcome, such as Outcome(False, 'the fridge is locked')")


def check_number(name: str, number: int | None) -> None:
    """Raises ConfigError for a value that is neither a decision's number nor None."""
    if number is not None and type(number) is not int:
        raise ConfigError(f"{name}={number!r:.80}: give the number of a decision, or None")


def request_digest(instruction: str, skills: Sequence[str]) -> str:
    return sha256(json.dumps([clean(instruction), *skills]).encode()).hexdigest()[:32]


def read_agent_state(state: Mapping[str, Any]) -> tuple[tuple[int, int, int], tuple[str, str, bool] | None, Any]:
    """Split a state of `Agent.dump` into its numbers, the open decision and the planner's part. Raises DataError."""
    try:
        numbers = state["number"], state["steps"], state["tasks"]
        last = state["open"] and tuple(state["open"])
        valid = all(type(number) is int and 0 <= number < 1 << 53 for number in numbers)
        if not valid or (last is not None and [*map(type, last)] != [str, str, bool]):
            raise ValueError("a number or the open decision has a wrong type")
        return numbers, last, state["planner"]
    except (KeyError, TypeError, ValueError) as error:
        problem = f"{type(error).__name__}: {error}"
        raise DataError(f"this is not an agent's memory ({problem}); give one that was saved") from None


def _is_text(value: Any, longest: int) -> bool:
    return isinstance(value, str) and 1 <= len(value) <= longest and bool(value.strip()) and not SURROGATE.search(value)


def is_one_line(text: str) -> bool:
    """Return whether a text has no control character, line separator or half of a surrogate pair."""
    return LINE_BREAKS.search(text) is None


def as_list(facts: Iterable[FactView | Mapping[str, Any]]) -> list[FactView | Mapping[str, Any]]:
    """Return an iterable of facts as a list, without checking the facts. Raises DataError for any other value."""
    if isinstance(facts, str | Mapping) or not isinstance(facts, Iterable):
        raise DataError(f"facts={facts!r:.80}: give a list of facts, such as [Fact('mug_1', 'object', 'mug')]")
    return list(facts)


def fields_of(fact: FactView | Mapping[str, Any]) -> dict[str, Any]:
    if isinstance(fact, Mapping):
        return dict(fact)
    return {name: getattr(fact, name) for name in FACT_FIELDS if hasattr(fact, name)}


def checked_facts(
    facts: Iterable[FactView | Mapping[str, Any]], category_of: Callable[[str], str | None]
) -> list[Fact]:
    """Parse facts and keep the last of each id. ``category_of`` maps a known id to its category. Raises DataError."""
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
    unknown = sorted(map(str, row.keys() - set(FACT_FIELDS)))
    if unknown:
        raise DataError(f"a fact has the unknown field {unknown[0]!r}; its fields are {', '.join(FACT_FIELDS)}")
    for name in ("id", "category", "type"):
        if name not in row:
            raise DataError(f"fact {row.get('id', row)!r:.80} has no {name}; add it")
    for name in filter(row.__contains__, ("states", "sees")):
        if isinstance(row[name], str) or not isinstance(row[name], Iterable):
            raise DataError(f"fact {row['id']!r:.80} has {name}={row[name]!r:.80}; give a list of words")
        row[name] = tuple(row[name])
        if len(row[name]) > MAX_WORDS:
            raise DataError(f"fact {row['id']!r:.80} has {len(row[name])} {name}; give up to {MAX_WORDS}")
    fact = Fact(**row)
    _check_fact(fact)
    return fact


def _check_fact(fact: Fact) -> None:
    if fact.category not in CATEGORIES:
        raise DataError(f"fact {fact.id!r:.80} has category {fact.category!r:.80}; use {', '.join(CATEGORIES)}")
    place, holds = (() if id is None or id == "" else (id,) for id in (fact.place, fact.holds))
    related = {"place": place, "holds": holds, "sees": fact.sees}
    for name, words in {"id": [fact.id], "type": [fact.type], "states": fact.states, **related}.items():
        for word in words:
            if not isinstance(word, str) or not WORD.fullmatch(word) or not is_one_line(word):
                raise DataError(
                    f"fact {fact.id!r:.80} has {name}={word!r:.80}; give a word of up to 64 characters without spaces "
                    "or slashes, such as mug_1"
                )
    for name, ids in related.items():
        if fact.id in ids:
            raise DataError(f"fact {fact.id!r} has {name}={fact.id!r}: name another id than its own")
    if PLANNER_IDS.fullmatch(fact.id):
        raise DataError(f"fact id {fact.id!r} is reserved for the planner's own segments; use another")
    if not isinstance(fact.gone, bool):
        raise DataError(f"fact {fact.id!r} has gone={fact.gone!r:.80}; give true or false")


def check_snapshot(state: Mapping[str, Any]) -> None:
    """Raises DataError for a state in the format of `Agent.dump` that no agent could have saved."""
    planner = state["planner"]
    memory = planner["memory"]
    problems = {
        "a number is too large": any(number >= MAX_NUMBER for number in _numbers(state)),
        "more groups were founded than segments created": not memory["founded"] <= memory["created"] <= MAX_SEGMENTS,
        "its instruction is too long": len(planner["instruction"]) > MAX_TEXT or len(planner["now"]) > MAX_AGENT_LINE,
        "a skill or its message is invalid": any(not _is_turn(turn[0], turn[-1]) for turn in planner["turns"]),
        "the open decision's skill is invalid": state["open"] is not None and not _is_turn(state["open"][0], ""),
        "an object has the id of a skill or a task": not all(
            _has_its_id(*row[:2], planner) for row in memory["segments"]
        ),
    }
    for problem in (problem for problem, is_present in problems.items() if is_present):
        raise DataError(f"this is not a memory that an agent saved: {problem}; give a saved one, unchanged")


def check_size(texts: Sequence[str], limit: int | None) -> None:
    """Raises CapacityError for more or longer segments than ``limit`` objects and receptacles can need."""
    if limit is None:
        return
    most, characters = SEGMENTS_PER_THING * limit, sum(map(len, texts))
    if len(texts) > most or characters > max(SMALL_MEMORY, MEAN_TEXT * most):
        size = f"{len(texts)} segments of {characters} characters"
        raise CapacityError(f"this memory has {size}, too many for {limit} objects and receptacles: raise the limit")


def _numbers(value: Any) -> Iterator[int]:
    stack = [value]
    while stack:
        match stack.pop():
            case Mapping() as inner:
                stack += inner.values()
            case list() as inner:
                stack += inner
            case int(number):
                yield number


def _is_turn(skill: str, message: str) -> bool:
    return 0 < len(skill) <= MAX_SKILL and is_one_line(skill) and len(message) <= MAX_TEXT


def _has_its_id(id: str, category: str, planner: Mapping[str, Any]) -> bool:
    """Return whether id and category match: ``did_N`` is history, ``task_N`` a task, and N <= the planner's count."""
    match = PLANNER_IDS.fullmatch(id)
    if match is None:
        return category not in ("history", "task")
    if match[1] == "example":  # examples are not counted
        return category == "task"
    expected, counter = PLANNER_SEGMENTS[match[1]]
    return category == expected and int(match[2][:15]) <= planner[counter]

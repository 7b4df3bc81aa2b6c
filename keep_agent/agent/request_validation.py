"""Requests of a robot, checked before anything is done about it."""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from hashlib import sha256
from typing import Any

from envs.outcome import Outcome
from keep_agent.errors import ConfigError, DataError
from planners.prompts.text import clean

LONGEST = 2000  # characters of an instruction or a message
SKILL = 200  # characters of a skill
MOST = 1000  # skills to choose from
ALL = 20_000  # characters of all of them: each is computed
BREAKING = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028\u2029\ud800-\udfff]")  # controls, separators of lines, surrogates


def checked_request(instruction: str, skills: Sequence[str]) -> tuple[str, tuple[str, ...]]:
    """The instruction, and the skills without repetitions. Raises ConfigError for texts that cannot be."""
    if not _is_text(instruction, LONGEST):
        raise ConfigError(f"instruction={instruction!r:.80}: give one to {LONGEST} characters of text")
    if isinstance(skills, str) or not isinstance(skills, Collection) or not 1 <= len(skills) <= MOST:
        raise ConfigError(f"skills={skills!r:.80}: give a list of 1 to {MOST} skills that make sense now")
    for skill in skills:
        if not _is_text(skill, SKILL) or not on_one_line(skill):
            raise ConfigError(f"skill {skill!r:.80}: give one to {SKILL} characters of text on one line")
    if sum(map(len, skills)) > ALL:
        raise ConfigError(f"the skills have {sum(map(len, skills))} characters together; give up to {ALL}")
    return instruction, tuple(dict.fromkeys(skills))


def check_report(outcome: Outcome, number: int | None) -> None:
    """Raises ConfigError for what cannot be told. A blank text is no message."""
    check_outcome(outcome)
    check_number("number", number)
    message = outcome.message
    if message.strip() and not _is_text(message, LONGEST):
        raise ConfigError(f"message={message!r:.80}: give up to {LONGEST} characters of text")


def tellable(outcome: Outcome) -> Outcome:
    """As much of an outcome's message as `check_report` takes, with "?" for halves of surrogate pairs."""
    return replace(outcome, message=outcome.message[:LONGEST].encode("utf-8", "replace").decode())


def check_outcome(outcome: Outcome) -> None:
    """Raises ConfigError for anything else."""
    if not isinstance(outcome, Outcome):
        raise ConfigError(f"outcome={outcome!r:.80}: give an Outcome, such as Outcome(False, 'the fridge is locked')")


def check_number(name: str, number: int | None) -> None:
    """Raises ConfigError for what is no decision's number. None is allowed: no decision is named."""
    if number is not None and type(number) is not int:
        raise ConfigError(f"{name}={number!r:.80}: give the number of a decision, or None")


def digest(instruction: str, skills: Sequence[str]) -> str:
    """The same for the same request."""
    return sha256(json.dumps([clean(instruction), *skills]).encode()).hexdigest()[:32]


def read_own(state: Mapping[str, Any]) -> tuple[tuple[int, int, int], tuple[str, str, bool] | None, Any]:
    """The agent's own part of what `Agent.dump` gave: numbers and open decision; and the planner's, as it came.

    Raises DataError.
    """
    try:
        numbers = state["number"], state["steps"], state["tasks"]
        opened = state["open"] and tuple(state["open"])
        sound = all(type(number) is int and 0 <= number < 1 << 53 for number in numbers)
        if not sound or (opened is not None and [type(one) for one in opened] != [str, str, bool]):
            raise ValueError("a number or the open decision is of another kind")
        return numbers, opened, state["planner"]
    except (KeyError, TypeError, ValueError) as error:
        said = f"{type(error).__name__}: {error}"
        raise DataError(f"this is no agent's memory ({said}); give one that was saved") from None


def _is_text(value: Any, longest: int) -> bool:
    return isinstance(value, str) and 1 <= len(value) <= longest and bool(value.strip()) and speakable(value)


def speakable(text: str) -> bool:
    """Can it be written as UTF-8? A half of a surrogate pair cannot."""
    return not any("\ud800" <= letter <= "\udfff" for letter in text)


def on_one_line(text: str) -> bool:
    """Whether text can stand in a line: no control character, line separator or half of a surrogate pair.

    Joiners, soft hyphens and every kind of space are ordinary text.
    """
    return BREAKING.search(text) is None

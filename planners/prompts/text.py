"""Texts of a prompt other than memory segments: instruction, goal, turns and cues.

`planners.prompts.styles` words the memory segments. All texts are whole lines, or begin with a space within a line, so
that parts of a prompt can be tokenised separately and joined by token ids.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

CUE = "next"  # the next skill follows this word
TARGET = "target"  # the focus follows this word, if it has a line of its own
GOAL = "goal"  # the goal of an instruction follows this word
FOCUS = 3  # tokens of a focus: type, name and place of the next target; generated before the skill
NO_TARGET = "nothing"  # word that fills a focus without a target
TYPE_LEVEL = "lota"  # skill set whose skills name types; the skills of all other sets name instances
UNEXPLAINED = "it did not work"  # the text of a failure without a message
PROGRESS = 1  # maximum turns in a query; earlier turns are memory segments
TextPart = tuple[str, bool]  # a text, and whether the model writes it
_INSTANCE = re.compile(r"\b([a-z]+) (\d+)\b")


def entity_text(text: str) -> str:
    """Spell entities as in memory lines: ``go to cabinet 3`` -> ``go to cabinet_3``."""
    return _INSTANCE.sub(r"\1_\2", text)


def entity_names(skill: str) -> tuple[str, ...]:
    """Return the entities of a skill, spelled as in memory lines; none for a skill that names only types."""
    return tuple(f"{kind}_{number}" for kind, number in _INSTANCE.findall(clean(skill)))


def clean(text: str) -> str:
    """Return the text as one line of lower-case words, since a newline ends a line of the memory."""
    return " ".join(text.lower().split())


def spelling(skill: str) -> str:
    """Return the normalised spelling of a skill, the same in all prompt formats."""
    return entity_text(clean(skill))


def reason(message: str) -> str:
    """Return the text of a failure: its message on one line, or `UNEXPLAINED` for an empty message."""
    return clean(message) or UNEXPLAINED


@dataclass(frozen=True, slots=True)
class Turn:
    """An executed skill, its success, and the message of its failure, which may be empty."""

    skill: str
    ok: bool = True
    message: str = ""

    @property
    def text(self) -> str:
        return f"{CUE} {entity_text(self.skill)}\n{self.failure_line}"

    @property
    def failure_line(self) -> str:
        """Line that states a failure; "" after success."""
        return "" if self.ok else f"failed {reason(entity_text(self.message))}\n"


def task_line(skills: str, instruction: str) -> str:
    return f"task {skills} {clean(instruction)}\n"


def goal_query(skills: str, instruction: str) -> str:
    """Return the query for a goal: a task line that the model completes with the goal of the instruction."""
    return task_line(skills, f"{instruction} {GOAL}").removesuffix("\n")


def with_goal(instruction: str, goal: str) -> str:
    """Return the instruction followed by its goal, if known, for the task line of a transcript (layout `append`)."""
    return f"{instruction} {GOAL} {goal}" if goal else instruction


def goal_or_instruction(instruction: str, goal: str) -> str:
    """Return the goal, if known, else the instruction, for the task line of the `memory` layout."""
    return f"{GOAL} {goal}" if goal else instruction


def query_text(skills: str, instruction: str, turns: Sequence[Turn], agent_line: str = "") -> str:
    """Return the query of the `memory` layout, which rebuilds the prompt at every step, up to the cue (`cue_text`).

    ``turns`` are the task's latest turns; ``agent_line`` states where the agent is, what it holds and what it sees.
    """
    return task_line(skills, instruction) + "".join(turn.text for turn in turns) + agent_line


def candidate_text(skill: str) -> str:
    """Return a skill's text after the cue. With the final newline, no skill is a prefix of another skill."""
    return f" {entity_text(skill)}\n"


def decision(focus: str, skill: str, is_target: bool = True, own_line: bool = False) -> list[TextPart]:
    """Return the parts of a decision, from the cue on: focus ("" for none) and skill, each after its cue.

    :param is_target: whether the model writes the skill; a perturbed skill is part of the prompt
    :param own_line: the focus has a line of its own (``target mug mug_2 desk_1``, then ``next pick up mug_2``); else
        both share a line (``next mug mug_2 desk_1 pick up mug_2``)
    """
    parts = [(CUE, False), (candidate_text(skill), is_target)]
    if not focus:
        return parts
    if own_line:
        return [(TARGET, False), (f" {NO_TARGET if focus.startswith(NO_TARGET) else focus}\n", True), *parts]
    return [parts[0], (f" {focus}", True), parts[1]]

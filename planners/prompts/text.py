"""Text around the memory: instruction, latest turns, failures, and the cue for the next skill.

All texts are whole lines, so that token ids of the parts can be spliced without tokenising them together.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

CUE = "next"
GOAL = "goal"  # the cue for the goal of an instruction
FOCUS = 3  # tokens before an instance-level skill: type and name of the target, and the place to go to
NO_TARGET = "nothing"  # each word of a focus without a target
TYPE_LEVEL = "lota"  # the skill set whose skills name types; all others name instances
UNEXPLAINED = "it did not work"  # the text of a failure without a message
PROGRESS = 1  # turns of a task that a query shows; earlier ones are memory segments
_INSTANCE = re.compile(r"\b([a-z]+) (\d+)\b")


def entity_text(text: str) -> str:
    """Spell entities as the memory lines do: ``go to cabinet 3`` -> ``go to cabinet_3``."""
    return _INSTANCE.sub(r"\1_\2", text)


def entity_names(skill: str) -> tuple[str, ...]:
    """Return the entities of a skill in the spelling of the memory lines; none for a type-level skill."""
    return tuple(f"{kind}_{number}" for kind, number in _INSTANCE.findall(clean(skill)))


def clean(text: str) -> str:
    """Return one line of lower-case words, since a newline ends a unit."""
    return " ".join(text.lower().split())


def reason(message: str) -> str:
    """Return the text of a failure: its message on one line, or `UNEXPLAINED` for an empty one."""
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
        """The line that states a failure; "" after success."""
        return "" if self.ok else f"failed {reason(entity_text(self.message))}\n"


def task_line(skills: str, instruction: str) -> str:
    return f"task {skills} {clean(instruction)}\n"


def goal_query(skills: str, instruction: str) -> str:
    """Return the end of a prompt after which the model writes the goal of the instruction, on the same line."""
    return task_line(skills, f"{instruction} {GOAL}").removesuffix("\n")


def with_goal(instruction: str, goal: str) -> str:
    """Return the instruction followed by its goal, if that is known: the task of a transcript."""
    return f"{instruction} {GOAL} {goal}" if goal else instruction


def goal_or_instruction(instruction: str, goal: str) -> str:
    """Return the goal in place of the instruction, if that is known: the task of a rebuilt query."""
    return f"{GOAL} {goal}" if goal else instruction


def query_text(skills: str, instruction: str, turns: Sequence[Turn], agent_line: str = "") -> str:
    """Return the query of the `memory` layout, up to and including the cue.

    ``turns`` are the latest ones; ``agent_line`` states where the agent is, what it holds and what it sees.
    """
    return task_line(skills, instruction) + "".join(turn.text for turn in turns) + agent_line + CUE


def candidate_text(skill: str) -> str:
    """Return the text of a candidate after the cue; its newline keeps one skill from being a prefix of another."""
    return f"{entity_text(skill)}\n"

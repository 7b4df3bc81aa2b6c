"""The text around the memory: instruction, progress, failures, and the cue for the next skill.

Everything is whole lines, so that token ids of parts can be spliced without re-tokenising.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

CUE = "next"
GOAL = "goal"  # the cue for what an instruction asks for
FOCUS = 3  # tokens before an instance-level skill: the type it is for, which one, and where to be for it
NOTHING = "nothing"  # what a focus is full of where the plan is after nothing more
TYPE_LEVEL = "lota"  # skills that name types; all others name instances
UNEXPLAINED = "it did not work"  # what a prompt says of a failure that came without a reason
PROGRESS = 1  # turns of a task that a query tells; what came before is memory
_INSTANCE = re.compile(r"\b([a-z]+) (\d+)\b")


def entity_text(text: str) -> str:
    """``go to cabinet 3`` -> ``go to cabinet_3``: the names the memory lines use."""
    return _INSTANCE.sub(r"\1_\2", text)


def clean(text: str) -> str:
    """One line of lower-case words: no newline may come from outside, it ends a unit."""
    return " ".join(text.lower().split())


def reason(message: str) -> str:
    """What a prompt says of a failure: its message on one line, or `UNEXPLAINED` where there is none."""
    return clean(message) or UNEXPLAINED


@dataclass(frozen=True, slots=True)
class Turn:
    """A decided skill, whether it worked, and why it did not, where somebody says so."""

    skill: str
    ok: bool = True
    message: str = ""

    @property
    def text(self) -> str:
        return f"{CUE} {entity_text(self.skill)}\n{self.failure_line}"

    @property
    def failure_line(self) -> str:
        """The line that tells a failure; "" after success."""
        return "" if self.ok else f"failed {reason(entity_text(self.message))}\n"


def task_line(skills: str, instruction: str) -> str:
    return f"task {skills} {clean(instruction)}\n"


def goal_query(skills: str, instruction: str) -> str:
    """The end of a prompt behind which the model says what the instruction asks for; nothing ends the line yet."""
    return task_line(skills, f"{instruction} {GOAL}").removesuffix("\n")


def understood(instruction: str, goal: str) -> str:
    """An instruction with what it asks for behind it, as a transcript tells tasks once that was said."""
    return f"{instruction} {GOAL} {goal}" if goal else instruction


def in_short(instruction: str, goal: str) -> str:
    """What a query tells of a task: what it asks for in the instruction's place once that was said."""
    return f"{GOAL} {goal}" if goal else instruction


def query_text(skills: str, instruction: str, turns: Sequence[Turn], now: str = "") -> str:
    """The fresh end of a prompt in the `memory` layout, up to and including the cue; ``turns`` are the last few.

    ``now`` is the agent's own line: where it stands, what it holds and sees.
    """
    return task_line(skills, instruction) + "".join(turn.text for turn in turns) + now + CUE


def candidate_text(skill: str) -> str:
    """What a candidate adds after the cue; the newline ends it, so no skill is a prefix of another."""
    return f"{entity_text(skill)}\n"


def named(skill: str) -> tuple[str, ...]:
    """The entities that a skill names, as the memory lines do; none in a type-level one."""
    return tuple(f"{kind}_{number}" for kind, number in _INSTANCE.findall(clean(skill)))

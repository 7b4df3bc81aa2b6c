"""Texts of a prompt: memory segments (lines that state facts) in two styles, the log of a task, and the query.

Segments are whole lines, so that parts of a prompt can be tokenised separately and joined by token ids.

Both styles put the type first, then the entity, then its place and states (``mug mug_2 cabinet_3 hot``). So the
model looks up every fact in the same way: it finds type and entity and copies the next words.

* ``plain``: every line is self-contained. A changed fact replaces its line; the line of a removed entity is deleted.
* ``linked``: a receptacle has a header line. Each object in it has a member line that refers back to the header
  (``there mug mug_2``). A change adds a ``now`` line; the latest one is valid. Since lines depend on each other, as in
  logs, this style loses more accuracy than ``plain`` when KV blocks are reused without recomputation.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Protocol

from keep_agent.errors import check_choice
from memory.segments.segment import Segment

CUE = "next"  # the next skill follows this word
GOAL = "goal"  # the goal of an instruction follows this word
FOCUS = 3  # tokens of a focus: type, name and place of the next target; generated before the skill
NO_TARGET = "nothing"  # word that fills a focus without a target
TYPE_LEVEL = "lota"  # skill set whose skills name types; the skills of all other sets name instances
UNEXPLAINED = "it did not work"  # the text of a failure without a message
UNSEEN, REMOVED = "unseen", "gone"
UPDATE_SUFFIX = "/now"  # suffix of the id of a segment that updates an entity's first segment
PROGRESS = 1  # maximum turns in a query; earlier turns are memory segments
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
    """Return the query of the `memory` layout, which rebuilds the prompt at every step. A query ends with the cue.

    ``turns`` are the task's latest turns; ``agent_line`` states where the agent is, what it holds and what it sees.
    """
    return task_line(skills, instruction) + "".join(turn.text for turn in turns) + agent_line + CUE


def candidate_text(skill: str) -> str:
    """Return a skill's text after the cue. With the final newline, no skill is a prefix of another skill."""
    return f"{entity_text(skill)}\n"


class FactView(Protocol):
    """Protocol of a fact: the fields that a style reads, as in `envs.fact.Fact`."""

    id: str
    category: str
    type: str
    place: str | None
    holds: str | None
    states: tuple[str, ...]
    gone: bool
    sees: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Edit:
    """Change of segment ``id``: its new ``text``, or None to remove it."""

    id: str
    category: str
    text: str | None
    parent: str | None = None  # id of the segment that this one refers back to


class PromptStyle(Protocol):
    """Conversion of facts into segment edits. A style with dependent lines remembers which entities it has written."""

    name: str

    def edits(self, facts: Iterable[FactView]) -> list[Edit]:
        """Return the segment edits of a batch of changed facts, in the order in which the caller applies them."""

    def reset(self) -> None:
        """Forget all entities."""

    def restore(self, segments: Iterable[Segment]) -> None:
        """Restore the style's state from the segments that it wrote."""


def _line(*words: str | None) -> str:
    return " ".join(word for word in words if word) + "\n"


def _agent(fact: FactView) -> Edit:
    visible = [word for name in fact.sees for word in (name.rpartition("_")[0], name)]
    words = ["agent at", fact.place or "start", "holding", fact.holds or "nothing", *(["there"] if visible else [])]
    return Edit(fact.id, "agent", _line(*words, *visible))


def place_of(fact: FactView) -> str | None:
    """Return the place of a fact, spelled as in prompts."""
    return "hand" if fact.place == "agent" else fact.place


def _words(fact: FactView) -> list[str]:
    """Return the words of a fact in the order of a memory line: unseen, type, entity, place, states."""
    unseen, place = [UNSEEN] if UNSEEN in fact.states else [], place_of(fact)
    states = [state for state in fact.states if state != UNSEEN]
    return [*unseen, fact.type, fact.id, *([place] if place else []), *states]


@dataclass
class PlainStyle(PromptStyle):
    """Self-contained lines, one per fact.

    :param states_removal: write a line for a removed entity, since the `append` layout cannot delete the old line
    """

    states_removal: bool = False
    name = "plain"

    def edits(self, facts: Iterable[FactView]) -> list[Edit]:
        return [self._edit(fact) for fact in facts]

    def _edit(self, fact: FactView) -> Edit:
        if fact.category == "agent":
            return _agent(fact)
        if fact.gone:
            return Edit(fact.id, fact.category, _line(fact.type, fact.id, REMOVED) if self.states_removal else None)
        return Edit(fact.id, fact.category, _line(*_words(fact)))


@dataclass
class LinkedStyle(PromptStyle):
    """Headers, member lines that refer back to them, and ``now`` lines, of which the latest is valid."""

    name = "linked"
    _first_lines: dict[str, bool] = field(default_factory=dict)  # by entity id: whether the first line says UNSEEN

    def reset(self) -> None:
        self._first_lines.clear()

    def restore(self, segments: Iterable[Segment]) -> None:
        self._first_lines = {segment.id: segment.text.startswith(f"{UNSEEN} ") for segment in segments}

    def edits(self, facts: Iterable[FactView]) -> list[Edit]:
        facts = list(facts)
        # a header is written for a new receptacle, and again when the receptacle's contents are first seen
        headers = [
            fact for fact in facts if fact.category == "receptacle"
            and (fact.id not in self._first_lines or (self._first_lines[fact.id] and UNSEEN not in fact.states))
        ]  # fmt: skip
        members: dict[str, list[FactView]] = {header.id: [] for header in headers}
        rest: list[FactView] = []
        for fact in facts:
            is_new = fact.category == "object" and fact.id not in self._first_lines and not fact.gone
            if is_new and fact.place in members:
                members[fact.place].append(fact)
            elif fact.id not in members:
                rest.append(fact)
        edits: list[Edit] = []
        for header in headers:
            self._first_lines[header.id] = UNSEEN in header.states
            edits.append(Edit(header.id, "receptacle", _line(*_words(header))))
            for fact in members[header.id]:
                self._first_lines[fact.id] = False
                edits.append(Edit(fact.id, "object", _line("there", fact.type, fact.id, *fact.states), header.id))
        edits.extend(self._later(fact) for fact in rest)
        return edits

    def _later(self, fact: FactView) -> Edit:
        if fact.category == "agent":
            return _agent(fact)
        words = [fact.type, fact.id, REMOVED] if fact.gone else _words(fact)
        line = _line("now", *words)
        if fact.id in self._first_lines:  # a prompt with a `now` line also contains its parent, the first line
            return Edit(f"{fact.id}{UPDATE_SUFFIX}", fact.category, line, parent=fact.id)
        self._first_lines[fact.id] = False
        return Edit(fact.id, fact.category, line)


STYLES: dict[str, type] = {"plain": PlainStyle, "linked": LinkedStyle}


def make_style(name: str, layout: str = "memory") -> PromptStyle:
    """Build a style by name for a prompt layout. Raises ConfigError for an unknown name."""
    check_choice("prompt.style", name, STYLES)
    return PlainStyle(states_removal=layout == "append") if name == "plain" else STYLES[name]()


def history_edit(number: int, skill_line: str) -> Edit:
    """Return the segment of an executed skill."""
    return Edit(f"did_{number}", "history", _line("did", skill_line))


def task_edit(number: int, instruction: str, success: bool, steps: int) -> Edit:
    """Return the segment of a finished task; its text never changes later."""
    outcome = "succeeded" if success else "failed"
    return Edit(f"task_{number}", "task", _line("finished", instruction, outcome, "after", str(steps), "steps"))


@dataclass
class TaskLog:
    """Log of the current task's turns. Turns become history segments, and are dropped once no query needs them."""

    turns: list[Turn] = field(default_factory=list)
    dropped: int = 0  # number of this task's dropped turns, which came before ``turns``
    archived: int = 0  # number of this task's turns that `archive` has handled
    numbered_turns: int = 0  # number of turns archived in all tasks of the episode
    tasks: int = 0  # finished tasks of the episode

    @property
    def length(self) -> int:
        """Turns of this task."""
        return self.dropped + len(self.turns)

    def add(self, turn: Turn, visible: int) -> None:
        """Append a turn; drop archived turns except the last ``visible`` turns, which queries contain."""
        self.turns.append(turn)
        surplus = max(0, min(self.archived, self.length - visible) - self.dropped)
        self.turns, self.dropped = self.turns[surplus:], self.dropped + surplus

    def latest(self, visible: int) -> tuple[list[Turn], int]:
        """Return the last ``visible`` turns (fewer if older ones were dropped) and the number of turns before them."""
        earlier = max(self.dropped, self.length - visible)
        return self.turns[earlier - self.dropped :], earlier

    def archive(self, until: int) -> list[Edit]:
        """Archive the task's first ``until`` turns; return the new history segments. A failed turn has none."""
        until = max(until, self.archived)
        turns, self.archived = self.turns[self.archived - self.dropped : until - self.dropped], until
        numbers = enumerate(turns, self.numbered_turns + 1)
        self.numbered_turns += len(turns)
        return [history_edit(number, entity_text(turn.skill)) for number, turn in numbers if turn.ok]

    def finish(self, instruction: str, success: bool, steps: int) -> list[Edit]:
        """Return the segments of the remaining turns and of the task itself, and begin the next task."""
        edits = self.archive(self.length)
        self.tasks += 1
        self.turns, self.dropped, self.archived = [], 0, 0
        return [*edits, task_edit(self.tasks, clean(instruction), success, steps)]

    def copy(self) -> TaskLog:
        return replace(self, turns=list(self.turns))

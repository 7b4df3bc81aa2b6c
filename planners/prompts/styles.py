"""Prompt styles: the wording of facts, executed skills and finished tasks as memory segments of one line each.

The two terse styles put the type first, then the entity, then its place and states (``mug mug_2 cabinet_3 hot``). So a
small model looks up every fact in the same way: it finds type and entity and copies the next words.

* ``plain``: every line is self-contained. A changed fact replaces its line; the line of a removed entity is deleted.
* ``linked``: a receptacle has a header line. Each object in it has a member line that refers back to the header
  (``there mug mug_2``). A change adds a ``now`` line; the latest one is valid. Since lines depend on each other, as in
  logs, this style loses more accuracy than ``plain`` when KV blocks are reused without recomputation.
* ``natural``: as ``plain``, but every line is an English sentence of 15 to 40 tokens. It is for pretrained models. (The
  memory segments of KEEP, arXiv 2602.23592, figure 1, are of this kind.)
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from keep_agent.errors import check_choice
from memory.segments.segment import Segment
from planners.prompts.text import clean, entity_text

UNSEEN, REMOVED = "unseen", "gone"
EXAMPLE = "example_"  # prefix of the ids of in-context examples
UPDATE_SUFFIX = "/now"  # suffix of the id of a segment that updates an entity's first segment


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
class FactRecord:
    """A stored fact, with the fields of `FactView`."""

    id: str
    category: str
    type: str
    place: str | None = None
    holds: str | None = None
    states: tuple[str, ...] = ()
    gone: bool = False
    sees: tuple[str, ...] = ()


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

    def history(self, number: int, skill: str) -> Edit:
        """Return the segment of an executed skill, the episode's turn ``number``."""
        return Edit(f"did_{number}", "history", self._history_line(skill))

    def finished(self, number: int, instruction: str, success: bool, steps: int) -> Edit:
        """Return the segment of the episode's finished task ``number``; its text never changes later."""
        outcome = "succeeded" if success else "failed"
        return Edit(f"task_{number}", "task", self._task_line(clean(instruction), outcome, steps))

    def example(self, number: int, instruction: str, skills: Sequence[str]) -> Edit:
        """Return the segment of another robot's task, with the skills that carried it out."""
        return Edit(
            f"{EXAMPLE}{number}", "task", self._example_line(clean(instruction), list(map(entity_text, skills)))
        )

    def _history_line(self, skill: str) -> str:
        return _line("did", skill)

    def _example_line(self, instruction: str, skills: Sequence[str]) -> str:
        return _line("example", instruction, *(f"did {skill}" for skill in skills))

    def _task_line(self, instruction: str, outcome: str, steps: int) -> str:
        return _line("finished", instruction, outcome, "after", str(steps), "steps")


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


@dataclass
class NaturalStyle(PlainStyle):
    """Self-contained English sentences, one per fact."""

    name = "natural"

    def _edit(self, fact: FactView) -> Edit:
        if fact.gone and not self.states_removal:
            return Edit(fact.id, fact.category, None)
        sentence = _agent_sentence if fact.category == "agent" else _fact_sentence
        return Edit(fact.id, fact.category, f"{sentence(fact)}.\n")

    def _history_line(self, skill: str) -> str:
        return f"In an earlier step the robot did this with success: {skill}.\n"

    def _example_line(self, instruction: str, skills: Sequence[str]) -> str:
        return f"In an example a robot was asked to do this: {instruction}; its steps were: {_enumeration(skills)}.\n"

    def _task_line(self, instruction: str, outcome: str, steps: int) -> str:
        return f"In an earlier task the robot was asked to do this: {instruction}; it {outcome} after {steps} steps.\n"


def _agent_sentence(fact: FactView) -> str:
    place, load = fact.place or "the start", fact.holds or "nothing"
    return f"The robot is at {place}, holds {load} and sees {_enumeration(fact.sees) or 'nothing'}"


def _fact_sentence(fact: FactView) -> str:
    thing = f"There is a {fact.type} called {fact.id}"
    if fact.gone:
        return f"The {fact.type} called {fact.id} was here before, but it does not exist any more"
    states = _enumeration([state for state in fact.states if state != UNSEEN])
    if fact.category == "object":
        place = "in the robot's hand" if fact.place == "agent" else f"at {fact.place or 'an unknown place'}"
        return f"{thing}, and it is {place} now" + (f"; it is {states}" if states else "")
    thing += f" in {fact.place}" if fact.place else " in the house"
    thing += f", and it is {states}" if states else ""
    return f"{thing}; the robot {'has not yet seen' if UNSEEN in fact.states else 'knows'} what is there"


def _enumeration(words: Sequence[str]) -> str:
    """Return "a", "a and b", "a, b and c"; "" for no words."""
    *first, last = words or [""]
    return f"{', '.join(first)} and {last}" if first else last


STYLES: dict[str, type] = {"plain": PlainStyle, "linked": LinkedStyle, "natural": NaturalStyle}


def make_style(name: str, layout: str = "memory") -> PromptStyle:
    """Build a style by name for a prompt layout. Raises ConfigError for an unknown name."""
    check_choice("prompt.style", name, STYLES)
    return STYLES[name]() if name == "linked" else STYLES[name](states_removal=layout == "append")

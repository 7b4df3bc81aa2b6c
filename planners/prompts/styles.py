"""Prompt styles: segment texts of facts.

Both styles put the type first, then the entity, then its place and states (``mug mug_2 cabinet_3 hot``), so that every
look-up is "find type and entity, copy the next words".

* ``plain``: every line is self-contained. A changed fact rewrites its own line; a removed entity has none.
* ``linked``: a receptacle is a header, the objects in it are member lines that refer back to it (``there mug mug_2``),
  and later changes are ``now`` lines, of which the latest holds. Lines depend on each other, as in real logs, and lose
  most when blocks are reused without recomputation.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Protocol

from keep_agent.errors import check_choice

UNSEEN = "unseen"
REMOVED = "gone"
UPDATE_SUFFIX = "/now"  # ends the id of a segment that updates another one


class FactView(Protocol):
    """Fields of a world's fact that a style reads; any object that has them is a fact."""

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
    """A change of segment ``id``: its new ``text``, or None to remove it."""

    id: str
    category: str
    text: str | None
    parent: str | None = None


class SegmentView(Protocol):
    """Fields of a segment that a style reads."""

    id: str
    text: str


class PromptStyle(Protocol):
    """Conversion of facts into segment edits. A style whose lines depend on earlier ones keeps the written entities."""

    name: str

    def edits(self, facts: Iterable[FactView]) -> list[Edit]:
        """Return the segment edits of a batch of changed facts, in writing order."""

    def reset(self) -> None:
        """Forget all entities."""

    def restore(self, segments: Iterable[SegmentView]) -> None:
        """Continue after segments whose texts this style wrote."""


def _line(*words: str | None) -> str:
    return " ".join(word for word in words if word) + "\n"


def _agent(fact: FactView) -> Edit:
    visible = [word for name in fact.sees for word in (name.rpartition("_")[0], name)]
    visible = ["there", *visible] if visible else []
    return Edit(
        fact.id, "agent", _line("agent at", fact.place or "start", "holding", fact.holds or "nothing", *visible)
    )


def _place(fact: FactView) -> str | None:
    return "hand" if fact.place == "agent" else fact.place


def _words(fact: FactView) -> list[str]:
    """Return the words of a fact in look-up order: unseen, type, entity, place, states."""
    unseen = [UNSEEN] if UNSEEN in fact.states else []
    place = _place(fact)
    states = [state for state in fact.states if state != UNSEEN]
    return [*unseen, fact.type, fact.id, *([place] if place else []), *states]


@dataclass
class PlainStyle(PromptStyle):
    """Self-contained lines, one per fact.

    :param states_removal: write a line for a removed entity, since the `append` layout cannot take the old one back
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
    """Headers, member lines that refer back to them, and ``now`` lines, of which the latest holds."""

    name = "linked"
    _first_lines: dict[str, bool] = field(default_factory=dict)  # id -> whether its first line says UNSEEN

    def reset(self) -> None:
        self._first_lines.clear()

    def restore(self, segments: Iterable[SegmentView]) -> None:
        self._first_lines = {segment.id: segment.text.startswith(f"{UNSEEN} ") for segment in segments}

    def edits(self, facts: Iterable[FactView]) -> list[Edit]:
        facts = list(facts)
        headers = [fact for fact in facts if fact.category == "receptacle" and self._opens(fact)]
        members: dict[str, list[FactView]] = {header.id: [] for header in headers}
        rest: list[FactView] = []
        for fact in facts:
            if (
                fact.category == "object"
                and fact.id not in self._first_lines
                and fact.place in members
                and not fact.gone
            ):
                members[fact.place].append(fact)
            elif fact.id not in members:
                rest.append(fact)
        edits: list[Edit] = []
        for header in headers:
            edits.append(self._first(header))
            edits.extend(self._member(fact, header.id) for fact in members[header.id])
        edits.extend(self._later(fact) for fact in rest)
        return edits

    def _opens(self, fact: FactView) -> bool:
        """Return whether the fact writes a header: a new receptacle, or the first sight of its content."""
        return fact.id not in self._first_lines or (self._first_lines[fact.id] and UNSEEN not in fact.states)

    def _first(self, fact: FactView) -> Edit:
        self._first_lines[fact.id] = UNSEEN in fact.states
        return Edit(fact.id, "receptacle", _line(*_words(fact)))

    def _member(self, fact: FactView, header: str) -> Edit:
        self._first_lines[fact.id] = False
        return Edit(fact.id, "object", _line("there", fact.type, fact.id, *fact.states), parent=header)

    def _later(self, fact: FactView) -> Edit:
        if fact.category == "agent":
            return _agent(fact)
        words = [fact.type, fact.id, REMOVED] if fact.gone else _words(fact)
        line = _line("now", *words)
        if fact.id in self._first_lines:  # the first line stays, and every prompt with this one contains it
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
    """Return the segment of a finished task; these are the main static memory."""
    outcome = "succeeded" if success else "failed"
    return Edit(f"task_{number}", "task", _line("finished", instruction, outcome, "after", str(steps), "steps"))

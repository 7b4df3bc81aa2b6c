"""Prompt styles: how facts become segment text.

Both styles put the words one searches by first, then the entity, then its place and states
(``mug mug_2 cabinet_3 hot``), so that every look-up is "find the pair, copy what follows".

* ``plain``: every line stands alone; a changed fact rewrites its own line, and what is gone has none.
* ``linked``: a receptacle is a header, what was found in it are members that refer back to it
  (``there mug mug_2``), and later changes are ``now`` lines of which the latest wins. Lines depend
  on each other, as they do in real logs; this is where reuse without recomputation hurts.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Protocol

from keep_agent.errors import check_choice

UNSEEN = "unseen"
GONE = "gone"
NOW = "/now"  # ends the id of a later word on a thing


class FactView(Protocol):
    """What a style reads of a world's fact; any object with these fields will do."""

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
    """Write ``text`` to segment ``id``, or remove it when ``text`` is None."""

    id: str
    category: str
    text: str | None
    parent: str | None = None


class Written(Protocol):
    """What a style reads of a segment."""

    id: str
    text: str


class PromptStyle(Protocol):
    name: str

    def edits(self, facts: Iterable[FactView]) -> list[Edit]:
        """The segment edits that a batch of changed facts asks for, in writing order."""
        ...

    def reset(self) -> None: ...

    def restore(self, segments: Iterable[Written]) -> None:
        """Go on behind these segments, whose texts this style wrote."""
        ...


def _line(*words: str | None) -> str:
    return " ".join(word for word in words if word) + "\n"


def _agent(fact: FactView) -> Edit:
    seen = [word for one in fact.sees for word in (one.rpartition("_")[0], one)]
    seen = ["there", *seen] if seen else []
    return Edit(fact.id, "agent", _line("agent at", fact.place or "start", "holding", fact.holds or "nothing", *seen))


def _place(fact: FactView) -> str | None:
    return "hand" if fact.place == "agent" else fact.place


def _described(fact: FactView) -> list[str]:
    """Words of a fact in look-up order: unseen, type, entity, place, states."""
    unseen = [UNSEEN] if UNSEEN in fact.states else []
    place = _place(fact)
    states = [state for state in fact.states if state != UNSEEN]
    return [*unseen, fact.type, fact.id, *([place] if place else []), *states]


@dataclass
class PlainStyle:
    """Self-contained lines, one per fact.

    :param tells_gone: in words, where a line that was told once is not taken back (the `append` layout)
    """

    tells_gone: bool = False
    name = "plain"

    def reset(self) -> None:
        """Nothing is kept between facts."""

    def restore(self, segments: Iterable[Written]) -> None:
        """Nothing is kept between facts."""

    def edits(self, facts: Iterable[FactView]) -> list[Edit]:
        return [self._edit(fact) for fact in facts]

    def _edit(self, fact: FactView) -> Edit:
        if fact.category == "agent":
            return _agent(fact)
        if fact.gone:
            return Edit(fact.id, fact.category, _line(fact.type, fact.id, GONE) if self.tells_gone else None)
        return Edit(fact.id, fact.category, _line(*_described(fact)))


@dataclass
class LinkedStyle:
    """Headers, members that refer back, and ``now`` lines of which the latest wins."""

    name = "linked"
    _written: dict[str, bool] = field(default_factory=dict)  # id -> is its first line still UNSEEN?

    def reset(self) -> None:
        self._written.clear()

    def restore(self, segments: Iterable[Written]) -> None:
        self._written = {one.id: one.text.startswith(f"{UNSEEN} ") for one in segments}

    def edits(self, facts: Iterable[FactView]) -> list[Edit]:
        facts = list(facts)
        headers = [fact for fact in facts if fact.category == "receptacle" and self._opens(fact)]
        listed = {header.id for header in headers}
        members: dict[str, list[FactView]] = {header.id: [] for header in headers}
        rest: list[FactView] = []
        for fact in facts:
            if fact.category == "object" and fact.id not in self._written and fact.place in listed and not fact.gone:
                members[fact.place].append(fact)
            elif fact.id not in listed:
                rest.append(fact)
        edits: list[Edit] = []
        for header in headers:
            edits.append(self._first(header))
            edits.extend(self._member(fact, header.id) for fact in members[header.id])
        edits.extend(self._later(fact) for fact in rest)
        return edits

    def _opens(self, fact: FactView) -> bool:
        """Does this fact write a header: the receptacle is new, or its content is seen for the first time?"""
        return fact.id not in self._written or (self._written[fact.id] and UNSEEN not in fact.states)

    def _first(self, fact: FactView) -> Edit:
        self._written[fact.id] = UNSEEN in fact.states
        return Edit(fact.id, "receptacle", _line(*_described(fact)))

    def _member(self, fact: FactView, header: str) -> Edit:
        self._written[fact.id] = False
        return Edit(fact.id, "object", _line("there", fact.type, fact.id, *fact.states), parent=header)

    def _later(self, fact: FactView) -> Edit:
        if fact.category == "agent":
            return _agent(fact)
        words = [fact.type, fact.id, GONE] if fact.gone else _described(fact)
        line = _line("now", *words)
        if fact.id in self._written:  # the first line stays, and comes along wherever this one goes
            return Edit(f"{fact.id}{NOW}", fact.category, line, parent=fact.id)
        self._written[fact.id] = False
        return Edit(fact.id, fact.category, line)


STYLES: dict[str, type] = {"plain": PlainStyle, "linked": LinkedStyle}


def make_style(name: str, layout: str = "memory") -> PromptStyle:
    """A fresh style by name, for prompts of a layout; raises `ConfigError` naming the known ones."""
    check_choice("prompt.style", name, STYLES)
    return PlainStyle(tells_gone=layout == "append") if name == "plain" else STYLES[name]()


def history_edit(number: int, skill_line: str) -> Edit:
    """An executed skill as a segment the agent writes itself."""
    return Edit(f"did_{number}", "history", _line("did", skill_line))


def task_edit(number: int, instruction: str, success: bool, steps: int) -> Edit:
    """A finished task as a segment: the main static memory."""
    outcome = "succeeded" if success else "failed"
    return Edit(f"task_{number}", "task", _line("finished", instruction, outcome, "after", str(steps), "steps"))

"""LoTA-Bench's type-level skills for Watch-And-Help (arXiv 2402.08178, LLMTaskPlanning at 97c46cc).

"find a plate", "pick up the plate", "open the fridge", "close the fridge", "switch on the dishwasher", "put down the
plate", "done". A skill names a class; the rules choose the instance:

* ``lota``: the last instance in the graph, wherever the agent is. (The benchmark's code should choose the nearest, but
  never updates the minimum distance.) A thing is put down at the last instance of the class that the last `find` named.
* ``strict``: the instance with the lowest rank (`_RANKS`), among equals the nearest. A thing is put down at the
  instance that the last `find` reached. If the same `find` is repeated, the agent goes to the next instance.

The message of a failed skill is its reason with ``messages="reasons"``, and empty with ``messages="lota"``, as in the
benchmark. One skill is added to the benchmark's: "sit on the sofa", for tasks that require it.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import lru_cache
from types import MappingProxyType
from typing import Literal

from envs.outcome import SUCCESS, Outcome, failed, unknown_skill
from envs.wah import action as verbs
from envs.wah.action import Action, Rules, refusal
from envs.wah.language.names import (
    FINDABLE,
    OPENABLE,
    PICKABLE,
    PUT_INTO,
    SWITCHABLE,
    article,
    class_of_words,
    spoken_name,
)
from envs.wah.state import HomeState

FIND, PICK, OPEN, CLOSE, SWITCH_ON, PUT, SIT = "find", "pick up", "open", "close", "switch on", "put down", "sit on"
_FORM = re.compile(r"(?:(find) an?|(pick up|open|close|switch on|put down|sit on) the) (.+)")
_VERBS: Mapping[str, str] = MappingProxyType({
    FIND: verbs.WALK, PICK: verbs.GRAB, OPEN: verbs.OPEN, CLOSE: verbs.CLOSE, SWITCH_ON: verbs.SWITCH_ON,
    SIT: verbs.SIT,
})  # fmt: skip
Messages = Literal["reasons", "lota"]
MESSAGES: tuple[Messages, ...] = ("reasons", "lota")
MAX_DISTANCE = 1000.0  # metres; as in the benchmark, `lota` chooses no thing farther away
SEATS = ("sofa", "chair", "bed", "bench")


class LotaSkills:
    """Type-level skills; ``rules`` determine checks and the choice of instances, ``messages`` the texts of failures."""

    def __init__(self, rules: Rules = "lota", messages: Messages = "reasons") -> None:
        self.rules: Rules = rules
        self.messages: Messages = messages

    def execute(self, home: HomeState, skill: str) -> Outcome:
        """Execute a skill. Raises SkillError for a text that is not a skill or names a class not in the apartment."""
        if skill == "done":
            return SUCCESS
        verb, kind = self._parse(home, skill)
        if verb == FIND and self.rules == "lota":
            home.history = replace(home.history, find_class=kind)  # also if the skill fails
        action = self._action(home, verb, kind)
        if action is None:
            return self._failure(f"cannot {verb} the {spoken_name(kind)}: no place for it was found")
        reason = refusal(home, action, self.rules)
        if not reason and not home.act(action):
            reason = f"the simulator could not {verb} the {spoken_name(kind)}"
        if reason:
            return self._failure(reason)
        self._remember(home, verb, kind, action)
        return SUCCESS

    def admissible(self, home: HomeState, knowledge: object = None) -> tuple[str, ...]:
        """Return all skills on the apartment's classes; they are the same at every step."""
        return _skills(home.graph.classes, home.allows_sitting)

    def choose(self, home: HomeState, verb: str, kind: str) -> int | None:
        """Return the instance of the class ``kind`` that a skill with ``verb`` uses now; None if there is none."""
        ids = home.graph.of_class(kind)
        if not ids:
            return None
        if self.rules == "lota":
            return ids[-1] if home.distance(ids[-1]) < MAX_DISTANCE else None
        if verb == FIND:
            ids = tuple(_next_candidates(home, kind, [thing for thing in ids if thing not in home.inventory])) or ids
        rank = _RANKS[verb]
        return min(ids, key=lambda thing: (*rank(home, thing), home.distance(thing), thing))

    def target(self, home: HomeState, kind: str) -> int | None:
        """Return the place where a thing of the class ``kind`` would be put down now; None if there is none."""
        if self.rules == "strict":
            return home.history.found_node
        return self.choose(home, PUT, home.history.find_class or kind)

    def _parse(self, home: HomeState, skill: str) -> tuple[str, str]:
        match = _FORM.fullmatch(skill)
        kind = class_of_words(match[3]) if match else None
        if match is None or kind is None or kind == "character" or not home.graph.of_class(kind):
            raise unknown_skill(skill, _skills(home.graph.classes, sit=True))
        return match[1] or match[2], kind

    def _action(self, home: HomeState, verb: str, kind: str) -> Action | None:
        thing = self.choose(home, verb, kind)
        if thing is None or verb != PUT:
            return None if thing is None else Action(_VERBS[verb], thing)
        place = self.target(home, kind)
        if place is None:
            return None
        inside = home.graph[place].class_name in PUT_INTO
        return Action(verbs.PUT_IN if inside else verbs.PUT_ON, thing, place)

    def _failure(self, reason: str) -> Outcome:
        return failed("" if self.messages == "lota" else reason)

    def _remember(self, home: HomeState, verb: str, kind: str, action: Action) -> None:
        history, attempts = home.history, ()
        if verb == FIND:
            repeated = history.find_class == kind and bool(history.attempts) and action.thing not in history.attempts
            attempts = (*history.attempts, action.thing) if repeated else (action.thing,)
            history = replace(history, find_class=kind, found_node=action.thing)
        elif verb == PICK:
            history = replace(history, put_down=history.put_down - {action.thing})
        elif verb == PUT:
            put_down, destinations = history.put_down | {action.thing}, (*history.destinations, action.place)
            history = replace(history, put_down=put_down, destinations=destinations)
        home.history = replace(history, attempts=attempts)


@lru_cache(maxsize=256)
def _skills(classes: tuple[str, ...], sit: bool = False) -> tuple[str, ...]:
    names = [(kind, spoken_name(kind)) for kind in classes if kind != "character"]
    skills = [f"{FIND} {article(words)} {words}" for kind, words in names if kind in FINDABLE]
    groups = [(PICK, PICKABLE), (OPEN, OPENABLE), (CLOSE, OPENABLE), (SWITCH_ON, SWITCHABLE), (PUT, classes)]
    for verb, group in [*groups, *([(SIT, SEATS)] if sit else [])]:
        skills += [f"{verb} the {words}" for kind, words in names if kind in group]
    return (*skills, "done")


# ranks for ``strict``: a skill uses the instance with the smallest tuple


def _next_candidates(home: HomeState, kind: str, candidates: list[int]) -> list[int]:
    """Return the instances that the repeated `find` has not reached yet; if it has reached all, the first instance."""
    attempts = home.history.attempts if home.history.find_class == kind else ()
    remaining = [thing for thing in candidates if thing not in attempts]
    return remaining or [thing for thing in attempts if thing in candidates][:1]


def _find_rank(home: HomeState, thing: int) -> tuple[bool, ...]:
    return thing in home.history.put_down, thing not in home.history.destinations, home.hidden_in(thing) is not None


def _open_rank(home: HomeState, thing: int) -> tuple[bool, ...]:
    target = home.history.found_node
    hides_target = target in home.graph.nodes and thing in home.holders(target)
    return not home.graph[thing].closed, thing != target, not hides_target, not home.close(thing)


_RANKS: Mapping[str, Callable[[HomeState, int], tuple[bool, ...]]] = MappingProxyType(
    {
        FIND: _find_rank,
        PICK: lambda home, thing: (thing != home.history.found_node, thing in home.inventory, *_find_rank(home, thing)),
        OPEN: _open_rank,
        CLOSE: lambda home, thing: (home.graph[thing].closed, thing != home.history.found_node, not home.close(thing)),
        SWITCH_ON: lambda home, thing: (
            "OFF" not in home.graph[thing].states, thing != home.history.found_node, not home.close(thing),
        ),
        PUT: lambda home, thing: (thing not in home.inventory,),
        SIT: lambda home, thing: (thing != home.history.found_node, not home.close(thing)),
    }
)  # fmt: skip

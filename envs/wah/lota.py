"""LoTA-Bench's type-level skills for Watch-And-Help (arXiv 2402.08178, LLMTaskPlanning at 97c46cc).

"find a plate", "pick up the plate", "open the fridge", "close the fridge", "switch on the dishwasher", "put down the
plate", "done". A skill names a class; which instance is meant says the rule:

* ``lota``: the last one in the graph, wherever the agent is. (The benchmark means the nearest, but never updates its
  minimum.) What is put down goes to the last instance of the class that `find` named last.
* ``strict``: what serves best, see `_RANKS`; distance decides ties. What is put down goes to the very thing that was
  found. The same `find` said again goes on to the next instance.

A failure has a message under both rules: ``reasons`` says why, ``lota`` is empty, as all of the benchmark's are.

Ours alone: "sit on the sofa", where a task asks for it.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from functools import lru_cache
from types import MappingProxyType
from typing import Literal

from envs.outcome import DONE, Outcome, failed, unknown_skill
from envs.wah import action as verbs
from envs.wah.action import Action
from envs.wah.checks import Rules, refusal
from envs.wah.language.names import article, simulated, spoken
from envs.wah.language.words import FOUND, OPENED, PICKED, PUT_INTO, SWITCHED
from envs.wah.state import HomeState

FIND, PICK, OPEN, CLOSE, SWITCH_ON, PUT, SIT = "find", "pick up", "open", "close", "switch on", "put down", "sit on"
_FORM = re.compile(r"(?:(find) an?|(pick up|open|close|switch on|put down|sit on) the) (.+)")
_VERBS: Mapping[str, str] = MappingProxyType(
    {
        FIND: verbs.WALK,
        PICK: verbs.GRAB,
        OPEN: verbs.OPEN,
        CLOSE: verbs.CLOSE,
        SWITCH_ON: verbs.SWITCH_ON,
        SIT: verbs.SIT,
    }
)
Messages = Literal["reasons", "lota"]
MESSAGES: tuple[Messages, ...] = ("reasons", "lota")
FARTHEST = 1000.0  # metres; beyond it the benchmark finds nothing


class LotaSkills:
    """Type-level skills under one of the two rules, with one of the two kinds of messages."""

    def __init__(self, rules: Rules = "lota", messages: Messages = "reasons") -> None:
        self.rules: Rules = rules
        self.messages: Messages = messages

    def execute(self, home: HomeState, skill: str) -> Outcome:
        """Do it; raises SkillError for words that are no skill or name nothing in the apartment."""
        if skill == "done":
            return DONE
        verb, kind = self._parse(home, skill)
        if verb == FIND and self.rules == "lota":
            home.focus = replace(home.focus, found=kind)  # whatever becomes of it
        action = self._action(home, verb, kind)
        if action is None:
            return self._failed(f"cannot {verb} the {spoken(kind)}: no place for it was found")
        why = refusal(home, action, self.rules)
        if not why and not home.act(action):
            why = f"the simulator could not {verb} the {spoken(kind)}"
        if why:
            return self._failed(why)
        self._remember(home, verb, kind, action)
        return DONE

    def admissible(self, home: HomeState, knowledge: object = None) -> tuple[str, ...]:
        """All skills of the apartment's classes, the same at every step."""
        return _skills(home.graph.classes, home.seats)

    def choose(self, home: HomeState, verb: str, kind: str) -> int | None:
        """The instance that a skill means now; None where there is none."""
        ids = home.graph.of_class(kind)
        if not ids:
            return None
        if self.rules == "lota":
            return ids[-1] if home.distance(ids[-1]) < FARTHEST else None
        if verb == FIND:
            ids = tuple(_untried(home, kind, [one for one in ids if one not in home.held])) or ids
        rank = _RANKS[verb]
        return min(ids, key=lambda one: (*rank(home, one), home.distance(one), one))

    def target(self, home: HomeState, thing: str) -> int | None:
        """Where a thing would be put down now."""
        if self.rules == "strict":
            return home.focus.target
        return self.choose(home, PUT, home.focus.found or thing)

    def _parse(self, home: HomeState, skill: str) -> tuple[str, str]:
        match = _FORM.fullmatch(skill)
        kind = simulated(match[3]) if match else None
        if match is None or kind is None or kind == "character" or not home.graph.of_class(kind):
            raise unknown_skill(skill, _skills(home.graph.classes, sit=True))
        return match[1] or match[2], kind

    def _action(self, home: HomeState, verb: str, kind: str) -> Action | None:
        thing = self.choose(home, verb, kind)
        if thing is None:
            return None
        if verb != PUT:
            return Action(_VERBS[verb], thing)
        place = self.target(home, kind)
        if place is None:
            return None
        inside = home.graph[place].class_name in PUT_INTO
        return Action(verbs.PUT_IN if inside else verbs.PUT_ON, thing, place)

    def _failed(self, why: str) -> Outcome:
        return failed("" if self.messages == "lota" else why)

    def _remember(self, home: HomeState, verb: str, kind: str, action: Action) -> None:
        focus = home.focus
        if verb == FIND:
            again = focus.found == kind and bool(focus.tried) and action.thing not in focus.tried
            tried = (*focus.tried, action.thing) if again else (action.thing,)
            home.focus = replace(focus, found=kind, target=action.thing, tried=tried)
        elif verb == PICK:
            home.focus = replace(focus, placed=focus.placed - {action.thing}, tried=())
        elif verb == PUT:
            placed, used = focus.placed | {action.thing}, (*focus.used, action.place)
            home.focus = replace(focus, placed=placed, used=used, tried=())
        else:
            home.focus = replace(focus, tried=())


@lru_cache(maxsize=256)
def _skills(classes: tuple[str, ...], sit: bool = False) -> tuple[str, ...]:
    return (*_all_skills(classes, sit), "done")


def _all_skills(classes: Iterable[str], sit: bool) -> Iterator[str]:
    said = [(kind, spoken(kind)) for kind in classes if kind != "character"]
    yield from (f"{FIND} {article(words)} {words}" for kind, words in said if kind in FOUND)
    yield from (f"{PICK} the {words}" for kind, words in said if kind in PICKED)
    yield from (f"{OPEN} the {words}" for kind, words in said if kind in OPENED)
    yield from (f"{CLOSE} the {words}" for kind, words in said if kind in OPENED)
    yield from (f"{SWITCH_ON} the {words}" for kind, words in said if kind in SWITCHED)
    yield from (f"{PUT} the {words}" for _, words in said)
    if sit:
        yield from (f"{SIT} the {words}" for kind, words in said if kind in ("sofa", "chair", "bed", "bench"))


# instance choice of the strict rule: the smallest tuple wins


def _untried(home: HomeState, kind: str, candidates: list[int]) -> list[int]:
    """What the same `find` has not reached yet; when all were, it starts again."""
    tried = home.focus.tried if home.focus.found == kind else ()
    return [one for one in candidates if one not in tried] or [one for one in tried if one in candidates][:1]


def _find_rank(home: HomeState, one: int) -> tuple[bool, ...]:
    return one in home.focus.placed, one not in home.focus.used, home.hidden_in(one) is not None


def _pick_rank(home: HomeState, one: int) -> tuple[bool, ...]:
    return one != home.focus.target, one in home.held, *_find_rank(home, one)


def _open_rank(home: HomeState, one: int) -> tuple[bool, ...]:
    found = home.focus.target
    hides = found in home.graph.nodes and one in home.around(found)
    return not home.graph[one].shut, one != found, not hides, not home.close(one)


def _close_rank(home: HomeState, one: int) -> tuple[bool, ...]:
    return home.graph[one].shut, one != home.focus.target, not home.close(one)


def _switch_rank(home: HomeState, one: int) -> tuple[bool, ...]:
    return "OFF" not in home.graph[one].states, one != home.focus.target, not home.close(one)


def _put_rank(home: HomeState, one: int) -> tuple[bool, ...]:
    return (one not in home.held,)


def _sit_rank(home: HomeState, one: int) -> tuple[bool, ...]:
    return one != home.focus.target, not home.close(one)


_RANKS: Mapping[str, Callable[[HomeState, int], tuple[bool, ...]]] = MappingProxyType(
    {
        FIND: _find_rank,
        PICK: _pick_rank,
        OPEN: _open_rank,
        CLOSE: _close_rank,
        SWITCH_ON: _switch_rank,
        PUT: _put_rank,
        SIT: _sit_rank,
    }
)

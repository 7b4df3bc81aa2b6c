"""The scripted expert with type-level skills: from the present state alone to the next skill.

First the destination is opened, then one thing after another is fetched, in the order of the goal; what hides it is
opened. What the rule's choice of instances makes impossible is left out.
"""

from __future__ import annotations

from collections.abc import Sequence

from envs.wah.goals import RELATIONS, Predicate, best_place, counts_at, place_class, unmet_of
from envs.wah.language.names import article, spoken
from envs.wah.lota import CLOSE, FIND, OPEN, PICK, PUT, SIT, SWITCH_ON, LotaSkills
from envs.wah.state import HomeState

DONE = "done"
ASIDE = ("kitchentable", "kitchencounter", "coffeetable", "desk", "sofa", "bed", "bathroomcounter")


def lota_skill(home: HomeState, goal: Sequence[Predicate], skills: LotaSkills) -> str:
    """The next skill towards a goal; "done" when it is reached or nothing more can be done."""
    return _Plan(home, goal, skills).next()


def say(verb: str, kind: str) -> str:
    words = spoken(kind)
    return f"{verb} {article(words) if verb == FIND else 'the'} {words}"


class _Plan:
    """One state, and what is still to do."""

    def __init__(self, home: HomeState, goal: Sequence[Predicate], skills: LotaSkills) -> None:
        self.home, self.skills = home, skills
        place = best_place(home, goal)
        counts = counts_at(home, goal, place)
        self.unmet = unmet_of(goal, counts)
        self.goal = goal
        self.kind = place_class(goal)  # of the destination

    def next(self) -> str:
        exists = bool(self.home.graph.of_class(self.kind))
        wanted = [one for one in self.unmet if one.kind in RELATIONS and exists]
        kept = {one.thing for one in self.goal if one.kind == "holds"}
        kinds = {thing: self.home.graph[thing].class_name for thing in self.home.held}
        for kind in kinds.values():
            if kind in {one.thing for one in wanted}:
                return self._deliver(kind)
        for kind in kinds.values():
            if kind not in kept:
                return self._put_aside(kind)
        return self._fetch(wanted) or self._finish() or DONE

    @property
    def destination(self) -> int | None:
        """Where what is held would be put, if it is of the right class and close."""
        place = self.skills.target(self.home, self.kind)
        at_hand = place is not None and self.home.graph[place].class_name == self.kind and self.home.close(place)
        return place if at_hand and self.home.focus.found == self.kind else None

    def _deliver(self, kind: str) -> str:
        if others := self._too_much(kind):
            return self._put_aside(others[0])
        place = self.destination
        if place is None:
            return say(FIND, self.kind)
        inside = any(one.kind == "inside" for one in self.goal)
        if inside and self.home.graph[place].shut and len(self.home.held) < 2:
            return say(OPEN, self.kind)
        return say(PUT, kind)

    def _too_much(self, kind: str) -> list[str]:
        """What else is held, where a door has to be opened for which there is no hand."""
        graph = self.home.graph
        kinds = [graph[thing].class_name for thing in self.home.held]
        kinds.remove(kind)
        opens = self.skills.rules == "strict" and any(one.kind == "inside" for one in self.goal)
        return kinds if opens and any(graph[one].shut for one in graph.of_class(self.kind)) else []

    def _put_aside(self, kind: str) -> str:
        found = self.home.focus.found
        target = self.skills.target(self.home, kind)
        if found in ASIDE and found != self.kind and target is not None and self.home.close(target):
            return say(PUT, kind)
        free = [one for one in ASIDE if self.home.graph.of_class(one) and one != self.kind]
        return say(FIND, free[0]) if free else DONE

    def _fetch(self, wanted: Sequence[Predicate]) -> str:
        """Open the destination, then go for the first thing that can be had."""
        steps = [step for one in wanted if (step := self._take(one.thing))]
        if not steps:
            return ""
        if any(one.kind == "inside" for one in wanted) and self._all_shut():
            return say(FIND if self.destination is None else OPEN, self.kind)
        return steps[0]

    def _all_shut(self) -> bool:
        """Whether every place that things could be put into is closed."""
        places = self.home.graph.of_class(self.kind)
        return all(self.home.graph[one].shut for one in (places[-1:] if self.skills.rules == "lota" else places))

    def _take(self, kind: str) -> str:
        """The next step to have a thing of this class in the hand; "" if that cannot be."""
        home, skills = self.home, self.skills
        thing = skills.choose(home, PICK if home.focus.found == kind else FIND, kind)
        if thing is None or self._there(thing):
            return ""
        hiding = home.hidden_in(thing)
        here = home.focus.found == kind and home.close(thing)
        if hiding is None:
            return say(PICK, kind) if here else say(FIND, kind)
        outer = home.graph[hiding].class_name
        if here:
            return say(OPEN, outer) if skills.choose(home, OPEN, outer) == hiding else ""
        reachable = skills.rules == "strict" or home.graph.of_class(outer)[-1] == hiding
        return say(FIND, kind) if reachable else ""

    def _there(self, thing: int) -> bool:
        """Whether it lies where the goal wants it."""
        holder = self.home.holder(thing)
        placed = holder is not None and thing in self.home.focus.placed
        return placed and self.home.graph[holder].class_name == self.kind

    def _finish(self) -> str:
        """Switch on, take in the hand, sit down."""
        graph = self.home.graph
        possible = [one for one in self.unmet if one.kind not in RELATIONS and graph.of_class(one.place or one.thing)]
        return next((step for one in possible if (step := self._pursue(one))), "")

    def _pursue(self, one: Predicate) -> str:
        match one.kind:
            case "turnOn":
                return self._switch(one.place)
            case "holds":
                return self._take(one.thing)
        return say(SIT if self.home.focus.found == one.place else FIND, one.place)

    def _switch(self, kind: str) -> str:
        place = self.destination
        if place is None:
            return say(FIND, kind)
        node = self.home.graph[place]
        if "OPEN" in node.states:
            return say(CLOSE, kind)
        possible = "OFF" in node.states and (self.skills.rules == "strict" or node.shut)
        return say(SWITCH_ON, kind) if possible else ""

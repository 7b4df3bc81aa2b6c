"""Scripted expert with type-level skills: opens the destination, then fetches the goal's things one by one.

It decides from the current state only, and opens closed containers. It skips goal conditions that cannot be met
because the rules (``lota`` or ``strict``) choose an unsuitable instance of a class.
"""

from __future__ import annotations

from collections.abc import Sequence

from envs.wah.goals import RELATIONS, Predicate, best_place, counts_at, place_class, unmet_predicates
from envs.wah.language.names import article, spoken_name
from envs.wah.lota import CLOSE, FIND, OPEN, PICK, PUT, SIT, SWITCH_ON, LotaSkills
from envs.wah.state import HomeState

DONE = "done"
SPARE_PLACES = ("kitchentable", "kitchencounter", "coffeetable", "desk", "sofa", "bed", "bathroomcounter")


def skill_text(verb: str, kind: str) -> str:
    """Return the skill with this verb and class."""
    words = spoken_name(kind)
    return f"{verb} {article(words) if verb == FIND else 'the'} {words}"


class LotaPlan:
    """Plan for a goal from one state of the household."""

    def __init__(self, home: HomeState, goal: Sequence[Predicate], skills: LotaSkills) -> None:
        self.home, self.goal, self.skills = home, goal, skills
        self.unmet = unmet_predicates(goal, counts_at(home, goal, best_place(home, goal)))
        self.kind = place_class(goal)  # class of the destination
        self.puts_inside = any(predicate.kind == "inside" for predicate in goal)

    def next_skill(self) -> str:
        """Return the next skill towards the goal; "done" if it is reached or no step helps."""
        has_place = bool(self.home.graph.of_class(self.kind))
        to_put = [predicate for predicate in self.unmet if predicate.kind in RELATIONS and has_place]
        classes_to_put = {predicate.thing for predicate in to_put}
        classes_to_hold = {predicate.thing for predicate in self.goal if predicate.kind == "holds"}
        kinds = [self.home.graph[thing].class_name for thing in self.home.inventory]
        for kind in kinds:
            if kind in classes_to_put:
                return self._deliver(kind)
        for kind in kinds:
            if kind not in classes_to_hold:
                return self._put_aside(kind)
        return self._fetch(to_put) or next(
            (step for predicate in self.unmet if (step := self._finish(predicate))), DONE
        )

    @property
    def destination(self) -> int | None:
        """Place where a thing would be put down now; None if the place is not close or not of the goal's class."""
        place = self.skills.target(self.home, self.kind)
        at_hand = place is not None and self.home.graph[place].class_name == self.kind and self.home.close(place)
        return place if at_hand and self.home.history.find_class == self.kind else None

    def _deliver(self, kind: str) -> str:
        if surplus := self._surplus(kind):
            return self._put_aside(surplus[0])
        place = self.destination
        if place is None:
            return skill_text(FIND, self.kind)
        if self.puts_inside and self.home.graph[place].closed and len(self.home.inventory) < 2:
            return skill_text(OPEN, self.kind)
        return skill_text(PUT, kind)

    def _surplus(self, kind: str) -> list[str]:
        """Return the classes of other things in hand; none if no free hand is needed to open the destination."""
        graph = self.home.graph
        kinds = [graph[thing].class_name for thing in self.home.inventory]
        kinds.remove(kind)
        opens = self.skills.rules == "strict" and self.puts_inside
        return kinds if opens and any(graph[place].closed for place in graph.of_class(self.kind)) else []

    def _put_aside(self, kind: str) -> str:
        place_kind = self.home.history.find_class
        target = self.skills.target(self.home, kind)
        if place_kind in SPARE_PLACES and place_kind != self.kind and target is not None and self.home.close(target):
            return skill_text(PUT, kind)
        spare = [place for place in SPARE_PLACES if self.home.graph.of_class(place) and place != self.kind]
        return skill_text(FIND, spare[0]) if spare else DONE

    def _fetch(self, to_put: Sequence[Predicate]) -> str:
        """Return the next step: the destination is opened first, then the first available thing is fetched."""
        steps = [step for predicate in to_put if (step := self._take(predicate.thing))]
        if not steps:
            return ""
        if any(predicate.kind == "inside" for predicate in to_put) and self._all_closed():
            return skill_text(FIND if self.destination is None else OPEN, self.kind)
        return steps[0]

    def _all_closed(self) -> bool:
        """Return whether every place that the rules could choose as destination is closed."""
        places = self.home.graph.of_class(self.kind)
        candidates = places[-1:] if self.skills.rules == "lota" else places
        return all(self.home.graph[place].closed for place in candidates)

    def _take(self, kind: str) -> str:
        """Return the next step to take a thing of this class; "" if that is impossible."""
        home, skills = self.home, self.skills
        found_kind = home.history.find_class == kind
        thing = skills.choose(home, PICK if found_kind else FIND, kind)
        if thing is None or self._is_delivered(thing):
            return ""
        container = home.hidden_in(thing)
        at_hand = found_kind and home.close(thing)
        if container is None:
            return skill_text(PICK, kind) if at_hand else skill_text(FIND, kind)
        outer = home.graph[container].class_name
        if at_hand:
            return skill_text(OPEN, outer) if skills.choose(home, OPEN, outer) == container else ""
        reachable = skills.rules == "strict" or home.graph.of_class(outer)[-1] == container
        return skill_text(FIND, kind) if reachable else ""

    def _is_delivered(self, thing: int) -> bool:
        """Return whether a thing was put down in this task at a place of the goal's class."""
        holder = self.home.holder(thing)
        put_down = holder is not None and thing in self.home.history.put_down
        return put_down and self.home.graph[holder].class_name == self.kind

    def _finish(self, predicate: Predicate) -> str:
        """Return the next step for a predicate turnOn, holds or sit; "" for on and inside, and if no step helps."""
        if predicate.kind in RELATIONS or not self.home.graph.of_class(predicate.place or predicate.thing):
            return ""
        match predicate.kind:
            case "turnOn":
                return self._switch_on(predicate.place)
            case "holds":
                return self._take(predicate.thing)
        return skill_text(SIT if self.home.history.find_class == predicate.place else FIND, predicate.place)

    def _switch_on(self, kind: str) -> str:
        place = self.destination
        if place is None:
            return skill_text(FIND, kind)
        node = self.home.graph[place]
        if "OPEN" in node.states:
            return skill_text(CLOSE, kind)
        possible = "OFF" in node.states and (self.skills.rules == "strict" or node.closed)
        return skill_text(SWITCH_ON, kind) if possible else ""

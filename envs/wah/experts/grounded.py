"""Scripted expert with instance-level skills: fetches the goal's things and puts them at the destination.

It fetches only things that the agent knows. It searches for unknown things in likely places: first in unexplored
rooms, then in unexplored containers.
"""

from __future__ import annotations

from collections.abc import Sequence

from envs.wah.apartments.belongings import LIKELY_PLACES
from envs.wah.goals import RELATIONS, Predicate, best_place, counts_at, place_class, unmet_predicates
from envs.wah.graph import ROOMS
from envs.wah.grounded import at_hand, put_verb
from envs.wah.knowledge import Knowledge
from envs.wah.state import HomeState

DONE = "done"
SPARE_PLACES = ("kitchentable", "kitchencounter", "coffeetable", "desk", "bathroomcounter", "sofa", "bed")


class GroundedPlan:
    """Plan for a goal, made from one state of the household and what the agent knows of this state."""

    def __init__(self, home: HomeState, goal: Sequence[Predicate], knowledge: Knowledge) -> None:
        self.home, self.goal, self.knowledge = home, goal, knowledge
        self.place = self._destination()
        self.unmet = unmet_predicates(goal, counts_at(home, goal, self.place))

    def _destination(self) -> int | None:
        """Return the place where most of the goal holds; if nothing holds, preferably one at which the agent stands."""
        best = best_place(self.home, self.goal)
        if best is not None and not any(counts_at(self.home, self.goal, best)):
            return self.home.at if self.home.at in self.home.graph.of_class(place_class(self.goal)) else best
        return best

    def next_skill(self) -> str:
        """Return the next skill towards the goal; "done" if it is reached or no step helps."""
        classes_to_put = {predicate.thing for predicate in self.unmet if predicate.kind in RELATIONS}
        classes_to_hold = {predicate.thing for predicate in self.goal if predicate.kind == "holds"}
        kinds = {thing: self.home.graph[thing].class_name for thing in self.home.inventory}
        for thing, kind in kinds.items():
            if kind in classes_to_put:
                return self._put(thing, self.place)
        for thing, kind in kinds.items():
            if kind not in classes_to_hold:
                return self._put_aside(thing)
        return next((step for predicate in self.unmet if (step := self._pursue(predicate))), DONE)

    def _pursue(self, predicate: Predicate) -> str:
        match predicate.kind:
            case "on" | "inside":
                return "" if self.place is None else self._take(predicate.thing, excluded_place=self.place)
            case "holds":
                return self._take(predicate.thing)
            case "turnOn":
                return self._switch_on()
        seats = self.home.graph.of_class(predicate.place)
        return self._go_to(seats[0]) or f"sit on {self._words(seats[0])}" if seats else ""

    def _take(self, kind: str, excluded_place: int | None = None) -> str:
        """Return the next step to take a thing of the class ``kind`` that is not at the excluded place."""
        things = [thing for thing in self.home.graph.of_class(kind) if self.knowledge.knows(thing)]
        things = [thing for thing in things if excluded_place is None or self.home.holder(thing) != excluded_place]
        if not things:
            return self._explore(kind)
        near = at_hand(self.home)
        thing = next((thing for thing in things if thing in near), things[0])
        container = self.home.hidden_in(thing)
        opening = "" if container is None else f"open {self._words(container)}"
        return self._go_to(thing) or opening or f"pick up {self._words(thing)}"

    def _put(self, thing: int, place: int | None) -> str:
        if place is None:
            return self._put_aside(thing)
        closed = self.home.graph[place].closed and put_verb(self.home, place) == "putin"
        rest = [item for item in self.home.inventory if item != thing]
        if closed and rest:  # no free hand to open a container
            return self._put_aside(rest[0])
        opening = f"open {self._words(place)}" if closed else ""
        return self._go_to(place) or opening or f"put {self._words(thing)} in {self._words(place)}"

    def _put_aside(self, thing: int) -> str:
        graph = self.home.graph
        places = [place for kind in SPARE_PLACES for place in graph.of_class(kind) if place != self.place]
        if not places:
            return DONE
        return self._put(thing, self.home.at if self.home.at in places else places[0])

    def _switch_on(self) -> str:
        if self.place is None or "OFF" not in self.home.graph[self.place].states:
            return ""
        verb = "close" if "OPEN" in self.home.graph[self.place].states else "turn on"
        return self._go_to(self.place) or f"{verb} {self._words(self.place)}"

    def _explore(self, kind: str) -> str:
        """Return the next step to search for a class: go to the likeliest unseen room, else open a likely container."""
        graph, knowledge = self.home.graph, self.knowledge
        unseen = [place for place in knowledge.known if place in graph.nodes and knowledge.is_unseen(place)]
        likely = LIKELY_PLACES.get(kind, ())
        rooms = [place for place in unseen if graph[place].category == ROOMS]
        if rooms:
            return self._go_to(min(rooms, key=lambda room: (-self._likely_places(room, likely), room)))
        places = [place for place in unseen if graph[place].container and self.home.hidden_in(place) is None]
        ranks = {name: rank for rank, name in enumerate(likely)}
        order = sorted(places, key=lambda place: (place != self.home.at, ranks.get(graph[place].class_name, 99), place))
        usual = [place for place in order if graph[place].class_name in ranks]
        place = next(iter(usual or order), None)
        return "" if place is None else self._go_to(place) or f"open {self._words(place)}"

    def _likely_places(self, room: int, likely: Sequence[str]) -> int:
        graph = self.home.graph
        return sum(graph.room(place) == room for kind in likely for place in graph.of_class(kind))

    def _go_to(self, thing: int) -> str:
        """Return the skill that goes to the place of a thing; "" if the agent is there."""
        place = self.home.fixture_of(thing)
        return "" if self.home.at in (place, thing) else f"go to {self._words(place)}"

    def _words(self, thing: int) -> str:
        return self.home.things.words(thing)

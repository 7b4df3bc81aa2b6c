"""The scripted expert with instance-level skills, from what is known alone: fetch, carry, put, in the goal's order.

What is not known is looked for where it is likely to be: first in rooms that were not entered, then in containers that
were not looked into.
"""

from __future__ import annotations

from collections.abc import Sequence

from envs.wah.apartments.belongings import LIKELY
from envs.wah.goals import RELATIONS, Predicate, best_place, counts_at, place_class, unmet_of
from envs.wah.graph import ROOMS
from envs.wah.grounded import at_hand, putting
from envs.wah.knowledge import Knowledge
from envs.wah.state import HomeState

DONE = "done"
ASIDE = ("kitchentable", "kitchencounter", "coffeetable", "desk", "bathroomcounter", "sofa", "bed")


def grounded_skill(home: HomeState, goal: Sequence[Predicate], knowledge: Knowledge) -> str:
    """The next skill towards a goal; "done" when it is reached or nothing more can be done."""
    return _Plan(home, goal, knowledge).next()


class _Plan:
    """One state as far as it is known, and what is still to do."""

    def __init__(self, home: HomeState, goal: Sequence[Predicate], knowledge: Knowledge) -> None:
        self.home, self.knowledge = home, knowledge
        self.goal = goal
        self.place = self._destination()
        counts = counts_at(home, goal, self.place)
        self.unmet = unmet_of(goal, counts)

    def _destination(self) -> int | None:
        """The place at which most of the goal holds; of equals the one at hand, then the first."""
        best = best_place(self.home, self.goal)
        if best is not None and not any(counts_at(self.home, self.goal, best)):
            here = [one for one in self.home.graph.of_class(place_class(self.goal)) if one == self.home.at]
            return here[0] if here else best
        return best

    def next(self) -> str:
        wanted = {one.thing for one in self.unmet if one.kind in RELATIONS}
        kept = {one.thing for one in self.goal if one.kind == "holds"}
        kinds = {thing: self.home.graph[thing].class_name for thing in self.home.held}
        for thing, kind in kinds.items():
            if kind in wanted:
                return self._put(thing, self.place)
        for thing, kind in kinds.items():
            if kind not in kept:
                return self._put_aside(thing)
        for one in self.unmet:
            if step := self._pursue(one):
                return step
        return DONE

    def _pursue(self, one: Predicate) -> str:
        match one.kind:
            case "on" | "inside" if self.place is None:
                return ""
            case "on" | "inside":
                return self._take(one.thing, left=self.place)
            case "holds":
                return self._take(one.thing)
            case "turnOn":
                return self._switch()
        seats = self.home.graph.of_class(one.place)
        return self._at(seats[0]) or f"sit on {self._say(seats[0])}" if seats else ""

    def _take(self, kind: str, left: int | None = None) -> str:
        """Have one in the hand; what is at the place ``left`` stays there."""
        known = [one for one in self.home.graph.of_class(kind) if self.knowledge.knows(one)]
        spare = [one for one in known if left is None or self.home.holder(one) != left]
        if not spare:
            return self._explore(kind)
        near = at_hand(self.home)
        thing = next((one for one in spare if one in near), spare[0])
        return self._at(thing) or self._uncover(thing) or f"pick up {self._say(thing)}"

    def _put(self, thing: int, place: int | None) -> str:
        if place is None:
            return self._put_aside(thing)
        shut = self.home.graph[place].shut and putting(self.home, place) == "putin"
        others = [one for one in self.home.held if one != thing]
        if shut and others:  # there is no hand to open it with
            return self._put_aside(others[0])
        opened = f"open {self._say(place)}" if shut else ""
        return self._at(place) or opened or f"put {self._say(thing)} in {self._say(place)}"

    def _put_aside(self, thing: int) -> str:
        places = [one for kind in ASIDE for one in self.home.graph.of_class(kind) if one != self.place]
        here = next((one for one in places if one == self.home.at), places[0] if places else None)
        return DONE if here is None else self._put(thing, here)

    def _switch(self) -> str:
        if self.place is None or "OFF" not in self.home.graph[self.place].states:
            return ""
        node = self.home.graph[self.place]
        if "OPEN" in node.states:
            return self._at(self.place) or f"close {self._say(self.place)}"
        return self._at(self.place) or f"turn on {self._say(self.place)}"

    def _explore(self, kind: str) -> str:
        """Enter the likeliest room not entered yet, then open the likeliest container not looked into."""
        graph, knowledge = self.home.graph, self.knowledge
        unseen = [one for one in knowledge.known if one in graph.nodes and knowledge.unseen(one)]
        likely = LIKELY.get(kind, ())
        rooms = [one for one in unseen if graph[one].category == ROOMS]
        if rooms:
            return self._at(min(rooms, key=lambda one: (-self._likely_places(one, likely), one)))
        places = [one for one in unseen if graph[one].container and self.home.hidden_in(one) is None]
        order = {name: rank for rank, name in enumerate(likely)}
        ranked = sorted(places, key=lambda one: (one != self.home.at, order.get(graph[one].class_name, 99), one))
        usual = [one for one in ranked if graph[one].class_name in order]
        place = next(iter(usual or ranked), None)
        return "" if place is None else self._at(place) or f"open {self._say(place)}"

    def _likely_places(self, room: int, likely: Sequence[str]) -> int:
        graph = self.home.graph
        return sum(graph.room(one) == room for kind in likely for one in graph.of_class(kind))

    def _at(self, thing: int) -> str:
        """Go to where it is, unless the agent is there."""
        place = self.home.fixture(thing)
        return "" if self.home.at in (place, thing) else f"go to {self._say(place)}"

    def _uncover(self, thing: int) -> str:
        hiding = self.home.hidden_in(thing)
        return "" if hiding is None else f"open {self._say(hiding)}"

    def _say(self, thing: int) -> str:
        return self.home.things.words(thing)

"""What to do next for a task, from what is known now: one step on instances, whatever the skills are called.

Memoryless: the step follows from the present state alone, so that it also mends what another agent spoiled. Canonical:
what is at hand comes first, then the lowest index.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Literal

from envs.alfred.goals import succeeded
from envs.alfred.houses.rooms import HOLDS_ONE, PLACE_WEIGHT
from envs.alfred.knowledge import Knowledge
from envs.alfred.objects import CONTAINERS, KNIVES, may_hold
from envs.alfred.scene import Task
from envs.alfred.thing import Thing
from envs.alfred.world import World

Act = Literal["take", "put", "open", "close", "slice", "turn on", "turn off", "go", "look into", "done"]

# Where something that is in the way is put down, the best place first; none of them has a door.
PUT_ASIDE = (
    *("CounterTop", "DiningTable", "SideTable", "CoffeeTable", "Desk", "Dresser", "Shelf", "Bed", "Sofa", "ArmChair"),
    *("Ottoman", "Toilet", "Cart", "TVStand", "SinkBasin", "BathtubBasin", "GarbageCan"),
)


@dataclass(frozen=True, slots=True)
class Step:
    """One act on a thing; ``place`` is where it is put, ``content`` what an appliance is operated for."""

    act: Act
    thing: str = ""
    place: str = ""
    content: str = ""


DONE = Step("done")


class View:
    """A world as far as it is known. Without a Knowledge everything is."""

    def __init__(self, world: World, knowledge: Knowledge | None = None) -> None:
        self.world = world
        self.knowledge = knowledge if knowledge is not None and knowledge.observability == "partial" else None

    def of(self, *types: str) -> list[Thing]:
        """Known things of exactly these types, in scene order within each type."""
        ids = (thing_id for kind in types for thing_id in self.world.of_type(kind))
        return [self.world.things[i] for i in ids if self.knowledge is None or self.knowledge.knows(i)]

    @property
    def held(self) -> Thing | None:
        return self.world.things[self.world.holding] if self.world.holding else None

    def at_hand(self, thing: Thing) -> bool:
        """Whether the agent stands where the thing is and no door is in between."""
        return self.world.at == self.world.place_of(thing.id) and self.world.hidden_in(thing.id) is None

    @property
    def here(self) -> Thing | None:
        """What the agent stands at."""
        return self.world.things.get(self.world.at or "")

    def aside(self, held: Thing) -> list[Thing]:
        """Where the held thing can be put out of the way, the best type first."""
        belongs = [kind for kind in PUT_ASIDE if may_hold(kind, held.type)]
        return self.of(*belongs) or self.of(*PUT_ASIDE) or self.of(*sorted(CONTAINERS))

    def best(self, things: Iterable[Thing]) -> Thing | None:
        """What is at hand, else the first."""
        things = list(things)
        return next(filter(self.at_hand, things), things[0] if things else None)

    def inside(self, thing: Thing, place_type: str) -> Thing | None:
        """The receptacle of that type around a thing."""
        return next((outer for outer in self.world.around(thing.id) if outer.type == place_type), None)

    def occupied(self, place: Thing) -> bool:
        """Whether a place that holds one thing is known to hold one."""
        seen = self.knowledge is None or not self.knowledge.unseen(place.id)
        return place.type in HOLDS_ONE and bool(place.contents) and seen

    def to_explore(self, kind: str) -> Thing | None:
        """The receptacle to look into next for a type: where it is most often left, then in scene order."""
        if self.knowledge is None:
            return None
        known = (thing for thing in self.world.things.values() if self.knowledge.knows(thing.id))
        unseen = [thing for thing in known if self.knowledge.unseen(thing.id) and thing.id != self.world.holding]
        return min(unseen, key=lambda thing: -likelihood(thing.type, kind), default=None)


def likelihood(place_type: str, kind: str) -> float:
    """How readily a type is left in a receptacle type; 0 where it does not belong."""
    return PLACE_WEIGHT.get(place_type, 1.0) if may_hold(place_type, kind) else 0.0


def next_step(view: View, task: Task) -> Step:
    """The step after which the task is nearer to its goal; done when it is reached or nothing can be done."""
    if succeeded(view.world, task):
        return DONE
    strategy = _Strategy(view, task)
    return (strategy.cut() if task.sliced else None) or strategy.pursue()


class _Strategy:
    """The steps of one task in one state."""

    def __init__(self, view: View, task: Task) -> None:
        self.view = view
        self.world = view.world
        self.task = task
        self.kind = f"{task.object_target}Sliced" if task.sliced else task.object_target
        self.targets = view.of(self.kind)

    def pursue(self) -> Step:
        """The next step once the target exists (as a slice where one is wanted)."""
        if self.task.type == "pick_and_place_with_movable_recep":
            return self._carry_inside()
        held = self.view.held
        if held is not None and held.type == self.kind:
            return self._with_target(held)
        if held is not None:
            return self._put_aside(held)
        return self._without_target()

    def cut(self) -> Step | None:
        """Fetch a knife and cut, unless there are slices."""
        if self.targets:
            return None
        held = self.view.held
        if held is None or held.type not in KNIVES:
            return self._take(self.view.of(*sorted(KNIVES, reverse=True)), "Knife")
        whole = self.view.best(self.view.of(self.task.object_target))
        return Step("slice", whole.id) if whole else self._explore(self.task.object_target)

    # with the target in the hand

    def _with_target(self, held: Thing) -> Step:
        match self.task.type:
            case "look_at_obj_in_light":
                return self._light()
            case "pick_heat_then_place_in_recep" if held.id not in self.world.heated:
                return self._bring(held, self.view.of("Microwave"))
            case "pick_cool_then_place_in_recep" if held.id not in self.world.cooled:
                return self._bring(held, self.view.of("Fridge"))
            case "pick_clean_then_place_in_recep" if held.id not in self.world.cleaned:
                return self._bring(held, [basin for basin in self.view.of("SinkBasin") if self._faucet(basin)])
        return self._deliver(held)

    def _light(self) -> Step:
        lamp = self.view.best(self.view.of(self.task.toggle_target))
        if lamp is None:
            return DONE
        return Step("go", lamp.id) if lamp.is_on else Step("turn on", lamp.id)

    def _bring(self, held: Thing, places: list[Thing]) -> Step:
        place = self.view.best(places)
        return Step("put", held.id, place.id) if place else DONE

    def _deliver(self, held: Thing) -> Step:
        places = self.view.of(self.task.parent_target)
        free = [place for place in places if not self.view.occupied(place)] or places
        if self.task.type == "pick_two_obj_and_place":
            most = max((self._share(place) for place in free), default=0)
            free = [place for place in free if self._share(place) == most]
        return self._bring(held, free)

    def _share(self, place: Thing) -> int:
        return sum(target.parent == place.id for target in self.targets)

    # with empty hands

    def _without_target(self) -> Step:
        match self.task.type:
            case "pick_heat_then_place_in_recep":
                return self._treat(self.world.heated, "Microwave")
            case "pick_cool_then_place_in_recep":
                return self._treat(self.world.cooled, "Fridge")
            case "pick_clean_then_place_in_recep":
                return self._treat(self.world.cleaned, "SinkBasin")
            case "pick_two_obj_and_place":
                return self._take(self._not_yet_there(), self.kind)
        return self._take(self.targets, self.kind)

    def _not_yet_there(self) -> list[Thing]:
        places = self.view.of(self.task.parent_target)
        fullest = max(places, key=self._share, default=None)
        return [target for target in self.targets if fullest is None or target.parent != fullest.id]

    def _treat(self, marked: set[str], appliance: str) -> Step:
        """Run the appliance with a target in it, then take what is ready; else fetch a target."""
        ready = self.view.best(target for target in self.targets if target.id in marked)
        chosen = ready or self.view.best(filter(self._here_in(appliance), self.targets)) or self.view.best(self.targets)
        place = self.view.inside(chosen, appliance) if chosen else None
        if chosen is None or place is None:
            return self._take([chosen] if chosen else [], self.kind)
        verb, switch = self._switch_off(place) if ready else self._run(place)
        return Step(verb, switch.id, content=chosen.id) if switch else Step("take", chosen.id)

    def _here_in(self, appliance: str) -> Callable[[Thing], bool]:
        def here(target: Thing) -> bool:
            place = self.view.inside(target, appliance)
            return place is not None and place.id == self.world.at

        return here

    def _switch_off(self, place: Thing) -> tuple[Act, Thing | None]:
        switch = self._faucet(place) if place.type == "SinkBasin" else place
        return "turn off", switch if switch and switch.is_on else None

    def _run(self, place: Thing) -> tuple[Act, Thing | None]:
        """The next step of heating, cooling or cleaning what is in the appliance."""
        if place.type == "Fridge":
            return "close" if place.is_open else "open", place
        if place.type == "Microwave" and place.is_open:
            return "close", place
        switch = self._faucet(place) if place.type == "SinkBasin" else place
        return "turn off" if switch and switch.is_on else "turn on", switch

    def _faucet(self, basin: Thing) -> Thing | None:
        basin_of = self.world.ground.basin_of
        return next((faucet for faucet in self.view.of("Faucet") if basin_of.get(faucet.id) == basin.id), None)

    # a target in a movable receptacle

    def _carry_inside(self) -> Step:
        carriers = self.view.of(self.task.mrecep_target)
        loaded = [carrier for carrier in carriers if self._share(carrier)]
        held = self.view.held
        if held is not None and held in loaded:
            return self._deliver(held)
        if held is not None and held.type == self.kind:
            carrier = self.view.best(carriers)
            return Step("put", held.id, carrier.id) if carrier else self._explore(self.task.mrecep_target)
        if held is not None:
            return self._put_aside(held)
        return self._take(loaded or self.targets, self.task.mrecep_target if loaded else self.kind)

    # shared

    def _take(self, things: Iterable[Thing], kind: str) -> Step:
        held = self.view.held
        if held is not None:
            return self._put_aside(held)
        chosen = self.view.best(things)
        return Step("take", chosen.id) if chosen else self._explore(kind)

    def _explore(self, kind: str) -> Step:
        place = self.view.to_explore(kind)
        return Step("look into", place.id) if place else DONE

    def _put_aside(self, held: Thing) -> Step:
        """Put down what is in the way: where the agent stands if things can lie there, else on the best surface."""
        here = self.view.here
        if here is not None and here.type in PUT_ASIDE and may_hold(here.type, held.type):
            return Step("put", held.id, here.id)
        places = self.view.aside(held)
        place = self.view.best(place for place in places if place.type == places[0].type)
        return Step("put", held.id, place.id) if place else DONE

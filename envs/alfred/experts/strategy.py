"""Strategy of the scripted expert: it derives the next step of a task from the known state alone.

The expert remembers no earlier steps, so it can continue after skills that another planner chose. Among instances of a
type, it prefers one at the agent's place, else the first in scene order (the order of the scene's items).
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

from envs.alfred.goals import TREATMENTS, goal_met
from envs.alfred.houses.rooms import HOLDS_ONE, PLACE_WEIGHT
from envs.alfred.knowledge import Knowledge
from envs.alfred.objects import CONTAINERS, KNIVES, may_hold
from envs.alfred.scene import Task
from envs.alfred.state import Thing
from envs.alfred.world import World

Verb = Literal["take", "put", "open", "close", "slice", "turn on", "turn off", "go", "look into", "done"]

# Places where a held thing can be put aside, best first; none has a door.
SPARE_PLACES = (
    *("CounterTop", "DiningTable", "SideTable", "CoffeeTable", "Desk", "Dresser", "Shelf", "Bed", "Sofa", "ArmChair"),
    *("Ottoman", "Toilet", "Cart", "TVStand", "SinkBasin", "BathtubBasin", "GarbageCan"),
)


@dataclass(frozen=True, slots=True)
class ExpertStep:
    """Action on a thing; ``place`` is the receptacle to put it in, ``content`` an object to heat, cool or clean."""

    verb: Verb
    thing: str = ""
    place: str = ""
    content: str = ""


DONE_STEP = ExpertStep("done")


class WorldView:
    """View of the known part of a world; without a Knowledge, of the whole world."""

    def __init__(self, world: World, knowledge: Knowledge | None = None) -> None:
        self.world = world
        self.knowledge = knowledge if knowledge is not None and knowledge.observability == "partial" else None

    def of_types(self, *types: str) -> list[Thing]:
        """Return the known things of exactly these types, in scene order within each type."""
        ids = (thing_id for kind in types for thing_id in self.world.of_type(kind))
        return [self.world.things[i] for i in ids if self.knowledge is None or self.knowledge.knows(i)]

    @property
    def in_hand(self) -> Thing | None:
        return self.world.things[self.world.holding] if self.world.holding else None

    def at_hand(self, thing: Thing) -> bool:
        """Return whether the agent stands at the thing's place with no closed door in between."""
        return self.world.at == self.world.place_of(thing.id) and self.world.hidden_in(thing.id) is None

    @property
    def current_place(self) -> Thing | None:
        """Thing at which the agent stands."""
        return self.world.things.get(self.world.at or "")

    def put_down_places(self, in_hand: Thing) -> list[Thing]:
        """Return the places where the held thing can be put aside, the best type first."""
        kinds = [kind for kind in SPARE_PLACES if may_hold(kind, in_hand.type)]
        return self.of_types(*kinds) or self.of_types(*SPARE_PLACES) or self.of_types(*sorted(CONTAINERS))

    def best(self, things: Iterable[Thing]) -> Thing | None:
        """Return the first thing that is at hand, else the first."""
        things = list(things)
        return next(filter(self.at_hand, things), things[0] if things else None)

    def inside(self, thing: Thing, place_type: str) -> Thing | None:
        """Return the receptacle of type ``place_type`` that holds a thing, or None."""
        return next((outer for outer in self.world.holders(thing.id) if outer.type == place_type), None)

    def occupied(self, place: Thing) -> bool:
        """Return whether a place that holds only one thing is known to be occupied."""
        content_known = self.knowledge is None or not self.knowledge.is_unseen(place.id)
        return place.type in HOLDS_ONE and bool(place.contents) and content_known

    def to_explore(self, kind: str) -> Thing | None:
        """Return the unseen receptacle most likely to hold a thing of a type; among equals, the first in order."""
        if self.knowledge is None:
            return None
        known = (thing for thing in self.world.things.values() if self.knowledge.knows(thing.id))
        unseen = [thing for thing in known if self.knowledge.is_unseen(thing.id) and thing.id != self.world.holding]
        weights = [PLACE_WEIGHT.get(thing.type, 1.0) * may_hold(thing.type, kind) for thing in unseen]
        return unseen[weights.index(max(weights))] if unseen else None


def next_step(view: WorldView, task: Task) -> ExpertStep:
    """Return the next step towards the goal; "done" if it is reached or no step helps."""
    if goal_met(view.world, task):
        return DONE_STEP
    strategy = _Strategy(view, task)
    return (strategy.slice_target() if task.sliced else None) or strategy.place_target()


class _Strategy:
    """Choice of the next step of one task in one state."""

    def __init__(self, view: WorldView, task: Task) -> None:
        self.view, self.world, self.task = view, view.world, task
        self.kind = f"{task.object_target}Sliced" if task.sliced else task.object_target
        self.targets = view.of_types(self.kind)
        self.treatment = TREATMENTS.get(task.type)
        self.treated: set[str] = getattr(self.world, self.treatment.attribute) if self.treatment else set()

    def place_target(self) -> ExpertStep:
        """Return the next step once the target exists (as a slice, if the task asks for one)."""
        if self.task.type == "pick_and_place_with_movable_recep":
            return self._carry_inside()
        in_hand = self.view.in_hand
        if in_hand is None:
            return self._without_target()
        return self._with_target(in_hand) if in_hand.type == self.kind else self._put_aside(in_hand)

    def slice_target(self) -> ExpertStep | None:
        """Return the step that fetches a knife or cuts, or None once there are slices."""
        if self.targets:
            return None
        in_hand = self.view.in_hand
        if in_hand is None or in_hand.type not in KNIVES:
            return self._take(self.view.of_types(*sorted(KNIVES, reverse=True)), "Knife")
        whole = self.view.best(self.view.of_types(self.task.object_target))
        return ExpertStep("slice", whole.id) if whole else self._explore(self.task.object_target)

    # with the target in the hand

    def _with_target(self, in_hand: Thing) -> ExpertStep:
        if self.task.type == "look_at_obj_in_light":
            lamp = self.view.best(self.view.of_types(self.task.toggle_target))
            return ExpertStep("go" if lamp.is_on else "turn on", lamp.id) if lamp else DONE_STEP
        if self.treatment is None or in_hand.id in self.treated:
            return self._deliver(in_hand)
        return self._bring(in_hand, list(filter(self._switch, self.view.of_types(self.treatment.appliance))))

    def _bring(self, in_hand: Thing, places: list[Thing]) -> ExpertStep:
        place = self.view.best(places)
        return ExpertStep("put", in_hand.id, place.id) if place else DONE_STEP

    def _deliver(self, in_hand: Thing) -> ExpertStep:
        places = self.view.of_types(self.task.parent_target)
        free = [place for place in places if not self.view.occupied(place)] or places
        if self.task.type == "pick_two_obj_and_place":
            most = max((self._target_count(place) for place in free), default=0)
            free = [place for place in free if self._target_count(place) == most]
        return self._bring(in_hand, free)

    def _target_count(self, place: Thing) -> int:
        return sum(target.parent == place.id for target in self.targets)

    # with an empty hand

    def _without_target(self) -> ExpertStep:
        if self.treatment is not None:
            return self._treat(self.treatment.appliance)
        targets = self.targets
        if self.task.type == "pick_two_obj_and_place":
            fullest = max(self.view.of_types(self.task.parent_target), key=self._target_count, default=None)
            targets = [target for target in targets if fullest is None or target.parent != fullest.id]
        return self._take(targets, self.kind)

    def _treat(self, appliance: str) -> ExpertStep:
        """Return the step that takes a treated target, runs the appliance with a target in it, or fetches a target."""
        places = {target.id: self.view.inside(target, appliance) for target in self.targets}
        ready = self.view.best(target for target in self.targets if target.id in self.treated)
        nearby = [target for target in self.targets if (place := places[target.id]) and place.id == self.world.at]
        target = ready or self.view.best(nearby) or self.view.best(self.targets)
        place = places[target.id] if target else None
        if target is None or place is None:
            return self._take([target] if target else [], self.kind)
        verb, switch = self._treatment_step(place)
        if ready:  # switch the appliance off if it is on, then take the target
            verb, switch = "turn off", self._switch(place)
            switch = switch if switch and switch.is_on else None
        return ExpertStep(verb, switch.id, content=target.id) if switch else ExpertStep("take", target.id)

    def _treatment_step(self, place: Thing) -> tuple[Verb, Thing | None]:
        """Return the verb and the thing of the next step that heats, cools or cleans what the appliance holds."""
        if place.type == "Fridge":
            return "close" if place.is_open else "open", place
        if place.type == "Microwave" and place.is_open:
            return "close", place
        switch = self._switch(place)
        return "turn off" if switch and switch.is_on else "turn on", switch

    def _switch(self, place: Thing) -> Thing | None:
        """Return the thing that switches an appliance: the faucet of a basin, else the appliance itself."""
        if place.type != "SinkBasin":
            return place
        basin_of = self.world.geometry.basin_of
        return next((faucet for faucet in self.view.of_types("Faucet") if basin_of.get(faucet.id) == place.id), None)

    # a target in a movable receptacle

    def _carry_inside(self) -> ExpertStep:
        carriers = self.view.of_types(self.task.mrecep_target)
        loaded = [carrier for carrier in carriers if self._target_count(carrier)]
        in_hand = self.view.in_hand
        if in_hand is not None and in_hand in loaded:
            return self._deliver(in_hand)
        if in_hand is not None and in_hand.type == self.kind:
            carrier = self.view.best(carriers)
            return ExpertStep("put", in_hand.id, carrier.id) if carrier else self._explore(self.task.mrecep_target)
        return self._take(loaded or self.targets, self.task.mrecep_target if loaded else self.kind)

    # steps of all task types

    def _take(self, things: Iterable[Thing], kind: str) -> ExpertStep:
        in_hand = self.view.in_hand
        if in_hand is not None:
            return self._put_aside(in_hand)
        target = self.view.best(things)
        return ExpertStep("take", target.id) if target else self._explore(kind)

    def _explore(self, kind: str) -> ExpertStep:
        place = self.view.to_explore(kind)
        return ExpertStep("look into", place.id) if place else DONE_STEP

    def _put_aside(self, in_hand: Thing) -> ExpertStep:
        """Return the step that puts the held thing on the fixture at the agent's place, else on the best surface."""
        place = self.view.current_place
        if place is not None and place.type in SPARE_PLACES and may_hold(place.type, in_hand.type):
            return ExpertStep("put", in_hand.id, place.id)
        places = self.view.put_down_places(in_hand)
        return self._bring(in_hand, [place for place in places if place.type == places[0].type])

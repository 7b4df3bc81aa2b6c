"""The expert's steps as type-level skills: find, open the door, then act.

A skill names a type and the world chooses the instance. The expert therefore accepts a suitable instance that the world
would choose, and repeats ``find`` until it reaches a required one. ``find`` needs no search, so this view covers the
whole world.
"""

from __future__ import annotations

from collections.abc import Iterable

from envs.alfred.experts.strategy import Step, View, next_step
from envs.alfred.lota import FINDABLE, LotaSkills, find_words
from envs.alfred.objects import lota_words, whole
from envs.alfred.scene import Task
from envs.alfred.state import Thing

_SKILLS = LotaSkills()
_APPLIANCES = frozenset({"Fridge", "Microwave", "SinkBasin"})


class _LotaView(View):
    """A view that prefers the instance of the last ``find``, then the one that the next ``find`` would reach."""

    def best(self, things: Iterable[Thing]) -> Thing | None:
        by_id = {thing.id: thing for thing in things if whole(thing.type) in FINDABLE}
        handy = [thing_id for thing_id in by_id if self.handy(thing_id)]
        if not handy:
            return self._reached_first(by_id) if by_id else None
        if by_id[handy[0]].pickupable:
            instance = _SKILLS.choose(self.world, say(self, "pick up", handy[0]))
            handy = [instance] if instance in handy else handy
        return by_id[handy[0]]

    def handy(self, thing_id: str) -> bool:
        """Return whether the last ``find`` reached the thing or the appliance around it: no ``find`` is needed."""
        target = self.last_found()
        around = (outer.id for outer in self.world.around(thing_id) if outer.type in _APPLIANCES)
        return target is not None and (target == thing_id or target in around)

    def last_found(self) -> str | None:
        """Return the thing of the last ``find``, or None; a faucet stands for its basin."""
        target = self.world.focus.target
        return self.world.geometry.basin_of.get(target, target) if target in self.world.things else None

    def _reached_first(self, by_id: dict[str, Thing]) -> Thing:
        """Return the instance that repeated ``find`` skills reach first."""
        first = next(iter(by_id.values()))
        skill = find_words(whole(first.type))
        world = self.world
        for attempt in range(len(world.things)):
            instance = _SKILLS.choose(world, skill)
            if instance in by_id:
                return by_id[instance]
            world = world.copy() if attempt == 0 else world
            if instance is None or not _SKILLS.execute(world, skill).ok:
                break
        return first

    def put_down_places(self, in_hand: Thing) -> list[Thing]:
        return [place for place in super().put_down_places(in_hand) if place.type in FINDABLE]

    @property
    def current_place(self) -> Thing | None:
        """No place: the expert puts things aside on the same type of surface, wherever the agent stands."""
        return None


def lota_skill(known_view: View, task: Task) -> str:
    """Return the next type-level skill for a task."""
    view = _LotaView(known_view.world)
    step = next_step(view, task)
    match step.act:
        case "done":
            return "done"
        case "go" | "look into":
            return _find(view, step.thing)
        case "put":
            return _put(view, step)
        case "take" | "slice":
            return _reach(view, step.thing, "slice" if step.act == "slice" else "pick up")
    return _operate(view, step.thing, step.act, step.content)


def say(view: View, verb: str, thing_id: str) -> str:
    """Return the skill that applies a verb to a thing's type."""
    return f"{verb} the {lota_words(whole(view.world[thing_id].type))}"


def _find(view: _LotaView, thing_id: str) -> str:
    return find_words(whole(view.world[thing_id].type))


def _reach(view: _LotaView, thing_id: str, verb: str) -> str:
    """Return the skill that acts on an object that is handy, else the one that finds it."""
    if not view.handy(thing_id):
        return _find(view, thing_id)
    hiding = view.world.hidden_in(thing_id)
    if hiding is not None:
        return _operate(view, hiding, "open")
    skill = say(view, verb, thing_id)
    return skill if _SKILLS.choose(view.world, skill) == thing_id else _find(view, thing_id)


def _put(view: _LotaView, step: Step) -> str:
    if view.last_found() != step.place:
        return _find(view, step.place)
    shut = view.world.hidden_in(step.place) or (step.place if view.world[step.place].shut else None)
    return _operate(view, shut, "open") if shut else say(view, "put down", step.thing)


def _operate(view: _LotaView, thing_id: str, verb: str, content: str = "") -> str:
    """Return the skill that operates a thing at the agent's place, else the one that finds it or its ``content``."""
    world = view.world
    if verb == "open" and world[thing_id].is_on:
        verb = "turn off"
    at_hand = world.at is not None and world.at in (world.place_of(thing_id), world.geometry.basin_of.get(thing_id))
    skill = say(view, verb, thing_id)
    if at_hand and _SKILLS.choose(world, skill) == thing_id:
        return skill
    return _find(view, content if content and not at_hand else thing_id)

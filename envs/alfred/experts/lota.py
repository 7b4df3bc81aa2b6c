"""The expert's steps as type-level skills: find, open what is shut, then act.

A skill names a type and the world picks the instance, so the expert settles for the suitable instance it would pick
and repeats ``find`` until the right one is reached. ``find`` needs no search, hence the view is of the whole world.
"""

from __future__ import annotations

from collections.abc import Iterable

from envs.alfred.experts.strategy import Step, View, next_step
from envs.alfred.lota import FINDABLE, LotaSkills, find_words
from envs.alfred.objects import spoken, whole
from envs.alfred.scene import Task
from envs.alfred.thing import Thing

_SKILLS = LotaSkills()
_APPLIANCES = frozenset({"Fridge", "Microwave", "SinkBasin"})


class _LotaView(View):
    """Prefers what was found, then what the next ``find`` would reach."""

    def best(self, things: Iterable[Thing]) -> Thing | None:
        by_id = {thing.id: thing for thing in things if whole(thing.type) in FINDABLE}
        handy = [one for one in by_id if self.handy(one)]
        if not handy:
            return self._reached_first(by_id) if by_id else None
        if by_id[handy[0]].pickupable:
            chosen = _SKILLS.choose(self.world, say(self, "pick up", handy[0]))
            handy = [chosen] if chosen in handy else handy
        return by_id[handy[0]]

    def handy(self, thing_id: str) -> bool:
        """Whether it was found, or lies in an appliance that was found: then no ``find`` comes first."""
        found = self.found()
        around = (outer.id for outer in self.world.around(thing_id) if outer.type in _APPLIANCES)
        return found is not None and (found == thing_id or found in around)

    def found(self) -> str | None:
        """What was last found; a faucet stands for its basin."""
        target = self.world.focus.target
        return self.world.ground.basin_of.get(target, target) if target in self.world.things else None

    def _reached_first(self, by_id: dict[str, Thing]) -> Thing:
        """The instance that saying ``find`` again and again reaches first."""
        first = next(iter(by_id.values()))
        skill = find_words(whole(first.type))
        world = self.world
        for attempt in range(len(world.things)):
            chosen = _SKILLS.choose(world, skill)
            if chosen in by_id:
                return by_id[chosen]
            world = world.copy() if attempt == 0 else world
            if chosen is None or not _SKILLS.execute(world, skill).ok:
                break
        return first

    def aside(self, held: Thing) -> list[Thing]:
        return [place for place in super().aside(held) if place.type in FINDABLE]

    @property
    def here(self) -> Thing | None:
        """Nothing: things are put aside on the same type of surface wherever the agent stands."""
        return None


def lota_skill(view: View, task: Task) -> str:
    """The next type-level skill for a task."""
    whole_view = _LotaView(view.world)
    return _render(whole_view, next_step(whole_view, task))


def _render(view: _LotaView, step: Step) -> str:
    match step.act:
        case "done":
            return "done"
        case "go" | "look into":
            return _find(view, step.thing)
        case "put":
            return _put(view, step)
        case "take":
            return _reach(view, step.thing, "pick up")
        case "slice":
            return _reach(view, step.thing, "slice")
    return _operate(view, step.thing, step.act, step.content)


def say(view: View, verb: str, thing_id: str) -> str:
    """The skill of a verb on a thing's type."""
    return f"{verb} the {spoken(whole(view.world[thing_id].type))}"


def _find(view: _LotaView, thing_id: str) -> str:
    return find_words(whole(view.world[thing_id].type))


def _reach(view: _LotaView, thing_id: str, verb: str) -> str:
    """Act on an object that is handy; find it otherwise."""
    if not view.handy(thing_id):
        return _find(view, thing_id)
    hiding = view.world.hidden_in(thing_id)
    if hiding is not None:
        return _operate(view, hiding, "open")
    skill = say(view, verb, thing_id)
    return skill if _SKILLS.choose(view.world, skill) == thing_id else _find(view, thing_id)


def _put(view: _LotaView, step: Step) -> str:
    if view.found() != step.place:
        return _find(view, step.place)
    shut = view.world.hidden_in(step.place) or (step.place if view.world[step.place].shut else None)
    return _operate(view, shut, "open") if shut else say(view, "put down", step.thing)


def _operate(view: _LotaView, thing_id: str, verb: str, content: str = "") -> str:
    """Open, close or switch a thing the agent stands at; else find it, or what it is operated for."""
    world = view.world
    if verb == "open" and world[thing_id].is_on:
        verb = "turn off"
    at_hand = world.at is not None and world.at in (world.place_of(thing_id), world.ground.basin_of.get(thing_id))
    skill = say(view, verb, thing_id)
    if at_hand and _SKILLS.choose(world, skill) == thing_id:
        return skill
    return _find(view, content if content and not at_hand else thing_id)

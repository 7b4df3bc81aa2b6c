"""Instance-level skills: "go to cabinet 3", "open cabinet 3", "put mug 2 in fridge 1", ... and "done".

The agent can go to a receptacle, a lamp, a faucet, or to an object on the floor. Every other skill works only on
the fixture to which the agent has gone, on objects in or on that fixture, and on a lamp or faucet within reach. The
message of a failed skill never tells where a hidden object is.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator

from envs.alfred import objects
from envs.alfred.knowledge import Knowledge
from envs.alfred.objects import name_of
from envs.alfred.state import Thing
from envs.alfred.world import World
from envs.outcome import SUCCESS, Outcome, failed, unknown_skill

_FORM = re.compile(r"(go to|open|close|pick up|slice|turn on|turn off) (\w+ \d+)")
_TYPES = {objects.id_type(kind): kind for kind in objects.KNOWN_TYPES}
_PUT = re.compile(r"put (\w+ \d+) in (\w+ \d+)")
_PRIMITIVES = {  # world method of each verb
    **{"open": "open", "close": "close", "pick up": "pick"},
    **{"slice": "slice", "turn on": "turn_on", "turn off": "turn_off"},
}


class GroundedSkills:
    """Instance-level skills of a scene."""

    def execute(self, world: World, skill: str) -> Outcome:
        """Execute a skill; objects that never existed are treated as hidden. Raises SkillError for unknown skills."""
        if skill == "done":
            return SUCCESS
        if match := _PUT.fullmatch(skill):
            thing, receptacle = (_resolve(world, skill, name) for name in match.groups())
            refusal = _missing(world, thing, _not_held) or _missing(world, receptacle, _not_here)
            if refusal or world.holding != thing:
                return refusal or _not_held(world, thing)
            return _out_of_reach(world, receptacle) or world.put(thing, receptacle)
        if match := _FORM.fullmatch(skill):
            verb, thing = match[1], _resolve(world, skill, match[2])
            if verb == "go to":
                return _missing(world, thing, _not_on_floor) or _go(world, thing)
            refusal = _missing(world, thing, _not_here) or _out_of_reach(world, thing)
            return refusal or getattr(world, _PRIMITIVES[verb])(thing)
        raise unknown_skill(skill, _all_skills(world))

    def admissible(self, world: World, knowledge: Knowledge | None = None) -> tuple[str, ...]:
        """Return the sensible skills: go to known things, use visible things and devices within reach, and "done"."""
        known = world.things.keys() if knowledge is None else knowledge.known
        visible = [thing_id for thing_id in world.in_view() if thing_id in known]
        destinations = (name for name, thing in world.things.items() if not thing.pickupable or world.on_floor(name))
        skills = [f"go to {name_of(name)}" for name in destinations if name in known and name != world.at]
        skills += [words for thing_id in visible for words in _thing_skills(world, thing_id)]
        switches = [name for kind in sorted(objects.TOGGLEABLE) for name in world.of_type(kind)]
        skills += [words for name in switches if _within_reach(world, name) for words in _switch_skills(world[name])]
        return (*skills, "done")


def _resolve(world: World, skill: str, name: str) -> str:
    """Return the id of the thing with this name, whether it exists or not. Raises SkillError for an unknown type."""
    if name.split(" ")[0] not in _TYPES:
        raise unknown_skill(skill, _all_skills(world))
    return name.replace(" ", "_")


def _all_skills(world: World) -> Iterator[str]:
    """Yield every skill that could ever work on something in the scene."""
    yield "done"
    receptacles = [name_of(thing.id) for thing in world.things.values() if thing.receptacle]
    for thing in world.things.values():
        name = name_of(thing.id)
        yield f"go to {name}"
        if thing.openable:
            yield from (f"open {name}", f"close {name}")
        if thing.toggleable:
            yield from (f"turn on {name}", f"turn off {name}")
        if thing.type in objects.SLICEABLE:
            yield f"slice {name}"
        if thing.pickupable:
            yield f"pick up {name}"
            yield from (f"put {name} in {receptacle}" for receptacle in receptacles)


def _within_reach(world: World, thing_id: str) -> bool:
    if world[thing_id].toggleable and not world[thing_id].receptacle:
        return world.near(thing_id)
    return world.at is not None and world.place_of(thing_id) == world.at


# refusals


def _missing(world: World, thing_id: str, refuse: Callable[[World, str], Outcome]) -> Outcome | None:
    """Return the failure for a thing that does not exist, else None.

    ``refuse`` returns the failure for a hidden object. An object that never existed gets the same failure.
    """
    if thing_id in world.things:
        return None
    if thing_id in world.geometry.ids:
        return failed(f"{name_of(thing_id)} was sliced and no longer exists")
    pickupable = _TYPES[thing_id.rpartition("_")[0]] in objects.PICKUPABLE
    return refuse(world, thing_id) if pickupable else failed(f"there is no {name_of(thing_id)}")


def _not_held(world: World, thing_id: str) -> Outcome:
    return failed(f"you are not holding {name_of(thing_id)}")


def _not_on_floor(world: World, thing_id: str) -> Outcome:
    return failed(f"{name_of(thing_id)} is not on the floor, go to a receptacle")


def _not_here(world: World, thing_id: str) -> Outcome:
    closed = world.at is not None and world[world.at].closed
    return failed(f"{name_of(world.at)} is closed" if closed else f"{name_of(thing_id)} is not here")


def _out_of_reach(world: World, thing_id: str) -> Outcome | None:
    """Return the failure for a thing out of reach, else None; the failure does not reveal where the thing is."""
    if thing_id == world.holding:
        return failed(f"you are holding {name_of(thing_id)}")
    if not world[thing_id].pickupable:
        return None if _within_reach(world, thing_id) else failed(f"you are not at {name_of(thing_id)}")
    if _within_reach(world, thing_id) and world.hidden_in(thing_id) is None:
        return None
    return _not_here(world, thing_id)


# effects


def _go(world: World, thing_id: str) -> Outcome:
    if thing_id == world.holding:
        return failed(f"you are holding {name_of(thing_id)}")
    if world[thing_id].pickupable and not world.on_floor(thing_id):
        return _not_on_floor(world, thing_id)
    return world.goto(thing_id)


# admissible skills


def _thing_skills(world: World, thing_id: str) -> Iterator[str]:
    """Yield sensible skills on a thing in view; a bowl or box gets only objects that it `may_hold`."""
    thing, holding = world[thing_id], world.holding
    if thing.type in objects.CONTAINERS and not thing.is_on:
        yield f"{'close' if thing.is_open else 'open'} {name_of(thing_id)}"
    if holding is None:
        if thing.pickupable:
            yield f"pick up {name_of(thing_id)}"
        return
    usual = not thing.movable or objects.may_hold(thing.type, world[holding].type)
    if usual and world.no_room(holding, thing_id) is None:
        yield f"put {name_of(holding)} in {name_of(thing_id)}"
    if thing.type in objects.SLICEABLE and world[holding].type in objects.KNIVES:
        yield f"slice {name_of(thing_id)}"


def _switch_skills(thing: Thing) -> Iterator[str]:
    if thing.is_on:
        yield f"turn off {name_of(thing.id)}"
    elif not thing.is_open:
        yield f"turn on {name_of(thing.id)}"

"""Instance-level skills: "go to cabinet 3", "open cabinet 3", "put mug 2 in fridge 1", ... and "done".

One goes to a receptacle, a lamp, a faucet, or to an object on the floor; everything else works only where the agent
stands: on the thing itself, on what lies in or on it, on a lamp or faucet beside it. Refusals do not tell where
a hidden thing is.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator

from envs.alfred import objects
from envs.alfred.knowledge import Knowledge
from envs.alfred.objects import say
from envs.alfred.world import World
from envs.outcome import DONE, Outcome, failed, unknown_skill

Refusal = Callable[[World, str], Outcome]
_FORM = re.compile(r"(go to|open|close|pick up|slice|turn on|turn off) (\w+ \d+)")
_TYPES = {objects.snake(kind): kind for kind in objects.KNOWN_TYPES}
_PUT = re.compile(r"put (\w+ \d+) in (\w+ \d+)")


class GroundedSkills:
    """Instance-level skills of the scene at hand."""

    def execute(self, world: World, skill: str) -> Outcome:
        """Do it; raises SkillError for words that are no skill or name no type of thing.

        A thing the scene does not have is refused like one that is elsewhere.
        """
        if skill == "done":
            return DONE
        if match := _PUT.fullmatch(skill):
            thing, receptacle = (_resolve(world, skill, name) for name in match.groups())
            missing = _missing(world, thing, _not_held) or _missing(world, receptacle)
            return missing or _put(world, thing, receptacle)
        if match := _FORM.fullmatch(skill):
            thing = _resolve(world, skill, match[2])
            refuse = _not_on_floor if match[1] == "go to" else _not_here
            return _missing(world, thing, refuse) or _DO[match[1]](world, thing)
        raise unknown_skill(skill, _possible(world))

    def admissible(self, world: World, knowledge: Knowledge | None = None) -> tuple[str, ...]:
        """What makes sense now given what is known, in scene order by verb."""
        known = world.things.keys() if knowledge is None else knowledge.known
        here = [one for one in world.in_view() if one in known]
        skills = [f"go to {say(one)}" for one in _destinations(world) if one in known and one != world.at]
        skills += [words for one in here for words in _on_thing(world, one)]
        skills += [words for one in _switches(world) for words in _on_switch(world, one)]
        return (*skills, "done")


def _resolve(world: World, skill: str, name: str) -> str:
    """The id of a thing of a known type, there or not."""
    if name.split(" ")[0] not in _TYPES:
        raise unknown_skill(skill, _possible(world))
    return name.replace(" ", "_")


def _possible(world: World) -> Iterator[str]:
    """Every skill that could ever work on something in the scene."""
    yield "done"
    receptacles = [say(thing.id) for thing in world.things.values() if thing.receptacle]
    for thing in world.things.values():
        name = say(thing.id)
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


# where things are


def _switches(world: World) -> list[str]:
    """Lamps, faucets and microwaves within reach."""
    ids = (one for kind in sorted(objects.TOGGLEABLE) for one in world.of_type(kind))
    return [one for one in ids if _within_reach(world, one)]


def _within_reach(world: World, one: str) -> bool:
    if world[one].toggleable and not world[one].receptacle:
        return world.near(one)
    return world.at is not None and world.place_of(one) == world.at


def _destinations(world: World) -> list[str]:
    return [one for one, thing in world.things.items() if not thing.pickupable or world.on_floor(one)]


# refusals


def _missing(world: World, one: str, refuse: Refusal | None = None) -> Outcome | None:
    """Why a thing that does not exist cannot be used; ``refuse`` is what a hidden object hears, for whoever guesses."""
    if one in world.things:
        return None
    if one in world.ground.ids:
        return failed(f"{say(one)} was sliced and no longer exists")
    pickupable = _TYPES[one.rpartition("_")[0]] in objects.PICKUPABLE
    return (refuse or _not_here)(world, one) if pickupable else failed(f"there is no {say(one)}")


def _not_held(world: World, one: str) -> Outcome:
    return failed(f"you are not holding {say(one)}")


def _not_on_floor(world: World, one: str) -> Outcome:
    return failed(f"{say(one)} is not on the floor, go to a receptacle")


def _not_here(world: World, one: str) -> Outcome:
    shut = world.at is not None and world[world.at].shut
    return failed(f"{say(world.at)} is closed" if shut else f"{say(one)} is not here")


def _out_of_reach(world: World, one: str) -> Outcome | None:
    """Why a thing cannot be touched from here, without telling where it is."""
    if one == world.holding:
        return failed(f"you are holding {say(one)}")
    if not world[one].pickupable:
        return None if _within_reach(world, one) else failed(f"you are not at {say(one)}")
    if _within_reach(world, one) and world.hidden_in(one) is None:
        return None
    return _not_here(world, one)


# what the skills do


def _go(world: World, one: str) -> Outcome:
    if one == world.holding:
        return failed(f"you are holding {say(one)}")
    if world[one].pickupable and not world.on_floor(one):
        return _not_on_floor(world, one)
    return world.goto(one)


def _touch(primitive: Callable[[World, str], Outcome]) -> Callable[[World, str], Outcome]:
    """A skill that is one primitive on something within reach."""
    return lambda world, one: _out_of_reach(world, one) or primitive(world, one)


def _put(world: World, thing: str, receptacle: str) -> Outcome:
    if world.holding != thing:
        return _not_held(world, thing)
    return _out_of_reach(world, receptacle) or world.put(thing, receptacle)


_DO: dict[str, Callable[[World, str], Outcome]] = {
    "go to": _go,
    "open": _touch(lambda world, one: world.open(one)),
    "close": _touch(lambda world, one: world.close(one)),
    "pick up": _touch(lambda world, one: world.pick(one)),
    "slice": _touch(lambda world, one: world.slice(one)),
    "turn on": _touch(lambda world, one: world.turn_on(one)),
    "turn off": _touch(lambda world, one: world.turn_off(one)),
}


# what makes sense


def _on_thing(world: World, one: str) -> Iterator[str]:
    """Sensible skills on something at hand; only usual things go into a bowl or box, anything onto furniture."""
    thing, held = world[one], world.holding
    if thing.type in objects.CONTAINERS and not thing.is_on:
        yield f"{'close' if thing.is_open else 'open'} {say(one)}"
    if held is None:
        if thing.pickupable:
            yield f"pick up {say(one)}"
        return
    usual = not thing.movable or objects.may_hold(thing.type, world[held].type)
    if usual and world.no_room(held, one) is None:
        yield f"put {say(held)} in {say(one)}"
    if thing.type in objects.SLICEABLE and world[held].type in objects.KNIVES:
        yield f"slice {say(one)}"


def _on_switch(world: World, one: str) -> Iterator[str]:
    thing = world[one]
    if thing.is_on:
        yield f"turn off {say(one)}"
    elif not thing.is_open:
        yield f"turn on {say(one)}"

"""The 214 type-level skills of LoTA-Bench for ALFRED (LLMTaskPlanning at 97c46cc), and their choice of instances.

A skill names a type (``pick up the mug``), and `LotaSkills` chooses which mug. As in LoTA-Bench, instances are ranked
by these criteria, the most important first: not behind a closed door, not an occupied stove burner, visible, near. A
slice counts as an instance of its whole (``the apple``), and slices are preferred after a cut. ``find`` teleports the
agent, even to an object in a closed receptacle. The *target* is the instance that the last ``find`` reached. Without a
target, or if putting fails, ``put down`` drops the object on the floor.

Differences from LoTA-Bench:

- A cut is remembered until the task ends, not until the process ends; after a cut, even an invisible slice comes
  before a visible whole object.
- ``put down`` uses the target (for a faucet, its basin), however many skills ago ``find`` reached it. LoTA forgets the
  target after every skill except ``put down`` and ``open``; then its ``put down`` chooses a receptacle.
- ``put down the X`` needs an X in the hand; LoTA puts down whatever is held.
- ``open`` prefers a closed target, then the closed container that hides the target, then other closed instances. So
  a repeated ``open`` reaches the next drawer. ``close`` prefers open instances, ``turn on`` those that are off,
  ``turn off`` those that are on.
- ``pick up`` prefers the target, then objects in or on it.
- ``find`` prefers an object heated, cooled or cleaned in this task. Any other object that was put down in this task
  comes last, so that ``find`` reaches the second of two targets. Among receptacles, ``find`` prefers
  the one that received the last object in this task, so that two objects can share a shelf.
- A ``find`` that is repeated at once reaches the next instance, so that every instance can be reached.
- Messages of failures keep LoTA's words and add the reason; ``Cannot move to X`` occurs only with AI2-THOR. A skill
  does not repeat a failed action; with AI2-THOR, `ThorWorld` repeats it from other poses.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial

from envs.alfred import objects
from envs.alfred.knowledge import Knowledge
from envs.alfred.objects import lota_words
from envs.alfred.world import World
from envs.outcome import SUCCESS, Outcome, failed, unknown_skill

FINDABLE = objects.LOTA_PICKUPABLE | objects.types(
    """ArmChair BathtubBasin Bed Cabinet Cart CoffeeMachine CoffeeTable CounterTop Desk DeskLamp DiningTable Drawer
    Dresser Faucet FloorLamp Fridge GarbageCan Microwave Ottoman Safe Shelf SideTable SinkBasin Sofa StoveBurner Toilet
    ToiletPaperHanger"""
)


def find_words(name: str) -> str:
    """Return the skill that finds a type: "Apple" -> "find an apple"."""
    words = lota_words(name)
    return f"find {'an' if words[0] in 'aeiou' else 'a'} {words}"


_VERBS: dict[str, frozenset[str]] = {
    "pick up": objects.LOTA_PICKUPABLE, "put down": objects.LOTA_PICKUPABLE, "open": objects.OPENABLE,
    "close": objects.OPENABLE, "slice": objects.SLICEABLE, "turn on": objects.TOGGLEABLE,
    "turn off": objects.TOGGLEABLE,
}  # fmt: skip
_SKILLS: dict[str, tuple[str, str]] = {  # verb and type of each skill
    "done": ("done", ""),
    **{find_words(name): ("find", name) for name in sorted(FINDABLE)},
    **{f"{verb} the {lota_words(name)}": (verb, name) for verb, names in _VERBS.items() for name in sorted(names)},
}
LOTA_SKILLS = tuple(_SKILLS)


class LotaSkills:
    """Type-level skills. Their memory within a task is the world's ``history``."""

    def execute(self, world: World, skill: str) -> Outcome:
        """Execute a skill; raises SkillError for a text that is none of the 214."""
        verb, kind = _parse(skill)
        if verb == "done":
            return SUCCESS
        instance = self.choose(world, skill)
        if verb != "find":
            world.history = replace(world.history, find_history=())
        return _EFFECTS[verb](world, kind, instance)

    def admissible(self, world: World, knowledge: Knowledge | None = None) -> tuple[str, ...]:
        """Return all 214 skills, in every state."""
        return LOTA_SKILLS

    def choose(self, world: World, skill: str) -> str | None:
        """Return the id of the instance on which a skill would act (for ``put down`` the receptacle), or None."""
        verb, kind = _parse(skill)
        if verb not in _RANKS:
            return _put_target(world) if verb == "put down" else None
        ids = world.of_type(kind) if verb == "slice" else (*world.of_type(kind), *world.of_type(f"{kind}Sliced"))
        candidates = [name for name in ids if world.holding is None or world.place_of(name) != world.holding]
        if verb == "find":
            candidates = _unvisited(world, candidates)
        rank = _RANKS[verb]
        return min(candidates, key=lambda thing_id: (*rank(world, thing_id), world.distance(thing_id)), default=None)


def _parse(skill: str) -> tuple[str, str]:
    if skill not in _SKILLS:
        raise unknown_skill(skill, LOTA_SKILLS)
    return _SKILLS[skill]


def _unvisited(world: World, candidates: list[str]) -> list[str]:
    """Return the candidates that are not in ``find_history``; if all are in it, only the one that was tried first."""
    history = world.history.find_history
    unvisited = [thing_id for thing_id in candidates if thing_id not in history]
    return unvisited or [thing_id for thing_id in history if thing_id in candidates][:1]


# ranks of instances: a skill acts on the one with the smallest tuple, among equals on the nearest


def _search_rank(world: World, thing_id: str) -> tuple[bool, ...]:
    thing, history = world[thing_id], world.history
    treated = thing_id in world.heated or thing_id in world.cooled or thing_id in world.cleaned
    return (
        not treated,
        thing_id in history.put_objects and not treated,
        world.hidden_in(thing_id) is not None,
        thing.type == "StoveBurner" and bool(thing.contents),
        thing_id != _last_receptacle(world, thing.type),
        not (history.has_cut and thing.type in objects.SLICED),
        not world.visible(thing_id),
    )


def _last_receptacle(world: World, kind: str) -> str | None:
    """Return the receptacle of this type that an object was last put into."""
    existing = (name for name in reversed(world.history.put_receptacles) if name in world.things)  # some may be broken
    return next((name for name in existing if world[name].type == kind), None)


def _pick_rank(world: World, thing_id: str) -> tuple[bool, ...]:
    target = _put_target(world)
    elsewhere = target is None or world[thing_id].parent != target
    return thing_id != world.history.target, elsewhere, *_search_rank(world, thing_id)


def _open_rank(world: World, thing_id: str) -> tuple[bool, ...]:
    target = world.history.target
    hides = target in world.things and thing_id in (outer.id for outer in world.holders(target))
    return world[thing_id].is_open, thing_id != target, not hides, not world.visible(thing_id)


def _close_rank(world: World, thing_id: str) -> tuple[bool, ...]:
    return not world[thing_id].is_open, thing_id != world.history.target, not world.visible(thing_id)


def _switch_rank(world: World, thing_id: str, on: bool) -> tuple[bool, ...]:
    target = world.history.target
    is_basin_elsewhere = target is None or world.geometry.basin_of.get(thing_id) != target
    return world[thing_id].is_on == on, thing_id != target, is_basin_elsewhere


_RANKS: dict[str, Callable[[World, str], tuple[bool, ...]]] = {
    "find": _search_rank, "pick up": _pick_rank, "slice": _pick_rank, "open": _open_rank, "close": _close_rank,
    "turn on": partial(_switch_rank, on=True), "turn off": partial(_switch_rank, on=False),
}  # fmt: skip


def _put_target(world: World) -> str | None:
    """Return the target (for a faucet its basin), or None if it no longer exists or is carried."""
    target = world.history.target
    if target not in world.things or world.place_of(target) == world.holding:
        return None
    return world.geometry.basin_of.get(target, target)


# effects


def _find(world: World, kind: str, instance: str | None) -> Outcome:
    if instance is None:
        in_hand = world.holding is not None and _is_kind(world, world.holding, kind)
        return failed(f"Cannot find {kind}" + (f" because {_holding(world)}" if in_hand else ""))
    outcome = world.goto(instance)
    history = world.history.find_history
    repeats = bool(history) and instance not in history and _is_kind(world, history[-1], kind)
    target = instance if outcome.ok else world.history.target
    world.history = replace(world.history, target=target, find_history=(*history, instance) if repeats else (instance,))
    return outcome if outcome.ok else failed(f"Cannot move to {kind}: {outcome.message}")


def _pick(world: World, kind: str, instance: str | None) -> Outcome:
    if world.holding is not None:
        return failed(_holding(world))
    if instance is None:
        return failed(f"Cannot find {kind} to pick up")
    if not world.visible(instance):
        inside = world.hidden_in(instance) or world[instance].parent
        reason = f"it is in {world[inside].type}" if inside else "it is far away"
        return failed(f"{kind} is not visible because {reason}")
    outcome = world.pick(instance)
    world.history = replace(world.history, put_objects=world.history.put_objects - {instance})
    return outcome


def _put(world: World, kind: str, instance: str | None) -> Outcome:
    holding = world.holding
    if holding is None:
        return failed("Robot is not holding any object")
    if not _is_kind(world, holding, kind):
        return failed(_holding(world))
    if instance is None:
        return world.drop()
    outcome = world.put(holding, instance)
    if not outcome.ok:
        dropped = world.drop()
        result = f"so {kind} fell on the floor" if dropped.ok else f"and {kind} is still held: {dropped.message}"
        return failed(f"put down failed because {outcome.message}, {result}")
    put_objects, put_receptacles = world.history.put_objects | {holding}, (*world.history.put_receptacles, instance)
    world.history = replace(world.history, put_objects=put_objects, put_receptacles=put_receptacles)
    return outcome


def _act(verb: str, world: World, kind: str, instance: str | None) -> Outcome:
    """Apply the primitive of a verb, such as ``world.open``, to an instance, which must be near."""
    if instance is None:
        return failed(f"Cannot find {kind} to {verb}")
    if not world.near(instance):
        return failed(f"{verb.capitalize()} action failed: {kind} is too far away")
    outcome: Outcome = getattr(world, verb.replace(" ", "_"))(instance)
    if outcome.ok and verb == "slice":
        world.history = replace(world.history, has_cut=True)
    return outcome if outcome.ok else failed(f"{verb.capitalize()} action failed: {outcome.message}")


def _is_kind(world: World, thing_id: str, kind: str) -> bool:
    """Return whether a thing is of a type, or a slice of it."""
    return world[thing_id].type in (kind, f"{kind}Sliced")


def _holding(world: World) -> str:
    return f"Robot is currently holding {world[world.holding].type}"


_EFFECTS: dict[str, Callable[[World, str, str | None], Outcome]] = {
    "find": _find,
    "pick up": _pick,
    "put down": _put,
    **{verb: partial(_act, verb) for verb in ("open", "close", "slice", "turn on", "turn off")},
}

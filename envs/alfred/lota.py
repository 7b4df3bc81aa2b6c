"""LoTA-Bench's 214 type-level skills for ALFRED (LLMTaskPlanning at 97c46cc), instance choice and messages.

A skill names a type, the skill set picks the instance. As in LoTA-Bench: of all instances the one that is not behind a
closed door, then not an occupied stove burner, then visible, then nearest; slices count as their whole (``the apple``)
and are preferred once something was cut; ``find`` teleports, also to what is inside a closed receptacle; a failed
``put down`` drops the object on the floor; without anything found to put it on, ``put down`` simply drops it.

Where this differs from LoTA-Bench, and why:

- Cutting is remembered for the task, not for the rest of the process, and then a slice out of sight goes before a whole
  one in sight.
- ``put down`` aims at the very instance that was last found, until the next ``find``; LoTA forgets it after every skill
  but ``put down`` and ``open``, and picks an instance anew. A faucet stands for its basin. One instance is tried.
- ``put down the X`` needs an X in the hand; LoTA puts down whatever is there.
- ``open`` prefers the closed instance that was found or that hides what was found, then other closed ones, so that
  saying it again reaches the next drawer; ``close`` prefers what is open, ``turn on`` what is off, and so on.
- ``pick up`` prefers what was last found, then what lies in it.
- ``find`` for an object heated, cooled or cleaned in this task prefers that object; one put down in this task and not
  treated since comes last, so that the second of two can be found; ``find`` for a receptacle something was put into in
  this task prefers it, so that two objects can share a shelf.
- The same ``find`` said again without another skill in between goes on to the next instance: every one can be reached.
- Failures keep LoTA's words and add the reason; nothing is retried at other poses, and ``Cannot move to X`` cannot
  happen, but in a simulator.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from envs.alfred import objects
from envs.alfred.knowledge import Knowledge
from envs.alfred.objects import spoken
from envs.alfred.world import World
from envs.outcome import DONE, Outcome, failed, unknown_skill

FINDABLE = objects.LOTA_PICKUPABLE | objects.types(
    """ArmChair BathtubBasin Bed Cabinet Cart CoffeeMachine CoffeeTable CounterTop Desk DeskLamp DiningTable Drawer
    Dresser Faucet FloorLamp Fridge GarbageCan Microwave Ottoman Safe Shelf SideTable SinkBasin Sofa StoveBurner Toilet
    ToiletPaperHanger"""
)


@dataclass(frozen=True, slots=True)
class _Skill:
    verb: str
    type: str


def find_words(name: str) -> str:
    """The words that find a type: "Apple" -> "find an apple"."""
    words = spoken(name)
    return f"find {'an' if words[0] in 'aeiou' else 'a'} {words}"


def _catalogue() -> dict[str, _Skill]:
    """All skills by their words, in a fixed order."""
    verbs: dict[str, frozenset[str]] = {
        "pick up": objects.LOTA_PICKUPABLE,
        "put down": objects.LOTA_PICKUPABLE,
        "open": objects.OPENABLE,
        "close": objects.OPENABLE,
        "slice": objects.SLICEABLE,
        "turn on": objects.TOGGLEABLE,
        "turn off": objects.TOGGLEABLE,
    }
    skills = {"done": _Skill("done", "")}
    skills |= {find_words(name): _Skill("find", name) for name in sorted(FINDABLE)}
    return skills | {
        f"{verb} the {spoken(name)}": _Skill(verb, name) for verb, names in verbs.items() for name in sorted(names)
    }


_SKILLS = _catalogue()
LOTA_SKILLS = tuple(_SKILLS)


class LotaSkills:
    """Type-level skills; the world's ``focus`` holds what they remember within a task."""

    def execute(self, world: World, skill: str) -> Outcome:
        """Do it; raises SkillError for a skill that is not one of the 214."""
        parsed = _parse(skill)
        if parsed.verb == "done":
            return DONE
        chosen = self.choose(world, skill)
        if parsed.verb != "find":
            world.focus = replace(world.focus, tried=())
        return _DO[parsed.verb](world, parsed.type, chosen)

    def admissible(self, world: World, knowledge: Knowledge | None = None) -> tuple[str, ...]:
        """Always all 214."""
        return LOTA_SKILLS

    def choose(self, world: World, skill: str) -> str | None:
        """The instance a skill would act on now (``put down``: the receptacle); None where there is none."""
        parsed = _parse(skill)
        if parsed.verb == "put down":
            return _put_target(world)
        if parsed.verb not in _RANKS:
            return None
        candidates = _instances(world, parsed.type, whole_only=parsed.verb == "slice")
        if parsed.verb == "find":
            candidates = _untried(world, candidates)
        rank = _RANKS[parsed.verb]
        return min(candidates, key=lambda one: (*rank(world, one), world.distance(one)), default=None)


def _parse(skill: str) -> _Skill:
    if skill not in _SKILLS:
        raise unknown_skill(skill, LOTA_SKILLS)
    return _SKILLS[skill]


def _instances(world: World, kind: str, whole_only: bool = False) -> list[str]:
    """All instances of a type and its slices, but what is in the hand."""
    ids = world.of_type(kind) if whole_only else (*world.of_type(kind), *world.of_type(f"{kind}Sliced"))
    return [one for one in ids if world.holding is None or world.place_of(one) != world.holding]


def _untried(world: World, candidates: list[str]) -> list[str]:
    """What the same `find` has not reached yet; when all were, it starts again with the first."""
    tried = world.focus.tried
    return [one for one in candidates if one not in tried] or [one for one in tried if one in candidates][:1]


# instance choice: the smallest tuple wins, distance decides ties


def _search_rank(world: World, one: str) -> tuple[bool, ...]:
    thing, focus = world[one], world.focus
    treated = one in world.heated or one in world.cooled or one in world.cleaned
    return (
        not treated,
        one in focus.placed and not treated,
        world.hidden_in(one) is not None,
        thing.type == "StoveBurner" and bool(thing.contents),
        one != _used(world, thing.type),
        not (focus.cut and thing.type in objects.SLICED),
        not world.visible(one),
    )


def _used(world: World, kind: str) -> str | None:
    """The receptacle of this type that something was last put into."""
    there = (one for one in reversed(world.focus.used) if one in world.things)  # what breaks is gone
    return next((one for one in there if world[one].type == kind), None)


def _pick_rank(world: World, one: str) -> tuple[bool, ...]:
    target = _put_target(world)
    return one != world.focus.target, target is None or world[one].parent != target, *_search_rank(world, one)


def _open_rank(world: World, one: str) -> tuple[bool, ...]:
    found = world.focus.target
    hides = found in world.things and one in (outer.id for outer in world.around(found))
    return world[one].is_open, one != found, not hides, not world.visible(one)


def _close_rank(world: World, one: str) -> tuple[bool, ...]:
    return not world[one].is_open, one != world.focus.target, not world.visible(one)


def _on_rank(world: World, one: str) -> tuple[bool, ...]:
    return world[one].is_on, *_switch_rank(world, one)


def _off_rank(world: World, one: str) -> tuple[bool, ...]:
    return not world[one].is_on, *_switch_rank(world, one)


def _switch_rank(world: World, one: str) -> tuple[bool, ...]:
    found = world.focus.target
    return one != found, found is None or world.ground.basin_of.get(one) != found


_RANKS: dict[str, Callable[[World, str], tuple[bool, ...]]] = {
    "find": _search_rank,
    "pick up": _pick_rank,
    "slice": _pick_rank,
    "open": _open_rank,
    "close": _close_rank,
    "turn on": _on_rank,
    "turn off": _off_rank,
}


def _put_target(world: World) -> str | None:
    """What was last found, if it still exists and is not in the hand; a faucet stands for its basin."""
    found = world.focus.target
    if found not in world.things or world.place_of(found) == world.holding:
        return None
    return world.ground.basin_of.get(found, found)


# what the skills do


def _find(world: World, kind: str, chosen: str | None) -> Outcome:
    if chosen is None:
        held = world.holding is not None and objects.whole(world[world.holding].type) == kind
        return failed(f"Cannot find {kind}" + (f" because {_holding(world)}" if held else ""))
    outcome = world.goto(chosen)
    tried = world.focus.tried
    again = bool(tried) and chosen not in tried and objects.whole(world[tried[-1]].type) == kind
    found = chosen if outcome.ok else world.focus.target
    world.focus = replace(world.focus, target=found, tried=(*tried, chosen) if again else (chosen,))
    return outcome if outcome.ok else failed(f"Cannot move to {kind}: {outcome.message}")


def _pick(world: World, kind: str, chosen: str | None) -> Outcome:
    if world.holding is not None:
        return failed(_holding(world))
    if chosen is None:
        return failed(f"Cannot find {kind} to pick up")
    if not world.visible(chosen):
        inside = world.hidden_in(chosen) or world[chosen].parent
        why = f"it is in {world[inside].type}" if inside else "it is far away"
        return failed(f"{kind} is not visible because {why}")
    outcome = world.pick(chosen)
    world.focus = replace(world.focus, placed=world.focus.placed - {chosen})
    return outcome


def _put(world: World, kind: str, chosen: str | None) -> Outcome:
    held = world.holding
    if held is None:
        return failed("Robot is not holding any object")
    if objects.whole(world[held].type) != kind:
        return failed(_holding(world))
    if chosen is None:
        return world.drop()
    outcome = world.put(held, chosen)
    if not outcome.ok:
        dropped = world.drop()
        then = f"so {kind} fell on the floor" if dropped.ok else f"and {kind} is still held: {dropped.message}"
        return failed(f"put down failed because {outcome.message}, {then}")
    focus = world.focus
    world.focus = replace(focus, placed=focus.placed | {held}, used=(*focus.used, chosen))
    return outcome


def _act(verb: str, primitive: Callable[[World, str], Outcome]) -> Callable[[World, str, str | None], Outcome]:
    """A skill that is one primitive on something within reach; which one is the world's own business."""

    def act(world: World, kind: str, chosen: str | None) -> Outcome:
        if chosen is None:
            return failed(f"Cannot find {kind} to {verb}")
        outcome = primitive(world, chosen) if world.near(chosen) else failed(f"{kind} is too far away")
        return outcome if outcome.ok else failed(f"{verb.capitalize()} action failed: {outcome.message}")

    return act


def _cut(world: World, one: str) -> Outcome:
    outcome = world.slice(one)
    if outcome.ok:
        world.focus = replace(world.focus, cut=True)
    return outcome


def _holding(world: World) -> str:
    return f"Robot is currently holding {world[world.holding].type}"


_DO: dict[str, Callable[[World, str, str | None], Outcome]] = {
    "find": _find,
    "pick up": _pick,
    "put down": _put,
    "open": _act("open", lambda world, one: world.open(one)),
    "close": _act("close", lambda world, one: world.close(one)),
    "slice": _act("slice", _cut),
    "turn on": _act("turn on", lambda world, one: world.turn_on(one)),
    "turn off": _act("turn off", lambda world, one: world.turn_off(one)),
}

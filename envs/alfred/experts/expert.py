"""Scripted expert that demonstrates tasks with type-level ("find a mug") or instance-level ("go to shelf 2") skills."""

from __future__ import annotations

from collections.abc import Iterable

from envs.alfred.experts.strategy import ExpertStep, WorldView, next_step
from envs.alfred.knowledge import Knowledge
from envs.alfred.lota import FINDABLE, LotaSkills, find_words
from envs.alfred.objects import lota_words, name_of, whole_type
from envs.alfred.scene import Task
from envs.alfred.state import Thing
from envs.alfred.world import World
from envs.setting import OBSERVABILITIES, Observability
from keep_agent.errors import ConfigError, check_choice

_LOTA = LotaSkills()
_APPLIANCES = frozenset({"Fridge", "Microwave", "SinkBasin"})


class _LotaView(WorldView):
    """View of the whole world. `best` prefers what the last ``find`` reached, else what ``find`` will reach next.

    A type-level skill chooses the instance itself, so the expert repeats ``find`` until it reaches a suitable one.
    """

    def best(self, things: Iterable[Thing]) -> Thing | None:
        by_id = {thing.id: thing for thing in things if whole_type(thing.type) in FINDABLE}
        candidates = [thing_id for thing_id in by_id if self.is_reached(thing_id)]
        if not candidates:
            return self._reached_first(by_id) if by_id else None
        if by_id[candidates[0]].pickupable:
            instance = _LOTA.choose(self.world, _skill(self, "pick up", candidates[0]))
            candidates = [instance] if instance in candidates else candidates
        return by_id[candidates[0]]

    def is_reached(self, thing_id: str) -> bool:
        """Return whether the last ``find`` reached the thing, or the appliance that holds it."""
        target = self.last_found()
        around = (outer.id for outer in self.world.holders(thing_id) if outer.type in _APPLIANCES)
        return target is not None and (target == thing_id or target in around)

    def last_found(self) -> str | None:
        """Return the id of the thing that the last ``find`` reached (for a faucet its basin), or None."""
        target = self.world.history.target
        return self.world.geometry.basin_of.get(target, target) if target in self.world.things else None

    def _reached_first(self, by_id: dict[str, Thing]) -> Thing:
        """Return the thing in ``by_id`` that repeated ``find`` skills reach first; if they reach none, the first."""
        first = next(iter(by_id.values()))
        skill = find_words(whole_type(first.type))
        world = self.world
        for attempt in range(len(world.things)):
            instance = _LOTA.choose(world, skill)
            if instance in by_id:
                return by_id[instance]
            world = world.copy() if attempt == 0 else world
            if instance is None or not _LOTA.execute(world, skill).ok:
                break
        return first

    def put_down_places(self, in_hand: Thing) -> list[Thing]:
        return [place for place in super().put_down_places(in_hand) if place.type in FINDABLE]

    @property
    def current_place(self) -> Thing | None:
        """Always None, so that the surface for putting things aside does not depend on where the agent is."""
        return None


def lota_skill(view: WorldView, task: Task) -> str:
    """Return the next type-level skill for a task, chosen with knowledge of the whole world."""
    lota_view = _LotaView(view.world)
    step = next_step(lota_view, task)
    match step.verb:
        case "done":
            return "done"
        case "go" | "look into":
            return find_words(whole_type(lota_view.world[step.thing].type))
        case "put":
            return _put(lota_view, step)
        case "take" | "slice":
            return _act_on(lota_view, step.thing, "slice" if step.verb == "slice" else "pick up")
    return _operate(lota_view, step.thing, step.verb, step.content)


def _skill(view: WorldView, verb: str, thing_id: str) -> str:
    """Return the skill that applies a verb to a thing's type."""
    return f"{verb} the {lota_words(whole_type(view.world[thing_id].type))}"


def _act_on(view: _LotaView, thing_id: str, verb: str) -> str:
    """Return the skill that acts on an object, or the skill needed first: one that finds it or opens its container."""
    if not view.is_reached(thing_id):
        return find_words(whole_type(view.world[thing_id].type))
    hiding = view.world.hidden_in(thing_id)
    if hiding is not None:
        return _operate(view, hiding, "open")
    skill = _skill(view, verb, thing_id)
    return skill if _LOTA.choose(view.world, skill) == thing_id else find_words(whole_type(view.world[thing_id].type))


def _put(view: _LotaView, step: ExpertStep) -> str:
    if view.last_found() != step.place:
        return find_words(whole_type(view.world[step.place].type))
    container = view.world.hidden_in(step.place) or (step.place if view.world[step.place].closed else None)
    return _operate(view, container, "open") if container else _skill(view, "put down", step.thing)


def _operate(view: _LotaView, thing_id: str, verb: str, content: str = "") -> str:
    """Return the skill that operates a thing or first finds it; an agent elsewhere finds ``content``, if given."""
    world = view.world
    if verb == "open" and world[thing_id].is_on:
        verb = "turn off"
    at_hand = world.at is not None and world.at in (world.place_of(thing_id), world.geometry.basin_of.get(thing_id))
    skill = _skill(view, verb, thing_id)
    if at_hand and _LOTA.choose(world, skill) == thing_id:
        return skill
    return find_words(whole_type(view.world[content if content and not at_hand else thing_id].type))


def grounded_skill(view: WorldView, task: Task) -> str:
    """Return the next instance-level skill for a task: the skill of the next step, or one that must precede it."""
    step = next_step(view, task)
    if step.verb == "done":
        return "done"
    if step.verb == "go":
        return f"go to {name_of(view.world.place_of(step.thing))}"
    target = step.place or step.thing
    hiding = view.world.hidden_in(target)
    first = _walk(view, target) or (_open(view, hiding) if hiding else None)
    match step.verb:
        case "look into":
            return first or _open(view, target) or f"go to {name_of(target)}"
        case "put":
            return first or _open(view, target) or f"put {name_of(step.thing)} in {name_of(target)}"
        case "take":
            return first or f"pick up {name_of(target)}"
    return first or f"{step.verb} {name_of(target)}"


def _walk(view: WorldView, thing_id: str) -> str | None:
    """Return the skill that goes to a thing (for a faucet to its basin), or None if the agent is there."""
    world = view.world
    place = world.geometry.basin_of.get(thing_id) or world.place_of(thing_id)
    return None if world.at in (place, thing_id) else f"go to {name_of(place)}"


def _open(view: WorldView, thing_id: str) -> str | None:
    thing = view.world[thing_id]
    if not thing.closed:
        return None
    return f"{'turn off' if thing.is_on else 'open'} {name_of(thing_id)}"


_SKILL_SETS = {"lota": lota_skill, "grounded": grounded_skill}


class Expert:
    """Scripted expert. It sees the whole state, unless it uses "grounded" skills under partial observability."""

    def __init__(self, skills: str = "lota", observability: Observability = "full") -> None:
        """Validate the arguments. Raises ConfigError for an unknown skill set or observability."""
        check_choice("skills", skills, _SKILL_SETS)
        check_choice("observability", observability, OBSERVABILITIES)
        self.skills, self.observability = skills, observability

    def act(self, world: World, task: Task, knowledge: Knowledge | None = None) -> str:
        """Return the next skill. Raises ConfigError under partial observability without ``knowledge``."""
        if self.observability == "partial" and knowledge is None:
            raise ConfigError("under partial observability the expert needs the agent's knowledge; pass knowledge=")
        view = WorldView(world, knowledge if self.observability == "partial" else None)
        return _SKILL_SETS[self.skills](view, task)

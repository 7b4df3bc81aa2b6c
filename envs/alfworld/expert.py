"""Scripted expert of ALFWorld: the plan of the game's engine, which knows the whole state, translated to skills."""

from __future__ import annotations

import re
from collections.abc import Sequence

from envs.alfworld.knowledge import Knowledge
from envs.alfworld.scene import Task
from envs.alfworld.translation import TREATMENTS, skill_of, treatment_at
from envs.alfworld.world import THING, GameWorld, to_id, to_words


class Expert:
    """Stateless expert that replans at every step."""

    def __init__(self, skills: str) -> None:
        self.skills = skills

    def act(self, world: GameWorld, task: Task, knowledge: Knowledge | None = None) -> str:
        """Return the plan's next skill; "done" if the goal holds or there is no plan."""
        plan = [] if world.won else world.engine.plan()
        if not plan:
            return "done"
        return plan[0] if self.skills == "commands" else _precondition(world, _first_skill(world, plan))


def _precondition(world: GameWorld, skill: str) -> str:
    """Return ``skill``, or a skill that must precede it: going from a lamp to its place, or turning something off."""
    lamp = world.lamp
    if lamp is not None and not skill.startswith("go to ") and not skill.endswith(to_words(lamp)):
        return f"go to {to_words(world.state.places[lamp])}"
    for verb in ("open", "turn on"):
        thing = skill.removeprefix(f"{verb} ")
        if thing != skill and to_id(thing) in world.active:
            return f"turn off {thing}"
    return skill


def _first_skill(world: GameWorld, plan: Sequence[str]) -> str:
    """Translate a plan's first command. To heat, cool or clean an object, first put the object into the appliance."""
    verb, *things = _parts(plan[0])
    if verb in {treatment.verb for treatment in TREATMENTS}:
        thing, place = things
        closed = world.state.doors.get(to_id(place)) == "closed"
        return f"open {place}" if closed else f"put {thing} in {place}"
    return _treatment_skill(world, plan) or skill_of(plan[0]) or plan[0]


def _treatment_skill(world: GameWorld, plan: Sequence[str]) -> str | None:
    """Return the next skill to treat an object inside an appliance, if the plan takes it out to treat it; else None."""
    opens = plan[0].startswith("open ")
    steps = [_parts(command) for command in plan[opens : opens + 2]]
    if len(steps) < 2 or steps[0][0] != "take":
        return None
    _, thing, place = steps[0]
    treatment = treatment_at(to_id(place))
    if treatment is None or steps[1] != [treatment.verb, thing, place]:
        return None
    if to_id(thing) not in treatment.treatable_things(world, to_id(place)):
        return None  # the text has not mentioned the object yet
    if opens == treatment.needs_closed_door:
        return treatment.start_skill(to_id(place))
    return f"close {place}" if treatment.needs_closed_door else None


def _parts(command: str) -> list[str]:
    """Return the verb of a command and the names of its objects and receptacles."""
    return [command.split(" ", 1)[0], *re.findall(THING, command)]

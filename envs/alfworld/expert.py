"""The engine's own planner, in the words of either skill set: it knows everything, whatever the agent knows."""

from __future__ import annotations

import re
from collections.abc import Sequence

from envs.alfworld.knowledge import Knowledge
from envs.alfworld.scene import Task
from envs.alfworld.text_state import THING, entity, name
from envs.alfworld.wordings import TREATMENTS, skill_of, treatment_at
from envs.alfworld.world import World


class Expert:
    """Asks for a new plan at every step and keeps nothing between calls."""

    def __init__(self, skills: str) -> None:
        self.skills = skills

    def act(self, world: World, task: Task, knowledge: Knowledge | None = None) -> str:
        """The plan's next skill; "done" when the goal is reached or there is no plan."""
        plan = [] if world.won else world.engine.plan()
        if not plan:
            return "done"
        return plan[0] if self.skills == "commands" else _ready(world, _reworded(world, plan))


def _ready(world: World, skill: str) -> str:
    """The skill, or what comes first: to turn off what must not be on for it, to leave a lamp for where it stands."""
    lamp = world.facing
    if lamp is not None and not skill.startswith("go to ") and not skill.endswith(name(lamp)):
        return f"go to {name(world.told.places[lamp])}"
    for verb in ("open", "turn on"):
        thing = skill.removeprefix(f"{verb} ")
        if thing != skill and entity(thing) in world.running:
            return f"turn off {thing}"
    return skill


def _reworded(world: World, plan: Sequence[str]) -> str:
    """The skill that a plan begins with. What would be treated in the hand is first put into the appliance."""
    verb, *things = _parts(plan[0])
    if verb in {one.verb for one in TREATMENTS}:
        thing, place = things
        shut = world.told.doors.get(entity(place)) == "closed"
        return f"open {place}" if shut else f"put {thing} in {place}"
    return _set_off(world, plan) or skill_of(plan[0]) or plan[0]


def _set_off(world: World, plan: Sequence[str]) -> str | None:
    """The skill that treats what already is in the appliance, where the plan is to take it out and treat it there."""
    opens = plan[0].startswith("open ")
    steps = [_parts(command) for command in plan[opens : opens + 2]]
    if len(steps) < 2 or steps[0][0] != "take":
        return None
    _, thing, place = steps[0]
    treatment = treatment_at(entity(place))
    if treatment is None or steps[1] != [treatment.verb, thing, place]:
        return None
    if entity(thing) not in treatment.works_on(world, entity(place)):
        return None  # the text has not told of it yet
    if opens == treatment.shut:
        return treatment.skill(entity(place))
    return f"close {place}" if treatment.shut else None


def _parts(command: str) -> list[str]:
    """Its verb, and the names of the things in it."""
    return [command.split(" ", 1)[0], *re.findall(THING, command)]

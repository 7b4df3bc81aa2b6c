"""Scripted expert: an oracle planner that demonstrates every task in either skill set."""

from __future__ import annotations

from envs.alfred.experts.lota import lota_skill
from envs.alfred.experts.strategy import View, next_step
from envs.alfred.knowledge import Knowledge
from envs.alfred.objects import say
from envs.alfred.scene import Task
from envs.alfred.world import World
from envs.setting import OBSERVABILITIES, Observability
from keep_agent.errors import ConfigError, check_choice


def grounded_skill(view: View, task: Task) -> str:
    """Return the next grounded skill for a task: the one that performs the next step, or that must precede it."""
    step = next_step(view, task)
    if step.act == "done":
        return "done"
    if step.act == "go":
        return f"go to {say(view.world.place_of(step.thing))}"
    target = step.place or step.thing
    first = _walk(view, target) or _open_up(view, target)
    match step.act:
        case "look into":
            return first or _open(view, target) or f"go to {say(target)}"
        case "put":
            return first or _open(view, target) or f"put {say(step.thing)} in {say(target)}"
        case "take":
            return first or f"pick up {say(target)}"
    return first or f"{step.act} {say(target)}"


def _walk(view: View, thing_id: str) -> str | None:
    """Return the skill that goes to a thing (to the basin of a faucet), or None at its place."""
    world = view.world
    place = world.geometry.basin_of.get(thing_id) or world.place_of(thing_id)
    return None if world.at in (place, thing_id) else f"go to {say(place)}"


def _open_up(view: View, thing_id: str) -> str | None:
    """Return the skill that opens the door in front of a thing, or None without such a door."""
    hiding = view.world.hidden_in(thing_id)
    return _open(view, hiding) if hiding else None


def _open(view: View, thing_id: str) -> str | None:
    thing = view.world[thing_id]
    if not thing.shut:
        return None
    return f"{'turn off' if thing.is_on else 'open'} {say(thing_id)}"


_SKILLS = {"lota": lota_skill, "grounded": grounded_skill}


class Expert:
    """Scripted expert that chooses the next skill from the state, or only from the agent's facts ("partial")."""

    def __init__(self, skills: str = "lota", observability: Observability = "full") -> None:
        """Check the choices. Raises ConfigError for an unknown skill set or observability."""
        check_choice("skills", skills, _SKILLS)
        check_choice("observability", observability, OBSERVABILITIES)
        self.skills, self.observability = skills, observability

    def act(self, world: World, task: Task, knowledge: Knowledge | None = None) -> str:
        """Return the next skill. Raises ConfigError under partial observability without ``knowledge``."""
        if self.observability == "partial" and knowledge is None:
            raise ConfigError("under partial observability the expert needs the agent's knowledge; pass knowledge=")
        view = View(world, knowledge if self.observability == "partial" else None)
        return _SKILLS[self.skills](view, task)

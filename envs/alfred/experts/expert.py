"""Scripted expert: an oracle planner that demonstrates every task in either skill set."""

from __future__ import annotations

from envs.alfred.experts.lota import lota_skill
from envs.alfred.experts.strategy import Step, View, next_step
from envs.alfred.knowledge import Knowledge
from envs.alfred.objects import say
from envs.alfred.scene import Task
from envs.alfred.world import World
from envs.setting import OBSERVABILITIES, Observability
from keep_agent.errors import ConfigError, check_choice


def grounded_skill(view: View, task: Task) -> str:
    """Return the next grounded skill for a task."""
    return render(view, next_step(view, task))


def render(view: View, step: Step) -> str:
    """Return the skill that performs a step, or the one that must come before it."""
    match step.act:
        case "done":
            return "done"
        case "go":
            return f"go to {say(view.world.place_of(step.thing))}"
        case "look into":
            return _look_into(view, step.thing)
        case "put":
            ready = _walk(view, step.place) or _open_up(view, step.place) or _open(view, step.place)
            return ready or f"put {say(step.thing)} in {say(step.place)}"
        case "take":
            return _walk(view, step.thing) or _open_up(view, step.thing) or f"pick up {say(step.thing)}"
    return _walk(view, step.thing) or _open_up(view, step.thing) or f"{step.act} {say(step.thing)}"


def _look_into(view: View, thing_id: str) -> str:
    return _walk(view, thing_id) or _open_up(view, thing_id) or _open(view, thing_id) or f"go to {say(thing_id)}"


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
    """Chooses the next skill from the present state alone.

    With ``observability="partial"`` it uses only the facts in the agent's knowledge, and looks into unseen receptacles.
    """

    def __init__(self, skills: str = "lota", observability: Observability = "full") -> None:
        """Check the choices. Raises ConfigError for an unknown skill set or observability."""
        check_choice("skills", skills, _SKILLS)
        check_choice("observability", observability, OBSERVABILITIES)
        self.skills = skills
        self.observability = observability

    def act(self, world: World, task: Task, knowledge: Knowledge | None = None) -> str:
        """Return the next skill. ``knowledge`` is required (and used) under partial observability only.

        Raises ConfigError if it is missing there.
        """
        if self.observability == "partial" and knowledge is None:
            raise ConfigError("under partial observability the expert needs the agent's knowledge; pass knowledge=")
        view = View(world, knowledge if self.observability == "partial" else None)
        return _SKILLS[self.skills](view, task)

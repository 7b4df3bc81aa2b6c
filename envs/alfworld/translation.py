"""Translation between ALFWorld's commands and this project's instance-level skills.

ALFWorld treats (heats, cools or cleans) the object in hand with one command. In this project's skills, as in ALFRED,
an appliance treats its content when the appliance is started. A microwave is started by turning it on, a fridge by
closing it, a sink basin by turning on its faucet. Such a skill becomes three commands for each object that can be
treated: take the object out, treat it and put it back.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cache

from envs.alfred import objects
from envs.alfworld.world import NO_EFFECT, THING, GameWorld, to_words, type_of
from envs.outcome import SUCCESS, Outcome, failed

LIGHTS = frozenset(map(objects.id_type, objects.LAMPS))  # lamps: receptacles in facts, objects in ALFWorld
FAUCET = "faucet"  # faucet n belongs to basin n; ALFWorld does not mention faucets
_THING = f"({THING})"
_PATTERNS: tuple[tuple[re.Pattern[str], str], ...] = tuple(
    (re.compile(command), skill)
    for command, skill in (
        (f"(go to|open|close) {_THING}", "{0} {1}"),
        (f"take {_THING} from {_THING}", "pick up {0}"),
        (f"(?:move|put) {_THING} (?:to|in|on|in/on|into) {_THING}", "put {0} in {1}"),  # "put": alfworld <= 0.3
        (f"slice {_THING} with {_THING}", "slice {0}"),
        (f"use {_THING}", "turn on {0}"),
    )
)


@dataclass(frozen=True)
class Treatment:
    """Heating, cooling or cleaning: an appliance's effect on its content, and the skill that starts the appliance."""

    verb: str  # in ALFWorld's commands
    appliance: str  # the appliance's type in AI2-THOR
    types: frozenset[str]  # types of objects that can be treated
    switch: str = ""  # type of the switch, which has the appliance's number; "": closing the appliance starts it
    needs_closed_door: bool = False

    def switch_of(self, place: str) -> str:
        """Return the id of the switch; "" if there is none."""
        return f"{self.switch}_{place.rpartition('_')[2]}" if self.switch else ""

    def start_skill(self, place: str) -> str:
        return f"turn on {to_words(self.switch_of(place))}" if self.switch else f"close {to_words(place)}"

    def treatable_things(self, world: GameWorld, place: str) -> list[str]:
        """Return those known objects in an appliance that can be treated and put back."""
        treatable = frozenset(objects.id_type(kind) for kind in self.types if objects.may_hold(self.appliance, kind))
        return [thing for thing in world.state.inside(place) if type_of(thing) in treatable]


TREATMENTS = (
    Treatment("heat", "Microwave", objects.HEATABLE, "microwave", needs_closed_door=True),
    Treatment("cool", "Fridge", objects.COOLABLE),
    Treatment("clean", "SinkBasin", objects.CLEANABLE, FAUCET),
)


def treatment_at(place: str | None) -> Treatment | None:
    """Return the treatment in an appliance; None for any other receptacle."""
    if place is None:
        return None
    return next((treatment for treatment in TREATMENTS if type_of(place) == objects.id_type(treatment.appliance)), None)


def faucets(world: GameWorld) -> list[str]:
    """Return the ids of the faucets, one per sink basin."""
    basins = [place for place in world.state.receptacles if type_of(place) == "sinkbasin"]
    return [f"{FAUCET}_{place.rpartition('_')[2]}" for place in basins]


@cache
def skill_of(command: str) -> str | None:
    """Return the skill for a command; None if no skill corresponds to it."""
    for pattern, skill in _PATTERNS:
        if match := pattern.fullmatch(command):
            return skill.format(*match.groups())
    return None


def single_commands(world: GameWorld) -> dict[str, str]:
    """Map each skill that a single command can do now to this command, if the text has mentioned all its objects."""
    skills = ((skill_of(command), command) for command in world.engine.commands)
    return {skill: command for skill, command in skills if skill is not None and world.state.knows(skill)}


def treat(world: GameWorld, treatment: Treatment, place: str) -> Outcome:
    """Take out, treat and put back each object; the hand must be empty. Stops if an object's commands fail."""
    inside = to_words(place)
    for thing in map(to_words, treatment.treatable_things(world, place)):
        steps = f"pick up {thing}", f"{treatment.verb} {thing} with {inside}", f"put {thing} in {inside}"
        outcomes = [world.do(single_commands(world).get(step, step)) for step in steps]
        if not all(outcome.ok for outcome in outcomes):
            return failed(NO_EFFECT)
    return SUCCESS

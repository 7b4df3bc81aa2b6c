"""ALFWorld's commands in the words of our instance-level skills, one by one; a treatment takes several.

ALFWorld heats, cools and cleans what is in the hand, with one command. ALFRED, and so our skills, do it to what is in
the appliance: when the microwave is turned on, when the fridge is closed, when the faucet over the basin is turned on.
Each of these three is a row of ALFWorld's commands: whatever can be treated is taken out, treated and put back.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cache

from envs.alfred import objects
from envs.alfworld.text_state import THING, kind, name
from envs.alfworld.world import HAPPENS_NOT, World
from envs.outcome import DONE, Outcome, failed

LIGHTS = frozenset(map(objects.snake, objects.LAMPS))  # fixtures to our skills and memory lines, objects here
FAUCET = "faucet"  # each basin has the faucet of its number; ALFWorld mentions none
_T = f"({THING})"
_WORDS: tuple[tuple[re.Pattern[str], str], ...] = tuple(
    (re.compile(command), skill)
    for command, skill in (
        (f"(go to|open|close) {_T}", "{0} {1}"),
        (f"take {_T} from {_T}", "pick up {0}"),
        (f"(?:move|put) {_T} (?:to|in|on|in/on|into) {_T}", "put {0} in {1}"),  # the latter up to alfworld 0.3
        (f"slice {_T} with {_T}", "slice {0}"),
        (f"use {_T}", "turn on {0}"),
    )
)


@dataclass(frozen=True)
class Treatment:
    """What an appliance does to what is in it, and the skill that sets it off."""

    verb: str  # ALFWorld's
    place: str  # type of the appliance, as AI2-THOR calls it
    types: frozenset[str]  # what can be treated so
    switch: str = ""  # type of what is turned on, of the appliance's number; none: closing it does
    shut: bool = False  # must it be closed to run?

    def switch_of(self, place: str) -> str:
        """The id of what is turned on; "" where there is nothing to turn on."""
        return f"{self.switch}_{place.rpartition('_')[2]}" if self.switch else ""

    def skill(self, place: str) -> str:
        return f"turn on {name(self.switch_of(place))}" if self.switch else f"close {name(place)}"

    def works_on(self, world: World, place: str) -> list[str]:
        """What is known to lie in the appliance, can be treated so, and can be put back."""
        fits = frozenset(objects.snake(one) for one in self.types if objects.may_hold(self.place, one))
        return [one for one in world.told.inside(place) if kind(one) in fits]


TREATMENTS = (
    Treatment("heat", "Microwave", objects.HEATABLE, "microwave", shut=True),
    Treatment("cool", "Fridge", objects.COOLABLE),
    Treatment("clean", "SinkBasin", objects.CLEANABLE, FAUCET),
)


def treatment_at(place: str | None) -> Treatment | None:
    """What is done in a receptacle, by its type."""
    return next((one for one in TREATMENTS if place is not None and kind(place) == objects.snake(one.place)), None)


def faucets(world: World) -> list[str]:
    """One for each sink basin."""
    return [f"{FAUCET}_{place.rpartition('_')[2]}" for place in world.told.receptacles if kind(place) == "sinkbasin"]


@cache
def skill_of(command: str) -> str | None:
    """A command in our words; None where we have none for it."""
    for pattern, skill in _WORDS:
        if found := pattern.fullmatch(command):
            return skill.format(*found.groups())
    return None


def offered(world: World) -> dict[str, str]:
    """The skills that are one command now, with that command; only about things that the text has told of."""
    found = ((skill_of(command), command) for command in world.engine.commands)
    return {skill: command for skill, command in found if skill is not None and world.told.knows(skill)}


def treat(world: World, treatment: Treatment, place: str) -> Outcome:
    """Take out, treat and put back what can be; the hand is empty before and after. Stops at what does not work."""
    for one in treatment.works_on(world, place):
        thing, inside = name(one), name(place)
        steps = f"pick up {thing}", f"{treatment.verb} {thing} with {inside}", f"put {thing} in {inside}"
        outcomes = [world.do(offered(world).get(step, step)) for step in steps]
        if not all(outcome.ok for outcome in outcomes):
            return failed(HAPPENS_NOT)
    return DONE

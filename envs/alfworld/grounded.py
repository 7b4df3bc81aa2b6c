"""Instance-level skills in the words that planners of ALFRED know, done with ALFWorld's commands.

Two things are ours alone. A lamp can be gone to: one goes to what it stands on. And what was turned on is on until it
is turned off, the microwave shut meanwhile, though ALFWorld's things know no such state.
"""

from __future__ import annotations

import re

from envs.alfworld.knowledge import Knowledge
from envs.alfworld.text_state import THING, entity, kind, name, numbered
from envs.alfworld.wordings import LIGHTS, Treatment, offered, treat, treatment_at
from envs.alfworld.world import HAPPENS_NOT, World
from envs.outcome import DONE, Outcome, failed, unknown_skill

_VERBS = ("go to", "open", "close", "pick up", "put", "slice", "turn on", "turn off")
_FORM = re.compile(rf"(go to|open|close|pick up|slice|turn on|turn off) ({THING})|put {THING} in {THING}")


class GroundedSkills:
    """ALFWorld gives no reason for what fails; neither does this, but for what is ours alone."""

    def execute(self, world: World, skill: str) -> Outcome:
        """Do it. Raises SkillError for words that are no skill."""
        if skill == "done":
            return DONE
        form = _FORM.fullmatch(skill)
        if form is None:
            raise unknown_skill(skill, self.admissible(world))
        if form[1] == "go to":
            return _go(world, entity(form[2]))
        outcome = _operate(world, skill)
        if outcome is not None:
            return outcome
        command = _single(world).get(skill)
        return failed(HAPPENS_NOT) if command is None else world.do(command)

    def admissible(self, world: World, knowledge: Knowledge | None = None) -> tuple[str, ...]:
        """What can be done now with what the text has told of, by verb and thing."""
        place = _place(world)
        skills = {*_single(world), *(f"go to {name(one)}" for one in _lights(world) if one != world.facing)}
        if world.facing is not None:
            skills.add(f"go to {name(world.told.places[world.facing])}")
        treatment = treatment_at(place)
        if treatment is not None:
            switch = treatment.switch_of(place)
            if switch in world.running:
                skills = skills - {f"open {name(place)}"} | {f"turn off {name(switch)}"}
            elif _why_not(world, treatment, place) is None:
                skills.add(treatment.skill(place))
        return (*sorted(skills, key=_order), "done")


def _order(skill: str) -> tuple[int, list[tuple[str, int]]]:
    verb = next(number for number, words in enumerate(_VERBS) if skill.startswith(f"{words} "))
    return verb, [numbered(entity(words)) for words in re.findall(THING, skill)]


def _lights(world: World) -> list[str]:
    """The lamps that the text has told of."""
    return [one for one in world.told.places if kind(one) in LIGHTS]


def _place(world: World) -> str | None:
    """The receptacle whose content is at hand; none where the agent has gone to a lamp."""
    return world.told.at if world.facing is None else None


def _single(world: World) -> dict[str, str]:
    """Skills that are one command. A lamp is turned on once: to use it again is nothing that ALFWorld tells of."""
    lit = {f"turn on {name(one)}" for one in _lights(world) if "on" in world.told.marks.get(one, ())}
    here = (skill for skill in offered(world).items() if skill[0] not in lit)
    if world.facing is None:
        return dict(here)
    return {skill: said for skill, said in here if skill.startswith("go to ") or skill.endswith(name(world.facing))}


def _go(world: World, thing: str) -> Outcome:
    """Go to a lamp, or away from one: what it stands on is where one is already."""
    place = world.told.places[thing] if thing in _lights(world) else thing
    facing = thing if thing != place else None
    there = world.told.at == place and facing != world.facing
    outcome = DONE if there else world.do(f"go to {name(place)}")
    if outcome.ok:
        world.facing = facing
    return outcome


def _operate(world: World, skill: str) -> Outcome | None:
    """Do what a skill does to the appliance one is at; None if it is about something else."""
    place = _place(world)
    treatment = treatment_at(place)
    if treatment is None:
        return None
    switch = treatment.switch_of(place)
    if skill == treatment.skill(place):
        return _set_off(world, treatment, place)
    if skill == f"turn off {name(switch)}" and switch in world.running:
        world.running.remove(switch)
        return DONE
    if skill == f"open {name(place)}" and place in world.running:
        return failed(f"{name(place)} is on, turn it off first")
    return None


def _why_not(world: World, treatment: Treatment, place: str) -> str | None:
    """Why an appliance would do nothing now, or None if it would."""
    told = world.told
    if treatment.switch_of(place) in world.running:
        return f"{name(treatment.switch_of(place))} is already on"
    if treatment.shut and told.doors.get(place) != "closed":
        return f"{name(place)} is open, close it first"
    if told.doors.get(place) == "closed" and not treatment.shut:
        return f"{name(place)} is already closed"
    if told.holding is not None:
        return f"you are holding {name(told.holding)}"
    return None if treatment.works_on(world, place) else f"there is nothing to {treatment.verb} in {name(place)}"


def _set_off(world: World, treatment: Treatment, place: str) -> Outcome:
    """Run the appliance. Where it would do nothing, a fridge is only closed, and nothing else can be turned on."""
    reason = _why_not(world, treatment, place)
    if reason is not None:
        return failed(reason) if treatment.switch else world.do(f"close {name(place)}")
    if treatment.shut:
        world.do(f"open {name(place)}")
    outcome = treat(world, treatment, place)
    if treatment.shut or not treatment.switch:
        closed = world.do(f"close {name(place)}")
        outcome = outcome if not outcome.ok else closed
    if outcome.ok and treatment.switch:
        world.running.add(treatment.switch_of(place))
    return outcome

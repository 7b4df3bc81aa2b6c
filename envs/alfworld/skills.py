"""Skill sets of ALFWorld: its own commands, and the instance-level skills of `envs.alfred`, executed as commands.

Two features exist only in instance-level skills. A lamp can be a destination: the agent then goes to the receptacle
under the lamp. Microwaves and faucets stay on until they are turned off, and a running microwave cannot be opened.
"""

from __future__ import annotations

import re

from envs.alfworld.knowledge import Knowledge
from envs.alfworld.translation import LIGHTS, Treatment, single_commands, treat, treatment_at
from envs.alfworld.world import NO_EFFECT, THING, GameWorld, sort_key, to_id, to_words, type_of
from envs.outcome import SUCCESS, Outcome, failed, unknown_skill

_REPORT = re.compile(r"look|inventory|help|examine .*")
_COMMAND = re.compile(
    rf"(?:go to|open|close|use) {THING}|take {THING} from {THING}|(?:move|put) {THING} (?:to|in|on|in/on|into) {THING}"
    rf"|(?:heat|cool|clean|slice) {THING} with {THING}"
)
_VERBS = ("go to", "open", "close", "pick up", "put", "slice", "turn on", "turn off")
_FORM = re.compile(rf"(go to|open|close|pick up|slice|turn on|turn off) ({THING})|put {THING} in {THING}")


class Commands:
    """ALFWorld's own commands as skills."""

    def execute(self, world: GameWorld, skill: str) -> Outcome:
        """Send the command. Raises SkillError for a text that is not a command."""
        if skill == "done":
            return SUCCESS
        if not _COMMAND.fullmatch(skill):
            raise unknown_skill(skill, self.admissible(world))
        return world.do(skill)

    def admissible(self, world: GameWorld, knowledge: Knowledge | None = None) -> tuple[str, ...]:
        """Return the commands possible now on objects and receptacles that the text has mentioned."""
        actions = (command for command in world.engine.commands if not _REPORT.fullmatch(command))
        return (*filter(world.state.knows, actions), "done")


class GroundedSkills:
    """Instance-level skills. Only failures that this module detects have a reason; ALFWorld gives no reasons."""

    def execute(self, world: GameWorld, skill: str) -> Outcome:
        """Execute a skill. Raises SkillError for a text that is not a skill."""
        if skill == "done":
            return SUCCESS
        form = _FORM.fullmatch(skill)
        if form is None:
            raise unknown_skill(skill, self.admissible(world))
        if form[1] == "go to":
            return _go(world, to_id(form[2]))
        outcome = _operate(world, skill)
        if outcome is not None:
            return outcome
        command = _single_commands(world).get(skill)
        return failed(NO_EFFECT) if command is None else world.do(command)

    def admissible(self, world: GameWorld, knowledge: Knowledge | None = None) -> tuple[str, ...]:
        """Return the skills possible now on objects and receptacles mentioned by the text, sorted by verb and id."""
        place = _place(world)
        lamps = (lamp for lamp in _lamps(world) if lamp != world.lamp)
        skills = {*_single_commands(world), *(f"go to {to_words(lamp)}" for lamp in lamps)}
        if world.lamp is not None:
            skills.add(f"go to {to_words(world.state.places[world.lamp])}")
        treatment = treatment_at(place)
        if treatment is not None:
            switch = treatment.switch_of(place)
            if switch in world.active:
                skills = skills - {f"open {to_words(place)}"} | {f"turn off {to_words(switch)}"}
            elif _obstacle(world, treatment, place) is None:
                skills.add(treatment.start_skill(place))
        return (*sorted(skills, key=_order), "done")


def _order(skill: str) -> tuple[int, list[tuple[str, int]]]:
    verb = next(number for number, words in enumerate(_VERBS) if skill.startswith(f"{words} "))
    return verb, [sort_key(to_id(words)) for words in re.findall(THING, skill)]


def _lamps(world: GameWorld) -> list[str]:
    """Return the lamps that the text has mentioned."""
    return [thing for thing in world.state.places if type_of(thing) in LIGHTS]


def _place(world: GameWorld) -> str | None:
    """Return the receptacle within reach; None while the agent is at a lamp."""
    return world.state.at if world.lamp is None else None


def _single_commands(world: GameWorld) -> dict[str, str]:
    """Map each skill that one command can do now to this command."""
    # ALFWorld ignores the command to turn on a lit lamp
    lit = {f"turn on {to_words(lamp)}" for lamp in _lamps(world) if "on" in world.state.marks.get(lamp, ())}
    commands = {skill: command for skill, command in single_commands(world).items() if skill not in lit}
    if world.lamp is None:
        return commands
    lamp = to_words(world.lamp)  # at a lamp, the agent can only go away or use the lamp
    return {skill: text for skill, text in commands.items() if skill.startswith("go to ") or skill.endswith(lamp)}


def _go(world: GameWorld, thing: str) -> Outcome:
    """Go to a receptacle or lamp. No command is sent for going from a receptacle to a lamp on it, or back."""
    place = world.state.places[thing] if thing in _lamps(world) else thing
    lamp = thing if thing != place else None
    is_there = world.state.at == place and lamp != world.lamp
    outcome = SUCCESS if is_there else world.do(f"go to {to_words(place)}")
    if outcome.ok:
        world.lamp = lamp
    return outcome


def _operate(world: GameWorld, skill: str) -> Outcome | None:
    """Start or stop the appliance within reach, or refuse to open it while it runs. Returns None for other skills."""
    place = _place(world)
    treatment = treatment_at(place)
    if treatment is None:
        return None
    switch = treatment.switch_of(place)
    if skill == treatment.start_skill(place):
        return _start(world, treatment, place)
    if skill == f"turn off {to_words(switch)}" and switch in world.active:
        world.active.remove(switch)
        return SUCCESS
    if skill == f"open {to_words(place)}" and place in world.active:
        return failed(f"{to_words(place)} is on, turn it off first")
    return None


def _obstacle(world: GameWorld, treatment: Treatment, place: str) -> str | None:
    """Return why an appliance, started now, would not heat, cool or clean any object; None if it would."""
    state, words = world.state, to_words(place)
    if treatment.switch_of(place) in world.active:
        return f"{to_words(treatment.switch_of(place))} is already on"
    if treatment.needs_closed_door and state.doors.get(place) != "closed":
        return f"{words} is open, close it first"
    if state.doors.get(place) == "closed" and not treatment.needs_closed_door:
        return f"{words} is already closed"
    if state.holding is not None:
        return f"you are holding {to_words(state.holding)}"
    return None if treatment.treatable_things(world, place) else f"there is nothing to {treatment.verb} in {words}"


def _start(world: GameWorld, treatment: Treatment, place: str) -> Outcome:
    """Start an appliance. If `_obstacle` gives a reason, a fridge is only closed, and other appliances fail."""
    reason = _obstacle(world, treatment, place)
    if reason is not None:
        return failed(reason) if treatment.switch else world.do(f"close {to_words(place)}")
    if treatment.needs_closed_door:
        world.do(f"open {to_words(place)}")
    outcome = treat(world, treatment, place)
    if treatment.needs_closed_door or not treatment.switch:
        closing = world.do(f"close {to_words(place)}")
        outcome = outcome if not outcome.ok else closing
    if outcome.ok and treatment.switch:
        world.active.add(treatment.switch_of(place))
    return outcome

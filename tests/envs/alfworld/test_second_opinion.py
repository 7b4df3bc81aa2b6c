"""The same house and task in both engines: ours and ALFWorld's must agree on what works, where things are, and success.

Where they cannot agree is written down here, and in docs/alfworld.md: what is usual in a place (ours lets anything be
put anywhere, ALFWorld does not), and what is turned off again (ALFWorld turns nothing off).
"""

from __future__ import annotations

import json
from random import Random

import pytest

from envs.alfred import objects
from envs.alfred.episodes import load_episodes
from envs.alfred.knowledge import Knowledge as OurKnowledge
from envs.alfred.scene import Episode
from envs.alfred.setting import AlfredSetting
from envs.alfred.world import World as OurWorld
from envs.alfworld.engine import Engines
from envs.alfworld.knowledge import Knowledge
from envs.alfworld.scene import Game
from envs.alfworld.setting import AlfworldSetting
from envs.alfworld.world import World
from envs.setting import succeeded
from eval.dataset.pddl_problem import why_not
from eval.games import game_of

OURS = AlfredSetting("grounded", "partial")
KINDS = (
    "look_at_obj_in_light",
    "pick_and_place_simple",
    "pick_clean_then_place_in_recep",
    "pick_cool_then_place_in_recep",
    "pick_heat_then_place_in_recep",
    "pick_two_obj_and_place",
)


@pytest.fixture(scope="module")
def games(engines: Engines, tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[Episode, Game]]:
    """By type of task, the first embedded house of the split `valid` that ALFWorld can express, in both forms."""
    found = [one for one in load_episodes(None, "valid", limit=120) if not why_not(one)]
    houses = {kind: next(one for one in found if one.tasks[0].type == kind) for kind in KINDS}
    engine, folder = engines.take(), tmp_path_factory.mktemp("games")
    for kind, house in houses.items():
        (folder / kind).write_text(json.dumps(game_of(house, engine)))
    engines.give_back(engine)
    return {kind: (house, Game(folder / kind)) for kind, house in houses.items()}


class Both:
    """One house in two engines, in which the same is done."""

    def __init__(self, episode: Episode, game: Game, setting: AlfworldSetting) -> None:
        self.task, self.setting = episode.tasks[0], setting
        self.ours, self.theirs = OurWorld(episode.scene), World(game, setting.engines)
        self.known, self.told = OurKnowledge(self.ours, "partial"), Knowledge(self.theirs)
        self.look()

    def look(self) -> None:
        self.known.update()
        self.told.update()

    def do(self, skill: str) -> None:
        """It works in both, or in none, with the same effect."""
        ours, theirs = OURS.space.execute(self.ours, skill), self.setting.space.execute(self.theirs, skill)
        assert ours.ok == theirs.ok, (skill, ours, theirs)
        self.look()
        self.agree(skill)

    def agree(self, skill: str) -> None:
        told, ours = self.theirs.told, self.ours
        carried = {one: place for one, place in told.places.items() if ours[one].pickupable}
        assert carried == {one: ours[one].parent for one in carried}, skill
        assert (told.holding, self.theirs.facing or told.at) == (ours.holding, ours.at), skill
        assert told.doors.items() <= {one: _door(ours, one) for one in told.doors}.items(), skill
        assert self.theirs.won == succeeded(OURS, ours, self.task), skill


def _door(world: OurWorld, one: str) -> str:
    return "open" if world[one].is_open else "closed"


@pytest.fixture(params=KINDS)
def both(request: pytest.FixtureRequest, engines: Engines, games: dict[str, tuple[Episode, Game]]) -> Both:
    setting = AlfworldSetting()
    setting.engines = engines
    return Both(*games[request.param], setting)


def test_what_fits_where_and_what_can_be_treated_is_the_same(engines: Engines) -> None:
    from alfworld.gen import constants

    theirs = {place: frozenset(things) for place, things in constants.VAL_RECEPTACLE_OBJECTS.items()}
    assert theirs == dict(objects.ACCEPTED)
    treated = {verb: frozenset(things) for verb, things in constants.VAL_ACTION_OBJECTS.items()}
    assert treated == {
        "Cleanable": objects.CLEANABLE,
        "Coolable": objects.COOLABLE,
        "Heatable": objects.HEATABLE,
        "Sliceable": objects.SLICEABLE | {"Egg"},
        "Toggleable": objects.LAMPS,
    }


def test_our_experts_way_leads_to_the_goal_in_both(both: Both) -> None:
    """He explores, so that the text has told of what he uses; a lamp, which he knows of, is looked for first."""
    for lamp in ("desklamp_1", "floorlamp_1"):
        if both.task.toggle_target and lamp in both.ours.things:
            look_for(both, lamp)
    expert = OURS.expert()
    skill = ""
    for _ in range(OURS.max_steps):
        skill = expert.act(both.ours, both.task, both.known)
        if skill == "done":
            break
        both.do(skill)
    assert skill == "done" and both.theirs.won


def test_the_engines_way_leads_to_the_goal_in_both(both: Both) -> None:
    expert = both.setting.expert()
    for _ in range(both.setting.max_steps):
        skill = expert.act(both.theirs, both.task)
        if skill == "done":
            break
        both.do(skill)
    assert skill == "done" and succeeded(OURS, both.ours, both.task)


def test_whatever_is_done_they_agree(both: Both) -> None:
    """What ALFWorld's engine lets be done ours does too; what it does not is what we know of."""
    rng = Random(both.task.id)
    for _ in range(30):
        ours = set(OURS.space.admissible(both.ours, both.known))
        theirs = set(both.setting.space.admissible(both.theirs, both.told))
        assert theirs <= ours, both.theirs.commands
        assert [skill for skill in ours - theirs if not explained(both, skill)] == [], both.theirs.commands
        skills = [skill for skill in sorted(theirs) if skill != "done" and not skill.startswith("slice")]
        acts = [skill for skill in skills if not skill.startswith("go to")]
        both.do(rng.choice(acts if acts and rng.random() < 0.7 else skills))


def look_for(both: Both, lamp: str) -> None:
    """Go where the lamp stands in ALFWorld, and back to where one came from, so that its text tells of it."""
    for place in both.theirs.told.receptacles:
        if lamp in both.theirs.told.places:
            return
        both.do(f"go to {place.replace('_', ' ')}")


def explained(both: Both, skill: str) -> bool:
    """What only ours lets be done: going to lamps that were not found and to faucets, switching from a step away, with
    nothing to treat or with a full hand; putting things into objects, and where they do not belong; opening boxes.
    """
    *verb, kind, number = skill.split(" ")
    if verb[0] == "put":
        place, held = both.ours[f"{kind}_{number}"], both.ours[both.ours.holding or ""]
        return place.movable or not objects.may_hold(place.type, held.type)
    if verb[0] in ("open", "close"):
        return kind == "box"
    return (verb[0] in ("go", "turn") and kind in ("faucet", "desklamp", "floorlamp")) or verb == ["turn", "on"]

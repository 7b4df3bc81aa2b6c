"""Small hand-written kitchen as an ALFWorld game, with ids in AI2-THOR's form, and ALFWorld's rules and grammar."""

from __future__ import annotations

import json
from pathlib import Path

from envs.alfworld.spec import FILE_NAME

INSTRUCTION = "put a hot egg in cabinet"
FOOD = "pickupable heatable coolable cleanable"
_PLACES = {  # type: (id, traits)
    "Cabinet": ("Cabinet_bar__minus_00_dot_50_bar__plus_01_dot_80", "(openable {0})"),
    "CounterTop": ("CounterTop_bar__plus_00_dot_10_bar__plus_00_dot_90", ""),
    "Fridge": ("Fridge_bar__plus_01_dot_20_bar__plus_00_dot_00", "(openable {0})"),
    "Microwave": ("Microwave_bar__plus_02_dot_20_bar__plus_00_dot_90", "(openable {0})"),
    "SideTable": ("SideTable_bar__plus_03_dot_00_bar__plus_00_dot_00", ""),
    "SinkBasin": ("Sink_bar__minus_01_dot_00_bar__plus_00_dot_90_bar_SinkBasin", ""),
}
_THINGS = {  # id: (type, place, traits)
    "Apple_bar__plus_01_dot_30_bar__plus_00_dot_50": ("Apple", "Fridge", f"{FOOD} sliceable"),
    "ButterKnife_bar__plus_00_dot_20_bar__plus_00_dot_91": ("ButterKnife", "CounterTop", "pickupable cleanable"),
    "DeskLamp_bar__plus_03_dot_00_bar__plus_00_dot_70": ("DeskLamp", "SideTable", "toggleable"),
    "Egg_bar__plus_00_dot_10_bar__plus_00_dot_92": ("Egg", "CounterTop", FOOD),
    "Mug_bar__minus_00_dot_52_bar__plus_01_dot_85": ("Mug", "Cabinet", FOOD),
    "Mug_bar__plus_03_dot_10_bar__plus_00_dot_60": ("Mug", "SideTable", FOOD),
    "SaltShaker_bar__plus_01_dot_25_bar__plus_00_dot_40": ("SaltShaker", "Fridge", "pickupable"),
    "Window_bar__minus_01_dot_10_bar__plus_01_dot_50": ("Window", "CounterTop", ""),
}  # fmt: skip
_FITS = {
    "Cabinet": "Egg Mug SaltShaker", "CounterTop": "Apple ButterKnife Egg Mug SaltShaker", "Fridge": "Apple Egg Mug",
    "Microwave": "Apple Egg Mug", "SideTable": "Apple ButterKnife Egg Mug SaltShaker",
    "SinkBasin": "Apple ButterKnife Egg Mug",
}  # fmt: skip
_GOAL = """(:goal (exists (?r - receptacle ?o - object)
    (and (isHot ?o) (objectType ?o EggType) (receptacleType ?r CabinetType) (inReceptacle ?o ?r)))))"""


def problem() -> str:
    types = sorted({kind for kind, _, _ in _THINGS.values()} | {"Knife"})
    objects = ["agent1 - agent", "loc_start - location", *(f"{kind}Type - otype" for kind in types)]
    init = ["(= (total-cost) 0)", "(atLocation agent1 loc_start)"]
    for kind, (name, traits) in _PLACES.items():
        objects += [f"{name} - receptacle", f"loc_{kind} - location", f"{kind}Type - rtype"]
        init += [
            f"(receptacleType {name} {kind}Type)", f"(receptacleAtLocation {name} loc_{kind})", traits.format(name),
        ]  # fmt: skip
        init += [f"(canContain {kind}Type {fitting}Type)" for fitting in _FITS[kind].split()]
    for name, (kind, place, traits) in _THINGS.items():
        objects.append(f"{name} - object")
        init += [f"(objectType {name} {kind}Type)", f"(inReceptacle {name} {_PLACES[place][0]})"]
        init += [f"(objectAtLocation {name} loc_{place})", *(f"({trait} {name})" for trait in traits.split())]
    parts = "\n".join(objects), "\n".join(init), _GOAL
    return "(define (problem kitchen) (:domain alfred)\n(:objects\n{}\n)\n(:init\n{}\n)\n{}".format(*parts)


def write_kitchen(root: Path) -> Path:
    """Write the game under ``root`` in ALFWorld's layout. Needs alfworld for its rules and grammar."""
    from alfworld.info import ALFRED_PDDL_PATH, ALFRED_TWL2_PATH

    file = root / "valid_seen" / "pick_heat_then_place_in_recep-Egg-None-Cabinet-1" / "trial_kitchen" / FILE_NAME
    file.parent.mkdir(parents=True)
    game = {
        "pddl_domain": Path(ALFRED_PDDL_PATH).read_text(),
        "grammar": Path(ALFRED_TWL2_PATH).read_text().replace("UNKNOWN GOAL", INSTRUCTION), "pddl_problem": problem(),
        "solvable": True, "walkthrough": None,
    }  # fmt: skip
    file.write_text(json.dumps(game))
    return file

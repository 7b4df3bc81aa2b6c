"""Converter of ALFRED houses to ALFWorld games: ``python -m eval.games --out FOLDER [--split test] [--houses 20]``.

Play the games with `python -m eval.alfworld env.data=FOLDER env.split=test`, and the same houses and tasks in this
package's engine with `python -m eval.alfred env.skills=grounded env.observability=partial`. Houses that ALFWorld cannot
express are skipped. Rules, grammar and goals are those of the installed alfworld.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections import Counter
from collections.abc import Iterator
from math import dist
from pathlib import Path
from typing import Any

from envs.alfred import objects
from envs.alfred.scene import Episode, Item, Scene, Task
from envs.alfred.spec import load_episodes
from envs.alfworld.engine import Engine
from envs.alfworld.spec import FILE_NAME
from eval.common.options import command_parser
from keep_agent.console import make_console
from keep_agent.errors import ConfigError
from keep_agent.guard import guarded
from memory.files.atomic import write_atomic

PLACEHOLDER = "UNKNOWN GOAL"  # text in alfworld's grammar that the instruction replaces
GRAMMAR_CHARACTERS = frozenset("#{}[]|")  # characters with a meaning in the grammar
FURNITURE = objects.RECEPTACLES - objects.MOVABLE_RECEPTACLES
TYPES_BY_PREDICATE = {
    "cleanable": objects.CLEANABLE,
    "heatable": objects.HEATABLE,
    "coolable": objects.COOLABLE,
    "sliceable": objects.SLICEABLE,
    "toggleable": objects.LAMPS,
    "pickupable": objects.PICKUPABLE,
}
NAMED_BY_RULES = ({"SinkBasin", "Microwave", "Fridge"}, {"Knife", "ButterKnife"})  # types that ALFWorld's rules name
_LAST = 999  # ALFWorld numbers objects from the greatest id down; cabinet_3 keeps its number with the id 999 - 3


def unsupported_reason(episode: Episode) -> str:
    """Return the reason why ALFWorld cannot express an episode; "" if it can."""
    kinds = {item.id: item.type for item in episode.scene.items}
    if len(episode.tasks) > 1:
        return "several tasks"
    task = episode.tasks[0]
    if task.sliced:
        return "slices"
    if task.mrecep_target:
        return "movable receptacles"
    movable = [item for item in episode.scene.items if item.type in objects.PICKUPABLE]
    if any(item.parent is None for item in movable):
        return "objects on the floor"
    return "objects in movable receptacles" if any(kinds[item.parent] not in FURNITURE for item in movable) else ""


def pddl_problem(scene: Scene, task: Task) -> str:
    """Return a house and a task in PDDL, for the domain of the installed alfworld. Needs the extra ``alfworld``."""
    from alfworld.gen.constants import VAL_RECEPTACLE_OBJECTS
    from alfworld.gen.goal_library import gdict

    places = [item for item in scene.items if item.type in FURNITURE]
    placed_objects = [item for item in scene.items if item.type in objects.PICKUPABLE | objects.LAMPS]
    kinds = {item.type for item in places} | NAMED_BY_RULES[0] | {task.parent_target} - {""}
    types = {item.type for item in placed_objects} | NAMED_BY_RULES[1] | {task.object_target, task.toggle_target} - {""}
    declared = [
        "agent1 - agent",
        "loc_start - location",
        *(f"{_id(item)} - receptacle loc_{item.id} - location" for item in places),
        *(f"{_id(item)} - object" for item in placed_objects),
        *(f"{name}Type - rtype" for name in sorted(kinds)),
        *(f"{name}Type - otype" for name in sorted(types)),
    ]
    init = [
        "(= (total-cost) 0)",
        "(atLocation agent1 loc_start)",
        *(fact for item in places for fact in _place_facts(item)),
        *(fact for item in placed_objects for fact in _object_facts(item, places)),
        *(
            f"(canContain {kind}Type {name}Type)"
            for kind in sorted(kinds)
            for name in sorted(types & set(VAL_RECEPTACLE_OBJECTS.get(kind, ())))
        ),
    ]
    pattern: str = gdict[task.type]["pddl"].replace("#", "-")  # the goal; its last bracket closes the problem
    goal = pattern.format(obj=task.object_target, recep=task.parent_target, toggle=task.toggle_target)
    parts = "\n".join(declared), "\n".join(init), goal
    return "(define (problem house)\n(:domain alfred)\n(:objects\n{}\n)\n(:init\n{}\n)\n{}".format(*parts)


def _id(item: Item) -> str:
    """Return an id as ALFWorld spells AI2-THOR's ids: type and number, with a suffix for basins."""
    kind, number = item.type, _LAST - int(item.id.rpartition("_")[2])
    if kind.endswith("Basin"):
        return f"{kind.removesuffix('Basin')}_bar_{number}_bar_{kind}"
    return f"{kind}_bar_{number}"


def _place_facts(item: Item) -> Iterator[str]:
    yield f"(receptacleType {_id(item)} {item.type}Type)"
    yield f"(receptacleAtLocation {_id(item)} loc_{item.id})"
    if item.type in objects.OPENABLE:
        yield f"(openable {_id(item)})"
    if "open" in item.states:
        yield f"(opened {_id(item)})"


def _object_facts(item: Item, places: list[Item]) -> Iterator[str]:
    """Yield the facts about an object. A lamp without a parent is put on the nearest furniture without doors."""
    if item.parent is None:
        without_doors = [place for place in places if place.type not in objects.CONTAINERS]
        place = min(without_doors, key=lambda place: dist(place.position, item.position))
    else:
        place = next(place for place in places if place.id == item.parent)
    yield f"(objectType {_id(item)} {item.type}Type)"
    yield f"(inReceptacle {_id(item)} {_id(place)})"
    yield f"(objectAtLocation {_id(item)} loc_{place.id})"
    yield from (f"({word} {_id(item)})" for word, types in TYPES_BY_PREDICATE.items() if item.type in types)


def game_of(episode: Episode, engine: Engine) -> dict[str, Any]:
    """Return the content of ``game.tw-pddl``. Raises ConfigError if the grammar cannot hold the instruction."""
    from alfworld.info import ALFRED_PDDL_PATH, ALFRED_TWL2_PATH

    task = episode.tasks[0]
    if GRAMMAR_CHARACTERS & set(task.instruction):
        reserved = " ".join(sorted(GRAMMAR_CHARACTERS))
        raise ConfigError(f"{task.instruction!r} holds one of {reserved}, which ALFWorld's grammar reserves; reword it")
    grammar = Path(ALFRED_TWL2_PATH).read_text(encoding="utf-8")
    game: dict[str, Any] = {
        "pddl_domain": Path(ALFRED_PDDL_PATH).read_text(encoding="utf-8"),
        "grammar": grammar.replace(PLACEHOLDER, json.dumps(task.instruction)[1:-1]),
        "pddl_problem": pddl_problem(episode.scene, task),
    }
    engine.load(game, episode.id)
    walkthrough = engine.plan()
    return {**game, "solvable": bool(walkthrough), "walkthrough": walkthrough or None}


def write_game(episode: Episode, out: Path, engine: Engine) -> None:
    """Write a game's two files, the game file last, into a folder TASK/TRIAL as in ALFRED; keep an existing game."""
    task = episode.tasks[0]
    place = task.parent_target or task.toggle_target
    folder = out / f"{task.type}-{task.object_target}-None-{place}-{episode.scene.room}" / episode.id
    if (folder / FILE_NAME).exists():
        return
    targets = ("object_target", "parent_target", "toggle_target", "mrecep_target")
    trajectory = {  # content of traj_data.json, the second file, which ALFWorld's own tools read
        "task_id": episode.id,
        "task_type": task.type,
        "pddl_params": {name: getattr(task, name) for name in targets} | {"object_sliced": task.sliced},
        "turk_annotations": {"anns": [{"task_desc": task.instruction}]},
    }
    folder.mkdir(parents=True, exist_ok=True)
    write_atomic(folder / "traj_data.json", json.dumps(trajectory, indent=1) + "\n")
    write_atomic(folder / FILE_NAME, json.dumps(game_of(episode, engine)))


def run(args: argparse.Namespace) -> None:
    reasons, engine, out = Counter[str](), Engine(), args.out / args.split
    for episode in load_episodes(None, args.split, seed=args.seed, limit=args.houses):
        reason = unsupported_reason(episode)
        reasons[reason] += 1
        if not reason:
            write_game(episode, out, engine)
    games = reasons.pop("", 0)
    text = ", ".join(f"{count} with {reason}" for reason, count in reasons.most_common()) or "none"
    make_console().print(f"{games} games in {out}; houses left out: {text}", soft_wrap=True)


def main() -> None:
    p = command_parser(__doc__)
    p.add_argument("--out", required=True, type=Path, help="folder for the games; existing games are kept")
    p.add_argument("--split", default="test", help="train, valid or test (default %(default)s)")
    p.add_argument("--houses", type=int, default=20, help="number of houses to convert (default %(default)s)")
    p.add_argument("--seed", type=int, default=0, help="seed of the houses (default %(default)s)")
    arguments = p.parse_args()
    sys.exit(guarded(lambda: run(arguments)))


if __name__ == "__main__":
    main()

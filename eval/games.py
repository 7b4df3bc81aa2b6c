"""Generated ALFRED houses as ALFWorld games: ``python -m eval.games --out FOLDER [--split test] [--houses 20]``.

Play the games with `python -m eval.alfworld env.data=FOLDER env.split=test`, and the same houses and tasks in the
embedded engine with `python -m eval.alfred env.skills=grounded env.observability=partial`. Houses that ALFWorld cannot
express are left out. Rules, grammar and goals are those of the installed alfworld.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from envs.alfred.scene import Episode
from envs.alfred.spec import load_episodes
from envs.alfworld.engine import Engine
from envs.alfworld.spec import FILE_NAME
from eval.dataset.pddl_problem import problem, why_not
from keep_agent.console import make_console
from keep_agent.errors import ConfigError
from keep_agent.guard import guarded
from memory.files.atomic import write_atomic

PLACEHOLDER = "UNKNOWN GOAL"  # replaced by the task's words in alfworld's grammar
GRAMMAR_CHARACTERS = frozenset("#{}[]|")  # characters with a meaning in the grammar


def game_of(episode: Episode, engine: Engine) -> dict[str, Any]:
    """Return the content of ``game.tw-pddl``. Raises ConfigError for an instruction that the grammar cannot hold."""
    from alfworld.info import ALFRED_PDDL_PATH, ALFRED_TWL2_PATH

    task = episode.tasks[0]
    if GRAMMAR_CHARACTERS & set(task.instruction):
        reserved = " ".join(sorted(GRAMMAR_CHARACTERS))
        raise ConfigError(f"{task.instruction!r} holds one of {reserved}, which ALFWorld's grammar reserves; reword it")
    words = json.dumps(task.instruction)[1:-1]
    game: dict[str, Any] = {
        "pddl_domain": Path(ALFRED_PDDL_PATH).read_text(encoding="utf-8"),
        "grammar": Path(ALFRED_TWL2_PATH).read_text(encoding="utf-8").replace(PLACEHOLDER, words),
        "pddl_problem": problem(episode.scene, task),
    }
    engine.load(game, episode.id)
    walkthrough = engine.plan()
    return {**game, "solvable": bool(walkthrough), "walkthrough": walkthrough or None}


def trajectory_of(episode: Episode) -> dict[str, Any]:
    """Return the content of ``traj_data.json``, which ALFWorld's own tools read beside a game."""
    task = episode.tasks[0]
    return {
        "task_id": episode.id,
        "task_type": task.type,
        "pddl_params": {
            "object_target": task.object_target,
            "parent_target": task.parent_target,
            "toggle_target": task.toggle_target,
            "mrecep_target": task.mrecep_target,
            "object_sliced": task.sliced,
        },
        "turk_annotations": {"anns": [{"task_desc": task.instruction}]},
    }


def folder_of(episode: Episode) -> str:
    """Return the folder TASK/TRIAL, named as in ALFRED."""
    task = episode.tasks[0]
    place = task.parent_target or task.toggle_target
    return f"{task.type}-{task.object_target}-None-{place}-{episode.scene.room}/{episode.id}"


def write(episode: Episode, out: Path, engine: Engine) -> None:
    """Write a game's two files, the game itself last; an existing game is kept."""
    folder = out / folder_of(episode)
    if (folder / FILE_NAME).exists():
        return
    folder.mkdir(parents=True, exist_ok=True)
    write_atomic(folder / "traj_data.json", json.dumps(trajectory_of(episode), indent=1) + "\n")
    write_atomic(folder / FILE_NAME, json.dumps(game_of(episode, engine)))


def parser() -> argparse.ArgumentParser:
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--out", required=True, type=Path, help="folder for the games; existing games are kept")
    p.add_argument("--split", default="test", help="train, valid or test (default %(default)s)")
    p.add_argument("--houses", type=int, default=20, help="number of houses to convert (default %(default)s)")
    p.add_argument("--seed", type=int, default=0, help="seed of the houses (default %(default)s)")
    return p


def run(arguments: Sequence[str]) -> None:
    args = parser().parse_args(arguments)
    reasons: Counter[str] = Counter()
    engine = Engine()
    episodes = load_episodes(None, args.split, seed=args.seed, limit=args.houses)
    for episode in episodes:
        reason = why_not(episode)
        reasons[reason] += 1
        if not reason:
            write(episode, args.out / args.split, engine)
    games = reasons.pop("", 0)
    text = ", ".join(f"{count} {reason}" for reason, count in reasons.most_common()) or "none"
    make_console().print(f"{games} games in {args.out / args.split}; houses left out: {text}", soft_wrap=True)


def main() -> None:
    """Exit code 0: done; 2: bad input, one line on standard error."""
    sys.exit(guarded(lambda: run(sys.argv[1:])))


if __name__ == "__main__":
    main()

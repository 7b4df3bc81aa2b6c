"""Tasks from files: in the official format of WAH-NL, or plans that are laid out in given apartments.

Official (``wah_nl_test.json`` of LoTA-Bench): a list of records with task_id, task_name, env_id, init_graph, init_room,
task_goal and nl_instructions. Records without instructions, as Watch-And-Help's own, are said in our words.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from operator import call
from pathlib import Path
from random import Random
from typing import Any

from envs.lazy import LazyEpisodes
from envs.wah.apartments.layout import Goal
from envs.wah.apartments.possible import check_apartment, check_room
from envs.wah.data.formats import read_graph
from envs.wah.data.plans import is_plans, load_plans
from envs.wah.data.records import check_goal, field_of, json_files, number_of, records_of, task_of, told_of
from envs.wah.language.phrases import phrase
from envs.wah.scene import Episode, Scene, Task
from keep_agent.errors import ConfigError, DataError, check_once

WHOLE = "test"  # the split that is played where none is named: all of what has no splits
Make = Callable[[], Episode]


def load_official(data: str | Path, split: str, seed: int = 0, limit: int | None = None) -> Sequence[Episode]:
    """One episode per instruction of a file, or of a folder's files whose names contain ``split``.

    One file, and a folder of plans and apartments, has no splits: all of it is played, by the default split alone.
    Plans are laid out with ``seed``, and ``limit`` episodes drawn with it. Raises ConfigError where nothing is found,
    DataError for what is damaged.
    """
    path = Path(data)
    if not path.exists():
        raise ConfigError(f"env.data={data} does not exist; name a file or folder of Watch-And-Help tasks")
    if split != WHOLE and (path.is_file() or is_plans(path)):
        raise ConfigError(f"{path} has no splits, split={split!r} is none of it; leave env.split out")
    makers = load_plans(path, seed) if is_plans(path) else _records(path, split)
    if limit is not None and limit < len(makers):
        makers = [makers[index] for index in sorted(Random(seed).sample(range(len(makers)), limit))]
    return LazyEpisodes(call, makers)


def _records(path: Path, split: str) -> list[Make]:
    files = [path] if path.is_file() else json_files(path, split)
    if not files:
        raise ConfigError(
            f"{path} has no *.json or *.json.gz with {split!r} in its name; name a file, or another split"
        )
    named = [(f"{_name(file)}-{row.get('task_id', number)}", row, where)
             for file in files for number, (row, where) in enumerate(records_of(file))]  # fmt: skip
    check_once([name for name, *_ in named], f"{path}: task", "give each task_id once")
    return [maker for name, row, where in named for maker in _of_record(row, where, name)]


def _name(file: Path) -> str:
    return file.name.split(".json")[0]


def _of_record(row: Mapping[str, Any], where: str, identity: str) -> list[Make]:
    kind, goal = task_of(row, where)
    told = told_of(row, where) or [_said(kind, goal, identity, where)]
    graph, room = field_of(row, ("init_graph",), where), row.get("init_room")
    apartment = read_graph(graph, where)
    check_goal(goal, where, partial(check_apartment, apartment))
    check_room(apartment, room, where)
    scene = Scene(identity, graph, room, number_of(row, "env_id", where))
    tasks = [Task(kind, goal, text, identity) for text in told]
    return [_maker(Episode(f"{identity}-{number}", scene, (task,))) for number, task in enumerate(tasks)]


def _said(kind: str, goal: Goal, identity: str, where: str) -> str:
    try:
        return phrase(kind, goal, Random(identity))
    except DataError as error:
        raise DataError(f"{where} has no nl_instructions, and we have no words for it ({error}); add some") from error


def _maker(episode: Episode) -> Make:
    return lambda: episode
